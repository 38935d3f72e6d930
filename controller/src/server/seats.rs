//! Who has joined: a job's ranks as seats on its hosts, handed out once an epoch.

use tokio::sync::watch;

use crate::fabric::HostId;
use crate::job::{Job, Rank};
use crate::store::SeatRecord;

/// Whether a rank is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Nobody has taken it.
    Free,
    /// A member is about to, and waits for others.
    Joining,
    /// A member has.
    Joined,
    /// A member had, and left after all had joined.
    Left,
}

impl From<SeatRecord> for Seat {
    fn from(seat: SeatRecord) -> Self {
        match seat {
            SeatRecord::Free => Seat::Free,
            SeatRecord::Joined => Seat::Joined,
            SeatRecord::Left => Seat::Left,
        }
    }
}

impl From<Seat> for SeatRecord {
    fn from(seat: Seat) -> Self {
        match seat {
            // Not promised yet.
            Seat::Free | Seat::Joining => SeatRecord::Free,
            Seat::Joined => SeatRecord::Joined,
            Seat::Left => SeatRecord::Left,
        }
    }
}

/// A job's seats by rank.
#[derive(Debug)]
pub struct Seats {
    seats: Vec<(HostId, Seat)>,
    /// Becomes true once, when the last free seat is taken.
    complete: watch::Sender<bool>,
    /// How often anything has changed.
    changes: u64,
    /// As of which change they are in the store.
    kept: u64,
}

/// Why a host's next member gets no rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSeat {
    /// None of the job's ranks sits on that host.
    NotAMember,
    /// All that do are taken.
    Taken {
        /// How many there are.
        ranks: usize,
    },
}

impl Seats {
    /// All free.
    pub fn new(job: &Job) -> Self {
        let seats = job
            .members
            .iter()
            .map(|member| (member.host, Seat::Free))
            .collect();
        Seats {
            seats,
            complete: watch::Sender::new(false),
            changes: 0,
            kept: 0,
        }
    }

    /// As they stood, by rank.
    pub fn restored(job: &Job, states: impl Iterator<Item = Seat>) -> Self {
        let hosts = job.members.iter().map(|member| member.host);
        let seats: Vec<(HostId, Seat)> = hosts.zip(states).collect();
        let complete = seats.iter().all(|(_, seat)| *seat != Seat::Free);
        Seats {
            seats,
            complete: watch::Sender::new(complete),
            changes: 0,
            kept: 0,
        }
    }

    /// Takes the lowest free rank on `host`, to be [joined](Self::join) or [given up](Self::give_up).
    pub fn take(&mut self, host: HostId) -> Result<Rank, NoSeat> {
        let free = self
            .seats
            .iter()
            .position(|seat| *seat == (host, Seat::Free));
        let Some(index) = free else {
            let ranks = self.seats.iter().filter(|(at, _)| *at == host).count();
            return Err(if ranks == 0 {
                NoSeat::NotAMember
            } else {
                NoSeat::Taken { ranks }
            });
        };
        self.seats[index].1 = Seat::Joining;
        if self.free().next().is_none() {
            self.complete.send_replace(true);
        }
        // As many seats as ranks, whose numbers have 16 bits.
        Ok(Rank(index as u16))
    }

    /// Who took `rank` has it.
    pub fn join(&mut self, rank: Rank) {
        if let Some((_, seat @ Seat::Joining)) = self.seats.get_mut(usize::from(rank.0)) {
            *seat = Seat::Joined;
            self.changes += 1;
        }
    }

    /// Who took `rank`, or has it, goes without it. Until all have joined somebody else may take it.
    pub fn give_up(&mut self, rank: Rank) {
        let complete = *self.complete.borrow();
        if let Some((_, seat @ (Seat::Joining | Seat::Joined))) =
            self.seats.get_mut(usize::from(rank.0))
        {
            *seat = if complete { Seat::Left } else { Seat::Free };
            self.changes += 1;
        }
    }

    /// A seat that was left is free again: nobody has begun anything with it.
    pub fn free_again(&mut self, rank: Rank) {
        if let Some((_, seat @ Seat::Left)) = self.seats.get_mut(usize::from(rank.0)) {
            *seat = Seat::Free;
            self.complete.send_replace(false);
        }
    }

    /// Gives `rank` up; false if nobody has it.
    pub fn leave(&mut self, rank: Rank) -> bool {
        let has = matches!(self.seats.get(usize::from(rank.0)), Some((_, Seat::Joined)));
        if has {
            self.give_up(rank);
        }
        has
    }

    /// How often anything has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// As of which change they are in the store.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// They are in the store as of that change.
    pub fn keep(&mut self, change: u64) {
        self.kept = self.kept.max(change);
    }

    /// Whoever waits for others to join waits in vain.
    pub fn end(&mut self) {
        let complete = *self.complete.borrow();
        self.complete = watch::Sender::new(complete);
    }

    /// How each rank's seat stands.
    pub fn states(&self) -> impl Iterator<Item = Seat> + '_ {
        self.seats.iter().map(|(_, seat)| *seat)
    }

    /// The ranks that nobody has taken.
    pub fn free(&self) -> impl Iterator<Item = Rank> + '_ {
        let free = self
            .states()
            .enumerate()
            .filter(|(_, seat)| *seat == Seat::Free);
        free.map(|(index, _)| Rank(index as u16))
    }

    /// Turns true when all have joined; closes when the job is deleted.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.complete.subscribe()
    }
}
