//! The controller's side of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Succession;
use crate::job::Rank;

/// How long members that stay may take to pledge, once they have been told: each at least so long.
const ASKING: Duration = Duration::from_secs(3);
/// How long they may take to be told, for each member that each is told of: some 60 bytes, which a link of 1 Gbit/s has carried in half of that.
const TELLING: Duration = Duration::from_micros(1);
/// How long a member that has pledged waits to be told what comes of it: the controller's disk takes its time, and one that has ended in between is
/// started again, or another one takes its place.
pub const PLEDGED: Duration = Duration::from_secs(60);
/// How long all of the asking may take: who has pledged first still waits then, and for a while.
pub(super) const LONGEST: Duration = Duration::from_secs(PLEDGED.as_secs() - 15);
/// How long members that are there may take to go over before the old epoch is taken off the switches: an operation or two, and what is
/// computed between them.
const GOING_OVER: Duration = Duration::from_secs(60);
/// The same where some of them are in touch and still run what is of the old epoch: operations of slow jobs take minutes.
const GOING_OVER_SLOWLY: Duration = Duration::from_secs(600);
/// How long one is waited for that is not there: who has lost its connection comes back within a second.
const COMING_BACK: Duration = Duration::from_secs(3);

/// How many operations a pledge may be beyond those of most others: ranks that run together are a few apart.
const MOST_AHEAD: u32 = 1000;

/// What happens where a member that should stay does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    /// The change is called off; the old epoch goes on.
    #[default]
    CallOff,
    /// It is made without that member.
    LeaveOut,
}

/// How a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long newcomers may take to join.
    pub join: Duration,
    /// What becomes of a member that does not answer.
    pub lost: Lost,
}

/// One time that a member attends: another when it has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attendance(pub u64);

/// Who is in touch with the controller.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Members of the old epoch.
    pub old: BTreeMap<Rank, Attendance>,
    /// Members of the new one.
    pub new: BTreeMap<Rank, Attendance>,
    /// Ranks of the old epoch that have left by themselves.
    pub left: BTreeSet<Rank>,
}

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Newcomers join.
    Gathering,
    /// Members that stay pledge.
    Asking,
    /// The new epoch's first operation is kept.
    Decided(u32),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A member of the old epoch is told what becomes of it, and asked to pledge.
    Prepare(Rank),
    /// A member of the old epoch is told the new one's first operation.
    Begin(Rank),
    /// A newcomer is.
    Welcome(Rank),
    /// This operation is to be kept as the new epoch's first; then [`Change::decided`].
    Decide(u32),
    /// The new epoch is to be taken back, and these members' places with it: they did not answer.
    LeaveOut(Vec<Rank>),
    /// The new epoch is to be taken back, for this reason.
    CallOff(String),
    /// The old epoch is to be taken off the switches. The change is over.
    Fence,
}

/// How far a member is told what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// It would take it, and waits for room beside what others are told.
    Waits,
    /// It has gone to it.
    Told(Instant),
}

/// A change of one job's members.
#[derive(Clone, Debug)]
pub struct Change {
    succession: Arc<Succession>,
    terms: Terms,
    phase: Phase,
    since: Instant,
    /// How long members may take to pledge.
    asking: Duration,
    pledges: BTreeMap<Rank, u32>,
    /// Members of the old epoch that said why they cannot.
    refusals: BTreeMap<Rank, String>,
    /// Members of the old epoch that were told what becomes of them.
    prepared: BTreeMap<Rank, Attendance>,
    /// Those of them that take what they are told.
    telling: BTreeMap<Rank, Telling>,
    /// Members of either epoch that were told where the new one begins.
    told_old: BTreeMap<Rank, Attendance>,
    told_new: BTreeMap<Rank, Attendance>,
    /// Why somebody wants it to be called off.
    unwanted: Option<String>,
}

impl Change {
    /// One that begins `now`. Where operations have not begun, newcomers are not waited for: all are.
    pub fn new(succession: Arc<Succession>, terms: Terms, has_begun: bool, now: Instant) -> Self {
        let gathers = has_begun && succession.newcomers().next().is_some();
        let phase = match gathers {
            true => Phase::Gathering,
            false => Phase::Asking,
        };
        Change::at(phase, succession, terms, now)
    }

    /// One that had been decided when the controller ended.
    pub fn resumed(succession: Arc<Succession>, terms: Terms, first: u32, now: Instant) -> Self {
        Change::at(Phase::Decided(first), succession, terms, now)
    }

    fn at(phase: Phase, succession: Arc<Succession>, terms: Terms, now: Instant) -> Self {
        Change {
            asking: asking(&succession),
            succession,
            terms,
            phase,
            since: now,
            pledges: BTreeMap::new(),
            refusals: BTreeMap::new(),
            prepared: BTreeMap::new(),
            telling: BTreeMap::new(),
            told_old: BTreeMap::new(),
            told_new: BTreeMap::new(),
            unwanted: None,
        }
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What becomes of the members.
    pub fn succession(&self) -> &Succession {
        &self.succession
    }

    /// How it is made.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// A member of the old epoch begins nothing from `operation` on before it is told.
    pub fn pledged(&mut self, rank: Rank, operation: u32) {
        // Not any more once it is decided: that is how it was decided.
        if self.phase == Phase::Asking {
            self.pledges.insert(rank, operation);
        }
    }

    /// A member of the old epoch cannot go over.
    pub fn refused(&mut self, rank: Rank, reason: String) {
        self.refusals.insert(rank, reason);
    }

    /// A member of the old epoch would take what it is told, and waits for room beside what others are told: nobody is lost for that.
    pub fn waits(&mut self, rank: Rank) {
        if self.phase == Phase::Asking {
            self.telling.insert(rank, Telling::Waits);
        }
    }

    /// That has gone to it. Whether it is only waited for because of that by now: its time is another one then.
    pub fn told(&mut self, rank: Rank, now: Instant) -> bool {
        if self.phase != Phase::Asking {
            return false;
        }
        self.telling.insert(rank, Telling::Told(now));
        now >= self.since + self.asking
    }

    /// Somebody wants it to be called off, for this reason: it is with the next step, unless it is decided by then.
    pub fn unwanted(&mut self, reason: &str) {
        self.unwanted = Some(reason.to_owned());
    }

    /// The new epoch's first operation is kept.
    pub fn decided(&mut self, first: u32, now: Instant) {
        self.enter(Phase::Decided(first), now);
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = now;
    }

    /// When there is something to do although nothing happens.
    pub fn due(&self, now: Instant) -> Instant {
        self.since
            + match self.phase {
                Phase::Gathering => self.terms.join,
                Phase::Asking if now < self.since + self.asking => self.asking,
                Phase::Asking => {
                    let ends = self.missing().map(|rank| self.patience(rank));
                    ends.min().unwrap_or(self.asking)
                }
                Phase::Decided(_) if now < self.since + COMING_BACK => COMING_BACK,
                Phase::Decided(_) if now < self.since + GOING_OVER => GOING_OVER,
                Phase::Decided(_) => GOING_OVER_SLOWLY,
            }
    }

    /// Members that stay and have not pledged.
    fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        let survivors = self.succession.survivors().map(|(old, _)| old);
        survivors.filter(|old| !self.pledges.contains_key(old))
    }

    /// How long after all are asked a member may take to pledge.
    fn patience(&self, rank: Rank) -> Duration {
        match self.telling.get(&rank) {
            None => self.asking,
            Some(Telling::Waits) => LONGEST,
            Some(Telling::Told(at)) => {
                let told = at.saturating_duration_since(self.since);
                self.asking.max(told + ASKING).min(LONGEST)
            }
        }
    }

    /// What is to be done `now`.
    pub fn steps(&mut self, now: Instant, view: &View) -> Vec<Step> {
        if let (Some(reason), Phase::Gathering | Phase::Asking) = (&self.unwanted, self.phase) {
            return vec![Step::CallOff(reason.clone())];
        }
        if self.phase == Phase::Gathering {
            let is_missing = |rank: &Rank| !view.new.contains_key(rank);
            let missing = self.succession.newcomers().find(is_missing);
            match missing {
                Some(rank) if now >= self.due(now) => {
                    let waited = self.terms.join.as_secs_f32();
                    let reason = format!("rank {rank} did not come within {waited} s");
                    return vec![Step::CallOff(reason)];
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

    /// Does not believe pledges that nobody can have come to: all would wait in vain for an operation that far.
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
            let reason =
                format!("it says that it is at operation {pledge}, and others at {median}");
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
            // Those who are left out, too, where they have answered: what they have begun is still of the old epoch.
            let first = self.pledges.values().max().copied();
            return vec![Step::Decide(first.unwrap_or_default())];
        }
        // Who has gone waits no more.
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
                Lost::CallOff => Step::CallOff(match self.refusals.get(first) {
                    Some(reason) => format!("rank {first} cannot go over: {reason}"),
                    None if view.left.contains(first) => format!("rank {first} has left"),
                    None => format!(
                        "rank {first} did not answer within {} s",
                        self.asking.as_secs()
                    ),
                }),
            }];
        }
        if let Some(first) = untold.first() {
            return vec![Step::CallOff(format!(
                "rank {first} could not be told within {} s, as members are told so much of other changes",
                LONGEST.as_secs()
            ))];
        }
        let untold = newly(&mut self.prepared, &view.old);
        let is_over = now >= self.since + self.asking;
        for rank in &untold {
            match is_over {
                // Who is in touch again after that is not late before it is told.
                true => self.telling.insert(*rank, Telling::Told(now)),
                false => self.telling.remove(rank),
            };
        }
        untold.into_iter().map(Step::Prepare).collect()
    }

    fn go_over(&mut self, now: Instant, view: &View) -> Vec<Step> {
        let has_come = |(old, new)| view.new.contains_key(&new) || view.left.contains(&old);
        let have_come = self.succession.survivors().all(has_come);
        let not_back = now >= self.since + COMING_BACK;
        let is_on_its_way = |(old, _)| view.old.contains_key(&old);
        let bound = match self.succession.survivors().any(is_on_its_way) {
            true => GOING_OVER_SLOWLY,
            false => GOING_OVER,
        };
        let mut steps = self.tell(view);
        // Who is left out ends its last operation, too.
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

/// How long members may take to pledge: each that stays is told of all.
fn asking(succession: &Succession) -> Duration {
    let told = succession.survivors().count() * succession.was().len();
    let telling = TELLING.saturating_mul(u32::try_from(told).unwrap_or(u32::MAX));
    (ASKING + telling).min(LONGEST)
}

/// Who has not been told since it attends; it is now.
fn newly(told: &mut BTreeMap<Rank, Attendance>, here: &BTreeMap<Rank, Attendance>) -> Vec<Rank> {
    let untold = |(rank, attendance): &(&Rank, &Attendance)| told.get(rank) != Some(attendance);
    let untold: Vec<Rank> = (here.iter())
        .filter(untold)
        .map(|(rank, _)| *rank)
        .collect();
    *told = here.clone();
    untold
}
