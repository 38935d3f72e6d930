//! Who has joined: a job's ranks as seats on its hosts, handed out once an epoch.

use tokio::sync::watch;

use crate::fabric::HostId;
use crate::job::{Job, Rank, by_rank};
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

/// Who asks for a rank, in each try by the same number, drawn at random; 0 for who says none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt(pub u64);

/// A call that gives a rank and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(u64);

/// A rank that is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub rank: Rank,
    /// Until when it is free again where the call fails; none where it was given by one before, whose answer may have been lost.
    pub call: Option<Call>,
}

/// A rank's seat.
#[derive(Clone, Copy, Debug)]
struct Place {
    host: HostId,
    seat: Seat,
    /// Of whoever has it.
    attempt: Attempt,
    /// The call that gives it.
    call: Option<Call>,
}

impl Place {
    fn new(host: HostId, seat: Seat, attempt: Attempt) -> Self {
        let call = None;
        Place {
            host,
            seat,
            attempt,
            call,
        }
    }
}

/// A job's seats by rank.
#[derive(Debug)]
pub struct Seats {
    seats: Vec<Place>,
    /// Calls that have been given a seat, this far.
    calls: u64,
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
            .map(|member| Place::new(member.host, Seat::Free, Attempt::default()))
            .collect();
        Seats {
            seats,
            calls: 0,
            complete: watch::Sender::new(false),
            changes: 0,
            kept: 0,
        }
    }

    /// As they stood, by rank, each with whoever had taken it.
    pub fn restored(job: &Job, states: impl Iterator<Item = (Seat, Attempt)>) -> Self {
        let hosts = job.members.iter().map(|member| member.host);
        let seats: Vec<Place> = (hosts.zip(states))
            .map(|(host, (seat, attempt))| Place::new(host, seat, attempt))
            .collect();
        let complete = seats.iter().all(|place| place.seat != Seat::Free);
        Seats {
            seats,
            calls: 0,
            complete: watch::Sender::new(complete),
            changes: 0,
            kept: 0,
        }
    }

    /// Takes the lowest free rank on `host`, to be [joined](Self::join) or [given up](Self::give_up); who asks again gets the one that it has, and
    /// where the call before is still under way that is this one's from now on.
    pub fn take(&mut self, host: HostId, attempt: Attempt) -> Result<Taken, NoSeat> {
        if let Some(index) = self.index_of(host, attempt) {
            let under_way = self.seats[index].call.is_some();
            return Ok(self.give(index, under_way));
        }
        let is_free = |place: &Place| place.host == host && place.seat == Seat::Free;
        let Some(index) = self.seats.iter().position(is_free) else {
            let ranks = self.seats.iter().filter(|place| place.host == host);
            return Err(match ranks.count() {
                0 => NoSeat::NotAMember,
                ranks => NoSeat::Taken { ranks },
            });
        };
        self.seats[index].seat = Seat::Joining;
        self.seats[index].attempt = attempt;
        if self.free().next().is_none() {
            self.complete.send_replace(true);
        }
        Ok(self.give(index, true))
    }

    fn give(&mut self, index: usize, by_this_call: bool) -> Taken {
        let call = by_this_call.then(|| {
            self.calls += 1;
            Call(self.calls)
        });
        if call.is_some() {
            self.seats[index].call = call;
        }
        // As many seats as ranks, whose numbers have 16 bits.
        let rank = Rank(index as u16);
        Taken { rank, call }
    }

    fn index_of(&self, host: HostId, attempt: Attempt) -> Option<usize> {
        let has = |place: &Place| {
            place.host == host
                && place.attempt == attempt
                && matches!(place.seat, Seat::Joining | Seat::Joined)
        };
        let asked = (attempt != Attempt::default()).then_some(&self.seats)?;
        asked.iter().position(has)
    }

    /// Whether who asks from `host` has a rank already.
    pub fn has(&self, host: HostId, attempt: Attempt) -> bool {
        self.index_of(host, attempt).is_some()
    }

    /// A call that gives `rank` ends; false where another one has taken its place.
    pub fn end_call(&mut self, rank: Rank, call: Call) -> bool {
        match self.seats.get_mut(usize::from(rank.0)) {
            Some(place) if place.call == Some(call) => {
                place.call = None;
                true
            }
            _ => false,
        }
    }

    /// Who took `rank` has it.
    pub fn join(&mut self, rank: Rank) {
        if let Some(place) = self.seats.get_mut(usize::from(rank.0))
            && place.seat == Seat::Joining
        {
            place.seat = Seat::Joined;
            self.changes += 1;
        }
    }

    /// Who took `rank`, or has it, goes without it. Until all have joined somebody else may take it.
    pub fn give_up(&mut self, rank: Rank) {
        let complete = *self.complete.borrow();
        if let Some(place) = self.seats.get_mut(usize::from(rank.0))
            && matches!(place.seat, Seat::Joining | Seat::Joined)
        {
            let seat = if complete { Seat::Left } else { Seat::Free };
            *place = Place::new(place.host, seat, Attempt::default());
            self.changes += 1;
        }
    }

    /// A seat that was left is free again: nobody has begun anything with it.
    pub fn free_again(&mut self, rank: Rank) {
        if let Some(place) = self.seats.get_mut(usize::from(rank.0))
            && place.seat == Seat::Left
        {
            place.seat = Seat::Free;
            self.complete.send_replace(false);
        }
    }

    /// Gives `rank` up; false if nobody has it.
    pub fn leave(&mut self, rank: Rank) -> bool {
        let place = self.seats.get(usize::from(rank.0));
        let has = place.is_some_and(|place| place.seat == Seat::Joined);
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

    /// How a rank's seat stands; none of a rank that there is not.
    pub fn state(&self, rank: Rank) -> Option<Seat> {
        let place = self.seats.get(usize::from(rank.0))?;
        Some(place.seat)
    }

    /// How each rank's seat stands.
    pub fn states(&self) -> impl Iterator<Item = Seat> + '_ {
        self.seats.iter().map(|place| place.seat)
    }

    /// The same, with the ranks.
    pub fn by_rank(&self) -> impl Iterator<Item = (Rank, Seat)> + '_ {
        by_rank(self.states())
    }

    /// Who has joined each rank; 0 where nobody has, or said who.
    pub fn attempts(&self) -> impl Iterator<Item = Attempt> + '_ {
        let joined = |place: &Place| match place.seat {
            Seat::Joined => place.attempt,
            Seat::Free | Seat::Joining | Seat::Left => Attempt::default(),
        };
        self.seats.iter().map(joined)
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
