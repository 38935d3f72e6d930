//! A job's ranks as seats on its hosts, each given out once per epoch.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use ultima_planner::fabric::HostId;
use ultima_planner::job::{Job, Rank, by_rank};

use crate::store::SeatRecord;

/// The state of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// No member has taken it.
    Free,
    /// A member is joining, and waits for others.
    Joining,
    /// A member has joined.
    Joined,
    /// The member left after all had joined.
    Left,
    /// The member left before, and knows the epoch's key: the next one gets the seat in another epoch.
    Vacated,
}

impl From<SeatRecord> for Seat {
    fn from(seat: SeatRecord) -> Self {
        match seat {
            SeatRecord::Free => Seat::Free,
            SeatRecord::Joined => Seat::Joined,
            SeatRecord::Left => Seat::Left,
            SeatRecord::Vacated => Seat::Vacated,
        }
    }
}

impl From<Seat> for SeatRecord {
    fn from(seat: Seat) -> Self {
        match seat {
            // Not committed yet.
            Seat::Free | Seat::Joining => SeatRecord::Free,
            Seat::Joined => SeatRecord::Joined,
            Seat::Left => SeatRecord::Left,
            Seat::Vacated => SeatRecord::Vacated,
        }
    }
}

/// The longest time between the ends of the waits of members that were started together.
const TOGETHER: Duration = Duration::from_secs(5);

/// A random number that identifies a member's join over all retries; 0 if the member sends none. With it
/// the member shows later that it has the seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt(pub u64);

/// A member that joins: its host, and its attempt.
#[derive(Clone, Copy, Debug)]
pub struct Joiner {
    pub host: HostId,
    pub attempt: Attempt,
}

/// A call that has taken a rank and is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(u64);

/// A taken rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub rank: Rank,
    /// The call that frees the rank again if it fails; none if an earlier call took it, whose
    /// answer may have been lost.
    pub call: Option<Call>,
}

/// A seat of a rank.
#[derive(Clone, Copy, Debug)]
struct SeatEntry {
    host: HostId,
    seat: Seat,
    /// The attempt of the member that has it.
    attempt: Attempt,
    /// The call that is taking it.
    call: Option<Call>,
    /// When its last member gave it up, before all had joined.
    gave_up: Option<Instant>,
}

impl SeatEntry {
    fn new(host: HostId, seat: Seat, attempt: Attempt) -> Self {
        SeatEntry {
            host,
            seat,
            attempt,
            call: None,
            gave_up: None,
        }
    }
}

/// A job's seats, by rank.
#[derive(Debug)]
pub struct Seats {
    seats: Vec<SeatEntry>,
    /// The number of calls so far.
    calls: u64,
    /// True once the last free seat is taken.
    complete: watch::Sender<bool>,
    /// The ranks with [`Seat::Left`].
    left: watch::Sender<Vec<Rank>>,
    /// The number of changes so far.
    changes: u64,
    /// The number of changes that are stored.
    kept: u64,
}

/// The reason why a host's next member gets no rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSeat {
    /// The job has no rank on that host.
    NotAMember,
    /// All ranks on that host are taken.
    Taken {
        /// The number of ranks there.
        ranks: usize,
    },
}

impl Seats {
    /// All seats free.
    pub fn new(job: &Job) -> Self {
        let seats = job
            .members
            .iter()
            .map(|member| SeatEntry::new(member.host, Seat::Free, Attempt::default()))
            .collect();
        Seats {
            seats,
            calls: 0,
            complete: watch::Sender::new(false),
            left: watch::Sender::default(),
            changes: 0,
            kept: 0,
        }
    }

    /// Restored seats, by rank.
    pub fn restored(job: &Job, states: impl Iterator<Item = (Seat, Attempt)>) -> Self {
        let hosts = job.members.iter().map(|member| member.host);
        let seats: Vec<SeatEntry> = (hosts.zip(states))
            .map(|(host, (seat, attempt))| SeatEntry::new(host, seat, attempt))
            .collect();
        let is_free = |entry: &SeatEntry| matches!(entry.seat, Seat::Free | Seat::Vacated);
        let complete = !seats.iter().any(is_free);
        let left = by_rank(seats.iter()).filter(|(_, entry)| entry.seat == Seat::Left);
        let left = left.map(|(rank, _)| rank).collect();
        Seats {
            seats,
            calls: 0,
            complete: watch::Sender::new(complete),
            left: watch::Sender::new(left),
            changes: 0,
            kept: 0,
        }
    }

    /// Takes the lowest free rank on `host`; [`join`](Self::join) or [`withdraw`](Self::withdraw)
    /// follows. A retry gets the rank that it has, and replaces the earlier call if that is still
    /// in progress.
    pub fn take(&mut self, host: HostId, attempt: Attempt) -> Result<Taken, NoSeat> {
        if let Some(index) = self.index_of(host, attempt) {
            let under_way = self.seats[index].call.is_some();
            return Ok(self.give(index, under_way));
        }
        let is_free = |entry: &SeatEntry| entry.host == host && entry.seat == Seat::Free;
        let Some(index) = self.seats.iter().position(is_free) else {
            let ranks = self.seats.iter().filter(|entry| entry.host == host);
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
        // There are as many seats as ranks, which have 16 bits.
        let rank = Rank(index as u16);
        Taken { rank, call }
    }

    fn index_of(&self, host: HostId, attempt: Attempt) -> Option<usize> {
        let has = |entry: &SeatEntry| {
            entry.host == host
                && entry.attempt == attempt
                && matches!(entry.seat, Seat::Joining | Seat::Joined)
        };
        let asked = (attempt != Attempt::default()).then_some(&self.seats)?;
        asked.iter().position(has)
    }

    /// True if this attempt from `host` already has a rank.
    pub fn has(&self, host: HostId, attempt: Attempt) -> bool {
        self.index_of(host, attempt).is_some()
    }

    /// Ends the call of this attempt that is taking `rank`, because the member gets its rank. Returns false if
    /// another call gives it.
    pub fn answer(&mut self, rank: Rank, attempt: Attempt) -> bool {
        let entry = self.seats.get_mut(usize::from(rank.0));
        let entry = entry.filter(|entry| entry.attempt == attempt);
        entry.is_some_and(|entry| entry.call.take().is_some())
    }

    /// Ends a call. Returns false if another call has replaced it.
    pub fn end_call(&mut self, rank: Rank, call: Call) -> bool {
        match self.seats.get_mut(usize::from(rank.0)) {
            Some(entry) if entry.call == Some(call) => {
                entry.call = None;
                true
            }
            _ => false,
        }
    }

    /// Makes the member that took `rank` joined.
    pub fn join(&mut self, rank: Rank) {
        if let Some(entry) = self.seats.get_mut(usize::from(rank.0))
            && entry.seat == Seat::Joining
        {
            entry.seat = Seat::Joined;
            self.changes += 1;
        }
    }

    /// Frees the seat of a member that does not know that it has it.
    pub fn withdraw(&mut self, rank: Rank) {
        // One that has joined did not wait any more: the store refused it.
        let gives_up = self.state(rank) == Some(Seat::Joining);
        self.vacate(rank, Seat::Free, gives_up);
    }

    /// The free ranks whose members have just given up to wait for others. Members that start together also give
    /// up together, and none of them is the cause.
    pub fn gave_up(&self) -> impl Iterator<Item = Rank> + '_ {
        self.free().filter(|rank| self.has_given_up(*rank))
    }

    /// The other free ranks.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> + '_ {
        self.free().filter(|rank| !self.has_given_up(*rank))
    }

    fn has_given_up(&self, rank: Rank) -> bool {
        let gave_up = self.seats[usize::from(rank.0)].gave_up;
        gave_up.is_some_and(|then| then.elapsed() < TOGETHER)
    }

    /// Gives up a joined `rank`. If its epoch `has_begun`, no other member gets it there, and none with the same key
    /// if its member `knows_key`. Returns false if it has not joined.
    pub fn leave(&mut self, rank: Rank, knows_key: bool, has_begun: bool) -> bool {
        let has = self.state(rank) == Some(Seat::Joined);
        if has {
            let seat = match knows_key {
                _ if has_begun => Seat::Left,
                true => Seat::Vacated,
                false => Seat::Free,
            };
            self.vacate(rank, seat, !has_begun);
        }
        has
    }

    fn vacate(&mut self, rank: Rank, seat: Seat, gives_up: bool) {
        if let Some(entry) = self.seats.get_mut(usize::from(rank.0))
            && matches!(entry.seat, Seat::Joining | Seat::Joined)
        {
            *entry = SeatEntry::new(entry.host, seat, Attempt::default());
            entry.gave_up = gives_up.then(Instant::now);
            self.changes += 1;
            match seat {
                Seat::Left => self.left.send_modify(|left| left.push(rank)),
                _ => drop(self.complete.send_replace(false)),
            }
        }
    }

    /// The ranks with [`Seat::Left`], in the order in which their members left. No other member gets them.
    pub fn left(&self) -> watch::Receiver<Vec<Rank>> {
        self.left.subscribe()
    }

    /// True if all members have joined; some may have left since.
    pub fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }

    /// True if a member on `host` left, and knows the epoch's key.
    pub fn is_vacated_on(&self, host: HostId) -> bool {
        let is_vacated = |entry: &SeatEntry| entry.host == host && entry.seat == Seat::Vacated;
        self.seats.iter().any(is_vacated)
    }

    /// The number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The number of changes that are stored.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Records that all changes up to this one are stored.
    pub fn keep(&mut self, change: u64) {
        self.kept = self.kept.max(change);
    }

    /// True if the member that made this attempt has the rank. No member makes attempt 0.
    pub fn is_held(&self, rank: Rank, attempt: Attempt) -> bool {
        let entry = self.seats.get(usize::from(rank.0));
        let is_known = attempt != Attempt::default();
        entry.is_some_and(|it| is_known && it.seat == Seat::Joined && it.attempt == attempt)
    }

    /// The attempt of a rank's member; 0 if there is none.
    pub fn attempt(&self, rank: Rank) -> Attempt {
        self.attempts().nth(rank.0.into()).unwrap_or_default()
    }

    /// The state of a rank's seat; none for an unknown rank.
    pub fn state(&self, rank: Rank) -> Option<Seat> {
        let entry = self.seats.get(usize::from(rank.0))?;
        Some(entry.seat)
    }

    /// The states of all seats, by rank.
    pub fn states(&self) -> impl Iterator<Item = Seat> + '_ {
        self.seats.iter().map(|entry| entry.seat)
    }

    /// True if all members have left.
    pub fn all_left(&self) -> bool {
        self.states().all(|seat| seat == Seat::Left)
    }

    /// The states of all seats, with the ranks.
    pub fn by_rank(&self) -> impl Iterator<Item = (Rank, Seat)> + '_ {
        by_rank(self.states())
    }

    /// The attempt of each rank's member; 0 if the seat is not taken or the attempt is unknown.
    pub fn attempts(&self) -> impl Iterator<Item = Attempt> + '_ {
        let joined = |entry: &SeatEntry| match entry.seat {
            Seat::Joined => entry.attempt,
            Seat::Free | Seat::Joining | Seat::Left | Seat::Vacated => Attempt::default(),
        };
        self.seats.iter().map(joined)
    }

    /// The seats as the store has them, by rank, with their attempts.
    pub fn records(&self) -> impl Iterator<Item = (SeatRecord, u64)> + '_ {
        let attempts = self.attempts().map(|Attempt(attempt)| attempt);
        self.states().map(SeatRecord::from).zip(attempts)
    }

    /// The ranks without a member, in an epoch that may still get one.
    pub fn free(&self) -> impl Iterator<Item = Rank> + '_ {
        let free = self
            .states()
            .enumerate()
            .filter(|(_, seat)| matches!(seat, Seat::Free | Seat::Vacated));
        free.map(|(index, _)| Rank(index as u16))
    }

    /// Becomes true when all have joined; closes when the job is deleted.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.complete.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::{self, Health};
    use ultima_planner::job::JobSpec;
    use ultima_planner::program::Program;
    use ultima_planner::routing::Routes;

    use super::*;
    use crate::server::registry::Registry;

    /// A job with members on the first two hosts.
    fn job() -> Job {
        let text = include_str!("../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let registry = Registry::new(&fabric, Routes::new(&fabric, Health::default()));
        let program = Program::v1model().unwrap();
        let spec = JobSpec::new("train", ["h1", "h2"]);
        let (job, _) = registry.propose(&fabric, program.names(), &spec).unwrap();
        job
    }

    #[test]
    fn a_vacated_seat_is_restored_as_such() {
        let job = job();
        let [first, second] = [0, 1].map(|rank: usize| job.members[rank].host);
        let mut seats = Seats::new(&job);
        for (host, attempt) in [(first, 7), (second, 8)] {
            let taken = seats.take(host, Attempt(attempt)).unwrap();
            seats.join(taken.rank);
            if host == first {
                assert!(seats.leave(taken.rank, true, false));
            }
        }
        let stored: Vec<(SeatRecord, u64)> = seats.records().collect();
        let states = (stored.iter()).map(|(seat, attempt)| (Seat::from(*seat), Attempt(*attempt)));
        let restored = Seats::restored(&job, states);
        assert!(restored.states().eq([Seat::Vacated, Seat::Joined]));
        assert!(restored.is_vacated_on(first) && !restored.is_complete());
    }

    #[test]
    fn a_repeated_call_frees_no_rank_that_the_first_one_has_returned() {
        let job = job();
        let (host, attempt) = (job.members[0].host, Attempt(7));
        let mut seats = Seats::new(&job);
        let [first, again] = [0, 1].map(|_| seats.take(host, attempt).unwrap());
        seats.join(first.rank);
        assert!(seats.answer(first.rank, attempt));
        assert!(!seats.end_call(again.rank, again.call.unwrap()));
        assert!(!seats.answer(again.rank, attempt));
    }
}
