//! The controller's side of a membership change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ultima_api::operation_gate::DECISION_TIMEOUT;

use super::{MemberTimers, Origin, Succession};
use crate::job::Rank;

/// Extra time per member in the notification: some 60 bytes, which a 1 Gbit/s link carries in half
/// of this.
const NOTIFICATION_PER_MEMBER: Duration = Duration::from_micros(1);
/// Upper limit of the asking phase: the first member that acknowledged still waits then, with some
/// margin.
pub(super) const LONGEST: Duration = Duration::from_secs(DECISION_TIMEOUT.as_secs() - 15);
/// Time for present members to switch epochs before the old epoch is removed from the switches: an
/// operation or two, and the computation between them.
const SWITCHOVER: Duration = Duration::from_secs(60);
/// The same while some of them still run operations of the old epoch: those of slow jobs take
/// minutes.
const SLOW_SWITCHOVER: Duration = Duration::from_secs(600);

/// Largest distance of an acknowledged operation from most others': ranks that run together are a
/// few apart.
const MOST_AHEAD: u32 = 1000;

/// The consequence for the change if a surviving member does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    /// Cancel the change; the old epoch goes on.
    #[default]
    Cancel,
    /// Make the change without the member.
    LeaveOut,
}

/// The options of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeOptions {
    /// The join timeout for new members.
    pub join: Duration,
    /// The consequence if a member does not answer.
    pub lost: Lost,
}

/// One session of a member; a member that reconnects gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// The members with a session.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Members of the old epoch.
    pub old: BTreeMap<Rank, SessionId>,
    /// Members of the new epoch.
    pub new: BTreeMap<Rank, SessionId>,
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
pub enum ChangeAction {
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
enum Notification {
    /// It waits for room in the queue.
    Queued,
    /// It was sent.
    Sent(Instant),
}

/// A change of one job's members.
#[derive(Clone, Debug)]
pub struct Change {
    succession: Arc<Succession>,
    options: ChangeOptions,
    phase: Phase,
    since: Instant,
    timers: MemberTimers,
    /// Time for members to acknowledge.
    asking: Duration,
    /// The first operation that each member does not begin in the old epoch.
    acknowledged: BTreeMap<Rank, u32>,
    /// Members of the old epoch that cannot take part, with their reasons.
    refusals: BTreeMap<Rank, String>,
    /// Members of the old epoch that were asked to prepare, by session.
    prepared: BTreeMap<Rank, SessionId>,
    /// The notifications in progress.
    notifications: BTreeMap<Rank, Notification>,
    /// Members of the old epoch that were sent the first operation, by session.
    begun_old: BTreeMap<Rank, SessionId>,
    /// Members of the new epoch that were sent the first operation, by session.
    begun_new: BTreeMap<Rank, SessionId>,
    /// The reason for a requested cancellation.
    cancel_reason: Option<String>,
    /// True if a former member knows the new epoch's key.
    key_is_known: bool,
}

impl Change {
    /// Starts a change `now`, or resumes one that was decided before the controller restarted. New
    /// members get time to join only if operations have begun; otherwise all members are awaited
    /// anyway.
    pub fn new(origin: &Origin, timers: MemberTimers, now: Instant) -> Self {
        let succession = Arc::clone(&origin.succession);
        let phase = match origin.first {
            Some(first) => Phase::Decided(first),
            None if origin.has_begun && succession.newcomers().next().is_some() => Phase::Gathering,
            None => Phase::Asking,
        };
        Change {
            asking: asking(&succession, timers.answer),
            succession,
            options: origin.options,
            phase,
            since: now,
            timers,
            acknowledged: BTreeMap::new(),
            refusals: BTreeMap::new(),
            prepared: BTreeMap::new(),
            notifications: BTreeMap::new(),
            begun_old: BTreeMap::new(),
            begun_new: BTreeMap::new(),
            cancel_reason: None,
            key_is_known: false,
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

    /// The options of the change.
    pub fn options(&self) -> ChangeOptions {
        self.options
    }

    /// Records that a member of the old epoch begins no operation from `operation` on before the
    /// decision.
    pub fn acknowledged(&mut self, rank: Rank, operation: u32) {
        // Ignored after the decision, which these acknowledgements made.
        if self.phase == Phase::Asking {
            self.acknowledged.insert(rank, operation);
        }
    }

    /// Records that a member of the old epoch cannot take part.
    pub fn refused(&mut self, rank: Rank, reason: String) {
        self.refusals.insert(rank, reason);
    }

    /// Records that a member's notification waits for room in the queue; the member is not lost for
    /// that.
    pub fn queued(&mut self, rank: Rank) {
        if self.phase == Phase::Asking {
            self.notifications.insert(rank, Notification::Queued);
        }
    }

    /// Records that a notification was sent. Returns true if the change only waits for this member
    /// now, so that its deadline changes.
    pub fn notified(&mut self, rank: Rank, now: Instant) -> bool {
        if self.phase != Phase::Asking {
            return false;
        }
        self.notifications.insert(rank, Notification::Sent(now));
        now >= self.since + self.asking
    }

    /// Requests a cancellation. It takes effect with the next step, unless the change is decided by
    /// then.
    pub fn request_cancel(&mut self, reason: &str) {
        self.cancel_reason = Some(reason.to_owned());
    }

    /// Replaces the new epoch by another one with the same members, unless the change is decided by then: a new member
    /// left, and knows the key.
    pub fn renew(&mut self) {
        self.key_is_known = true;
    }

    /// True if a cancellation is requested.
    pub fn is_cancel_requested(&self) -> bool {
        self.cancel_reason.is_some()
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
                Phase::Gathering => self.options.join,
                Phase::Asking if now < self.since + self.asking => self.asking,
                Phase::Asking => {
                    let ends = self.missing().map(|rank| self.time_to_acknowledge(rank));
                    ends.min().unwrap_or(self.asking)
                }
                Phase::Decided(_) if now < self.since + self.timers.reconnect => {
                    self.timers.reconnect
                }
                Phase::Decided(_) if now < self.since + SWITCHOVER => SWITCHOVER,
                Phase::Decided(_) => SLOW_SWITCHOVER,
            }
    }

    /// Surviving members that have not acknowledged.
    fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        let survivors = self.succession.survivors().map(|(old, _)| old);
        survivors.filter(|old| !self.acknowledged.contains_key(old))
    }

    /// A member's time to acknowledge, counted from when all were asked.
    fn time_to_acknowledge(&self, rank: Rank) -> Duration {
        match self.notifications.get(&rank) {
            None => self.asking,
            Some(Notification::Queued) => LONGEST,
            Some(Notification::Sent(at)) => {
                let sent = at.saturating_duration_since(self.since);
                self.asking.max(sent + self.timers.answer).min(LONGEST)
            }
        }
    }

    /// Returns the actions that are due `now`.
    pub fn steps(&mut self, now: Instant, view: &View) -> Vec<ChangeAction> {
        if let (Some(reason), Phase::Gathering | Phase::Asking) = (&self.cancel_reason, self.phase)
        {
            return vec![ChangeAction::Cancel(reason.clone())];
        }
        if self.key_is_known && matches!(self.phase, Phase::Gathering | Phase::Asking) {
            return vec![ChangeAction::LeaveOut(Vec::new())];
        }
        if self.phase == Phase::Gathering {
            let is_missing = |rank: &Rank| !view.new.contains_key(rank);
            let missing = self.succession.newcomers().find(is_missing);
            match missing {
                Some(rank) if now >= self.due(now) => {
                    let waited = self.options.join.as_secs_f32();
                    let reason = format!("rank {rank} did not join within {waited} s");
                    return vec![ChangeAction::Cancel(reason)];
                }
                Some(_) => return Vec::new(),
                None => self.enter(Phase::Asking, now),
            }
        }
        match self.phase {
            Phase::Gathering => Vec::new(),
            Phase::Asking => self.ask(now, view),
            Phase::Decided(_) => self.switch_over(now, view),
        }
    }

    /// Rejects acknowledgements that are implausibly far ahead; all members would wait for an
    /// operation that never comes.
    fn refuse_far_operations(&mut self) {
        let mut all: Vec<u32> = self.acknowledged.values().copied().collect();
        all.sort_unstable();
        let Some(median) = all.get(all.len().saturating_sub(1) / 2).copied() else {
            return;
        };
        let is_far = |(_, operation): &(Rank, u32)| *operation > median.saturating_add(MOST_AHEAD);
        let all = self
            .acknowledged
            .iter()
            .map(|(rank, operation)| (*rank, *operation));
        let far: Vec<(Rank, u32)> = all.filter(is_far).collect();
        for (rank, operation) in far {
            self.acknowledged.remove(&rank);
            let reason =
                format!("it acknowledged operation {operation}, but others are at {median}");
            self.refusals.insert(rank, reason);
        }
    }

    fn ask(&mut self, now: Instant, view: &View) -> Vec<ChangeAction> {
        let has_acknowledged = |rank: &Rank| self.acknowledged.contains_key(rank);
        if (self.succession.survivors()).all(|(old, _)| has_acknowledged(&old)) {
            self.refuse_far_operations();
        }
        let missing: Vec<Rank> = self.missing().collect();
        if missing.is_empty() {
            // Includes members that are left out, if they answered: operations that they began
            // belong to the old epoch.
            let first = self.acknowledged.values().max().copied();
            return vec![ChangeAction::Decide(first.unwrap_or_default())];
        }
        // Drops the notifications of members that left.
        let is_there = |rank: &Rank| view.old.contains_key(rank);
        self.notifications
            .retain(|rank, it| *it != Notification::Queued || is_there(rank));
        let cannot = |rank: &Rank| self.refusals.contains_key(rank) || view.left.contains(rank);
        let is_late = |rank: &Rank| now >= self.since + self.time_to_acknowledge(*rank);
        let lost = missing
            .into_iter()
            .filter(|rank| cannot(rank) || is_late(rank));
        let is_queued = |rank: &Rank| {
            self.notifications.get(rank) == Some(&Notification::Queued) && !cannot(rank)
        };
        let (queued, lost): (Vec<Rank>, Vec<Rank>) = lost.partition(is_queued);
        if let Some(first) = lost.first() {
            return vec![match self.options.lost {
                Lost::LeaveOut => ChangeAction::LeaveOut(lost),
                Lost::Cancel => ChangeAction::Cancel(match self.refusals.get(first) {
                    Some(reason) => format!("rank {first} cannot change epochs: {reason}"),
                    None if view.left.contains(first) => format!("rank {first} has left"),
                    None => format!(
                        "rank {first} did not answer within {} s",
                        self.asking.as_secs()
                    ),
                }),
            }];
        }
        if let Some(first) = queued.first() {
            return vec![ChangeAction::Cancel(format!(
                "rank {first} could not be notified within {} s because of notifications about other changes",
                LONGEST.as_secs()
            ))];
        }
        let unprepared = newly(&mut self.prepared, &view.old);
        let is_over = now >= self.since + self.asking;
        for rank in &unprepared {
            match is_over {
                // A member that reconnects later gets its time from its notification on.
                true => self.notifications.insert(*rank, Notification::Sent(now)),
                false => self.notifications.remove(rank),
            };
        }
        unprepared.into_iter().map(ChangeAction::Prepare).collect()
    }

    fn switch_over(&mut self, now: Instant, view: &View) -> Vec<ChangeAction> {
        let has_come = |(old, new)| view.new.contains_key(&new) || view.left.contains(&old);
        let have_come = self.succession.survivors().all(has_come);
        let reconnect_expired = now >= self.since + self.timers.reconnect;
        let is_in_old_epoch = |(old, _)| view.old.contains_key(&old);
        let bound = match self.succession.survivors().any(is_in_old_epoch) {
            true => SLOW_SWITCHOVER,
            false => SWITCHOVER,
        };
        let mut steps = self.notify(view);
        // Members that are left out also finish their last operation.
        if (view.old.is_empty() && (have_come || reconnect_expired)) || now >= self.since + bound {
            steps.push(ChangeAction::Fence);
        }
        steps
    }

    fn notify(&mut self, view: &View) -> Vec<ChangeAction> {
        let unprepared: BTreeSet<Rank> = newly(&mut self.prepared, &view.old).into_iter().collect();
        let old = newly(&mut self.begun_old, &view.old);
        let newcomers: BTreeSet<Rank> = self.succession.newcomers().collect();
        let new = newly(&mut self.begun_new, &view.new);
        let new = new.into_iter().filter(|rank| newcomers.contains(rank));
        let old = old.into_iter().flat_map(|rank| {
            let prepare = unprepared
                .contains(&rank)
                .then_some(ChangeAction::Prepare(rank));
            prepare.into_iter().chain([ChangeAction::Begin(rank)])
        });
        old.chain(new.map(ChangeAction::Welcome)).collect()
    }
}

/// Time for members to acknowledge; each survivor's notification lists all members.
fn asking(succession: &Succession, answer: Duration) -> Duration {
    let entries = succession.survivors().count() * succession.was().len();
    let sending =
        NOTIFICATION_PER_MEMBER.saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX));
    (answer + sending).min(LONGEST)
}

/// Returns the ranks that were not notified in their current session, and marks them.
fn newly(known: &mut BTreeMap<Rank, SessionId>, here: &BTreeMap<Rank, SessionId>) -> Vec<Rank> {
    let is_new = |(rank, session): &(&Rank, &SessionId)| known.get(rank) != Some(session);
    let new: Vec<Rank> = (here.iter())
        .filter(is_new)
        .map(|(rank, _)| *rank)
        .collect();
    *known = here.clone();
    new
}
