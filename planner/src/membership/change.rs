//! The controller's side of a membership change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ultima_api::turns::PLEDGED;

use super::{Origin, Succession, Timers};
use crate::job::Rank;

/// Extra time per member in the notification: some 60 bytes, which a 1 Gbit/s link carries in half
/// of this.
const TELLING: Duration = Duration::from_micros(1);
/// Upper limit of the asking phase: the first member that acknowledged still waits then, with some
/// margin.
pub(super) const LONGEST: Duration = Duration::from_secs(PLEDGED.as_secs() - 15);
/// Time for present members to switch epochs before the old epoch is removed from the switches: an
/// operation or two, and the computation between them.
const GOING_OVER: Duration = Duration::from_secs(60);
/// The same while some of them still run operations of the old epoch: those of slow jobs take
/// minutes.
const GOING_OVER_SLOWLY: Duration = Duration::from_secs(600);

/// Largest distance of an acknowledged operation from most others': ranks that run together are a
/// few apart.
const MOST_AHEAD: u32 = 1000;

/// What to do about a surviving member that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    /// Cancel the change; the old epoch goes on.
    #[default]
    Cancel,
    /// Make the change without the member.
    LeaveOut,
}

/// The terms of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The join timeout for new members.
    pub join: Duration,
    /// What to do about a member that does not answer.
    pub lost: Lost,
}

/// One session of a member; a member that reconnects gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attendance(pub u64);

/// The members with a session.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Members of the old epoch.
    pub old: BTreeMap<Rank, Attendance>,
    /// Members of the new epoch.
    pub new: BTreeMap<Rank, Attendance>,
    /// Ranks of the old epoch that left.
    pub left: BTreeSet<Rank>,
}

/// The phase of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// New members join.
    Gathering,
    /// Surviving members prepare and acknowledge.
    Asking,
    /// The new epoch's first operation is committed.
    Decided(u32),
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send a member of the old epoch its part in the change, and ask it to acknowledge.
    Prepare(Rank),
    /// Send a member of the old epoch the new epoch's first operation.
    Begin(Rank),
    /// Send a new member the new epoch's first operation.
    Welcome(Rank),
    /// Commit this operation as the new epoch's first, then call [`Change::decided`].
    Decide(u32),
    /// Withdraw the new epoch, and plan another without these members: they did not answer. Without any, only its key is
    /// renewed.
    LeaveOut(Vec<Rank>),
    /// Withdraw the new epoch, for this reason.
    Cancel(String),
    /// Remove the old epoch from the switches. The change is complete.
    Fence,
}

/// The progress of a notification to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// It waits for room in the queue.
    Waits,
    /// It was sent.
    Told(Instant),
}

/// A change of one job's members.
#[derive(Clone, Debug)]
pub struct Change {
    succession: Arc<Succession>,
    terms: Terms,
    phase: Phase,
    since: Instant,
    timers: Timers,
    /// Time for members to acknowledge.
    asking: Duration,
    pledges: BTreeMap<Rank, u32>,
    /// Members of the old epoch that cannot take part, with their reasons.
    refusals: BTreeMap<Rank, String>,
    /// Members of the old epoch that were notified.
    prepared: BTreeMap<Rank, Attendance>,
    /// The notifications in progress.
    telling: BTreeMap<Rank, Telling>,
    /// Members of either epoch that were sent the first operation.
    told_old: BTreeMap<Rank, Attendance>,
    told_new: BTreeMap<Rank, Attendance>,
    /// The reason for a requested cancellation.
    unwanted: Option<String>,
    /// True if a former member knows the new epoch's key.
    is_known: bool,
}

impl Change {
    /// Starts a change `now`, or resumes one that was decided before the controller restarted. New
    /// members get time to join only if operations have begun; otherwise all members are awaited
    /// anyway.
    pub fn new(origin: &Origin, timers: Timers, now: Instant) -> Self {
        let succession = Arc::clone(&origin.succession);
        let phase = match origin.first {
            Some(first) => Phase::Decided(first),
            None if origin.has_begun && succession.newcomers().next().is_some() => Phase::Gathering,
            None => Phase::Asking,
        };
        Change {
            asking: asking(&succession, timers.answer),
            succession,
            terms: origin.terms,
            phase,
            since: now,
            timers,
            pledges: BTreeMap::new(),
            refusals: BTreeMap::new(),
            prepared: BTreeMap::new(),
            telling: BTreeMap::new(),
            told_old: BTreeMap::new(),
            told_new: BTreeMap::new(),
            unwanted: None,
            is_known: false,
        }
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The succession of members.
    pub fn succession(&self) -> &Succession {
        &self.succession
    }

    /// The terms of the change.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Records that a member of the old epoch begins no operation from `operation` on before the
    /// decision.
    pub fn pledged(&mut self, rank: Rank, operation: u32) {
        // Ignored after the decision, which these acknowledgements made.
        if self.phase == Phase::Asking {
            self.pledges.insert(rank, operation);
        }
    }

    /// Records that a member of the old epoch cannot take part.
    pub fn refused(&mut self, rank: Rank, reason: String) {
        self.refusals.insert(rank, reason);
    }

    /// Records that a member's notification waits for room in the queue; the member is not lost for
    /// that.
    pub fn waits(&mut self, rank: Rank) {
        if self.phase == Phase::Asking {
            self.telling.insert(rank, Telling::Waits);
        }
    }

    /// Records that a notification was sent. Returns true if the change only waits for this member
    /// now, so that its deadline changes.
    pub fn told(&mut self, rank: Rank, now: Instant) -> bool {
        if self.phase != Phase::Asking {
            return false;
        }
        self.telling.insert(rank, Telling::Told(now));
        now >= self.since + self.asking
    }

    /// Requests a cancellation. It takes effect with the next step, unless the change is decided by
    /// then.
    pub fn unwanted(&mut self, reason: &str) {
        self.unwanted = Some(reason.to_owned());
    }

    /// Replaces the new epoch by another one with the same members, unless the change is decided by then: a new member
    /// left, and knows the key.
    pub fn renew(&mut self) {
        self.is_known = true;
    }

    /// True if a cancellation is requested.
    pub fn is_unwanted(&self) -> bool {
        self.unwanted.is_some()
    }

    /// Starts the time of the first phase `now`: all switches have the new epoch.
    pub fn begin(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Decided(_)) {
            self.since = now;
        }
    }

    /// Records that the new epoch's first operation is committed.
    pub fn decided(&mut self, first: u32, now: Instant) {
        self.enter(Phase::Decided(first), now);
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = now;
    }

    /// When to call [`steps`](Self::steps) next if nothing happens.
    pub fn due(&self, now: Instant) -> Instant {
        self.since
            + match self.phase {
                Phase::Gathering => self.terms.join,
                Phase::Asking if now < self.since + self.asking => self.asking,
                Phase::Asking => {
                    let ends = self.missing().map(|rank| self.patience(rank));
                    ends.min().unwrap_or(self.asking)
                }
                Phase::Decided(_) if now < self.since + self.timers.reconnect => {
                    self.timers.reconnect
                }
                Phase::Decided(_) if now < self.since + GOING_OVER => GOING_OVER,
                Phase::Decided(_) => GOING_OVER_SLOWLY,
            }
    }

    /// Surviving members that have not acknowledged.
    fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        let survivors = self.succession.survivors().map(|(old, _)| old);
        survivors.filter(|old| !self.pledges.contains_key(old))
    }

    /// A member's time to acknowledge, counted from when all were asked.
    fn patience(&self, rank: Rank) -> Duration {
        match self.telling.get(&rank) {
            None => self.asking,
            Some(Telling::Waits) => LONGEST,
            Some(Telling::Told(at)) => {
                let told = at.saturating_duration_since(self.since);
                self.asking.max(told + self.timers.answer).min(LONGEST)
            }
        }
    }

    /// Returns the actions that are due `now`.
    pub fn steps(&mut self, now: Instant, view: &View) -> Vec<Step> {
        if let (Some(reason), Phase::Gathering | Phase::Asking) = (&self.unwanted, self.phase) {
            return vec![Step::Cancel(reason.clone())];
        }
        if self.is_known && matches!(self.phase, Phase::Gathering | Phase::Asking) {
            return vec![Step::LeaveOut(Vec::new())];
        }
        if self.phase == Phase::Gathering {
            let is_missing = |rank: &Rank| !view.new.contains_key(rank);
            let missing = self.succession.newcomers().find(is_missing);
            match missing {
                Some(rank) if now >= self.due(now) => {
                    let waited = self.terms.join.as_secs_f32();
                    let reason = format!("rank {rank} did not join within {waited} s");
                    return vec![Step::Cancel(reason)];
                }
                Some(_) => return Vec::new(),
                None => self.enter(Phase::Asking, now),
            }
        }
        match self.phase {
            Phase::Gathering => Vec::new(),
            Phase::Asking => self.ask(now, view),
            Phase::Decided(_) => self.go_over(now, view),
        }
    }

    /// Rejects acknowledgements that are implausibly far ahead; all members would wait for an
    /// operation that never comes.
    fn refuse_far_pledges(&mut self) {
        let mut all: Vec<u32> = self.pledges.values().copied().collect();
        all.sort_unstable();
        let Some(median) = all.get(all.len().saturating_sub(1) / 2).copied() else {
            return;
        };
        let is_far = |(_, pledge): &(Rank, u32)| *pledge > median.saturating_add(MOST_AHEAD);
        let all = self.pledges.iter().map(|(rank, pledge)| (*rank, *pledge));
        let far: Vec<(Rank, u32)> = all.filter(is_far).collect();
        for (rank, pledge) in far {
            self.pledges.remove(&rank);
            let reason = format!("it acknowledged operation {pledge}, but others are at {median}");
            self.refusals.insert(rank, reason);
        }
    }

    fn ask(&mut self, now: Instant, view: &View) -> Vec<Step> {
        let has_pledged = |rank: &Rank| self.pledges.contains_key(rank);
        if (self.succession.survivors()).all(|(old, _)| has_pledged(&old)) {
            self.refuse_far_pledges();
        }
        let missing: Vec<Rank> = self.missing().collect();
        if missing.is_empty() {
            // Includes members that are left out, if they answered: operations that they began
            // belong to the old epoch.
            let first = self.pledges.values().max().copied();
            return vec![Step::Decide(first.unwrap_or_default())];
        }
        // Drops the notifications of members that left.
        let is_there = |rank: &Rank| view.old.contains_key(rank);
        self.telling
            .retain(|rank, it| *it != Telling::Waits || is_there(rank));
        let cannot = |rank: &Rank| self.refusals.contains_key(rank) || view.left.contains(rank);
        let is_late = |rank: &Rank| now >= self.since + self.patience(*rank);
        let lost = missing
            .into_iter()
            .filter(|rank| cannot(rank) || is_late(rank));
        let is_untold =
            |rank: &Rank| self.telling.get(rank) == Some(&Telling::Waits) && !cannot(rank);
        let (untold, lost): (Vec<Rank>, Vec<Rank>) = lost.partition(is_untold);
        if let Some(first) = lost.first() {
            return vec![match self.terms.lost {
                Lost::LeaveOut => Step::LeaveOut(lost),
                Lost::Cancel => Step::Cancel(match self.refusals.get(first) {
                    Some(reason) => format!("rank {first} cannot change epochs: {reason}"),
                    None if view.left.contains(first) => format!("rank {first} has left"),
                    None => format!(
                        "rank {first} did not answer within {} s",
                        self.asking.as_secs()
                    ),
                }),
            }];
        }
        if let Some(first) = untold.first() {
            return vec![Step::Cancel(format!(
                "rank {first} could not be notified within {} s because of notifications about other changes",
                LONGEST.as_secs()
            ))];
        }
        let untold = newly(&mut self.prepared, &view.old);
        let is_over = now >= self.since + self.asking;
        for rank in &untold {
            match is_over {
                // A member that reconnects later gets its time from its notification on.
                true => self.telling.insert(*rank, Telling::Told(now)),
                false => self.telling.remove(rank),
            };
        }
        untold.into_iter().map(Step::Prepare).collect()
    }

    fn go_over(&mut self, now: Instant, view: &View) -> Vec<Step> {
        let has_come = |(old, new)| view.new.contains_key(&new) || view.left.contains(&old);
        let have_come = self.succession.survivors().all(has_come);
        let not_back = now >= self.since + self.timers.reconnect;
        let is_on_its_way = |(old, _)| view.old.contains_key(&old);
        let bound = match self.succession.survivors().any(is_on_its_way) {
            true => GOING_OVER_SLOWLY,
            false => GOING_OVER,
        };
        let mut steps = self.tell(view);
        // Members that are left out also finish their last operation.
        if (view.old.is_empty() && (have_come || not_back)) || now >= self.since + bound {
            steps.push(Step::Fence);
        }
        steps
    }

    fn tell(&mut self, view: &View) -> Vec<Step> {
        let unprepared: BTreeSet<Rank> = newly(&mut self.prepared, &view.old).into_iter().collect();
        let old = newly(&mut self.told_old, &view.old);
        let newcomers: BTreeSet<Rank> = self.succession.newcomers().collect();
        let new = newly(&mut self.told_new, &view.new);
        let new = new.into_iter().filter(|rank| newcomers.contains(rank));
        let old = old.into_iter().flat_map(|rank| {
            let prepare = unprepared.contains(&rank).then_some(Step::Prepare(rank));
            prepare.into_iter().chain([Step::Begin(rank)])
        });
        old.chain(new.map(Step::Welcome)).collect()
    }
}

/// Time for members to acknowledge; each survivor's notification lists all members.
fn asking(succession: &Succession, answer: Duration) -> Duration {
    let told = succession.survivors().count() * succession.was().len();
    let telling = TELLING.saturating_mul(u32::try_from(told).unwrap_or(u32::MAX));
    (answer + telling).min(LONGEST)
}

/// Returns the ranks that were not notified in their current session, and marks them.
fn newly(told: &mut BTreeMap<Rank, Attendance>, here: &BTreeMap<Rank, Attendance>) -> Vec<Rank> {
    let untold = |(rank, attendance): &(&Rank, &Attendance)| told.get(rank) != Some(attendance);
    let untold: Vec<Rank> = (here.iter())
        .filter(untold)
        .map(|(rank, _)| *rank)
        .collect();
    *told = here.clone();
    untold
}
