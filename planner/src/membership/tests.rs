//! Random membership changes with members that crash, refuse, reconnect and are slow, new members
//! that do so too, epochs that cannot be withdrawn at once, and controller restarts. In all cases,
//! all survivors run each operation in the same epoch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ultima_api::operation_gate::{Admission, DECISION_TIMEOUT, OperationGate};

use super::change::LONGEST;
use super::*;
use crate::fabric::HostId;
use crate::job::{JobId, Rank};

/// A message to a member, which it answers.
#[derive(Clone, Copy, Debug)]
enum Message {
    Prepare(u16),
    Begin(u16, u32),
    Cancel,
    Acknowledge(u16, u32),
    Refusal(u16),
}

/// A member of the old epoch.
struct Member {
    alive: bool,
    /// True if it cannot prepare.
    refuses: bool,
    gate: OperationGate,
    next: u32,
    /// True if it runs operations of the new epoch.
    over: bool,
    session: Option<SessionId>,
    to: VecDeque<Message>,
    from: VecDeque<Message>,
}

/// The committed state, which survives a controller restart.
#[derive(Clone)]
struct Committed {
    succession: Succession,
    first: Option<u32>,
}

struct World {
    now: Instant,
    members: Vec<Member>,
    serial: u64,
    options: ChangeOptions,
    /// True if operations had begun before the change.
    has_begun: bool,
    /// New members that joined, their sessions, and the first operation that they were sent.
    newcomers: BTreeMap<Rank, (Option<SessionId>, Option<u32>)>,
    committed: Option<Committed>,
    change: Option<Change>,
    /// A withdrawal of the new epoch that has not succeeded yet.
    withdrawal: Option<ChangeAction>,
    /// Members that are no longer in the old epoch because the change was made without them.
    left_out: BTreeSet<Rank>,
    last_number: u16,
    is_over: bool,
    /// By operation, the ranks that ran it, and whether in the new epoch.
    ran: BTreeMap<u32, Vec<(Rank, bool)>>,
}

impl World {
    fn new(members: usize, to: &[HostId], lost: Lost, has_begun: bool) -> Self {
        let start = Instant::now();
        let from: Vec<HostId> = (0..members).map(HostId).collect();
        let succession = Succession::new(&from, |_| true, to, |rank| format!("{rank}"));
        let member = |_| Member {
            alive: true,
            refuses: false,
            gate: OperationGate::default(),
            next: 0,
            over: false,
            session: None,
            to: VecDeque::new(),
            from: VecDeque::new(),
        };
        let options = ChangeOptions {
            join: Duration::from_secs(60),
            lost,
        };
        let mut world = World {
            now: start,
            members: (0..members).map(member).collect(),
            serial: 0,
            options,
            has_begun,
            newcomers: BTreeMap::new(),
            committed: None,
            change: None,
            withdrawal: None,
            left_out: BTreeSet::new(),
            last_number: 0,
            is_over: false,
            ran: BTreeMap::new(),
        };
        (0..members).for_each(|rank| world.connect(rank));
        // All begin, if operations have begun.
        (0..members).for_each(|rank| world.run(rank));
        world.propose(succession);
        world
    }

    fn propose(&mut self, succession: Succession) {
        self.last_number += 1;
        self.newcomers.clear();
        self.committed = Some(Committed {
            succession,
            first: None,
        });
        self.resume();
    }

    /// The work of a restarted controller.
    fn resume(&mut self) {
        self.withdrawal = None;
        self.change = self.committed.clone().map(|committed| {
            let origin = Origin {
                of: JobId(1),
                succession: committed.succession.into(),
                options: self.options,
                has_begun: self.has_begun,
                first: committed.first,
            };
            Change::new(&origin, MemberTimers::default(), self.now)
        });
    }

    fn restart(&mut self) {
        for rank in 0..self.members.len() {
            self.disconnect(rank);
        }
        let newcomers = self.newcomers.clone();
        for (rank, (_, first)) in newcomers {
            self.serial += 1;
            let session = Some(SessionId(self.serial));
            self.newcomers.insert(rank, (session, first));
        }
        self.resume();
    }

    fn disconnect(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        member.session = None;
        member.to.clear();
        member.from.clear();
    }

    fn connect(&mut self, rank: usize) {
        self.disconnect(rank);
        if !self.members[rank].alive {
            return;
        }
        let first = first_of(&self.committed);
        let member = &mut self.members[rank];
        if let (true, Some(first), false) = (self.is_over, first, member.over) {
            // A member of a removed epoch only gets missed messages; without a place in the next
            // epoch, not even those.
            let number = self.last_number;
            let succession = &self.committed.as_ref().unwrap().succession;
            match succession.becomes(Rank(rank as u16)) {
                Some(_) => {
                    (member.to).extend([Message::Prepare(number), Message::Begin(number, first)])
                }
                None => member.alive = false,
            }
            return;
        }
        self.serial += 1;
        let member = &mut self.members[rank];
        member.session = Some(SessionId(self.serial));
        if self.change.is_none() {
            member.to.push_back(Message::Cancel);
        }
    }

    /// Runs a member's next operation, if it may.
    fn run(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if !member.alive {
            return;
        }
        if !member.over {
            let admission = match self.has_begun {
                true => member.gate.admit(member.next),
                // It waits for the others, in one epoch or the other.
                false if member.gate.is_over(0) => Admission::NextEpoch,
                false => Admission::Wait,
            };
            match admission {
                Admission::Wait => return,
                Admission::Begin => {}
                Admission::NextEpoch => {
                    let succession = &self.committed.as_ref().unwrap().succession;
                    if succession.becomes(Rank(rank as u16)).is_none() {
                        member.alive = false;
                        return self.disconnect(rank);
                    }
                    member.over = true;
                    self.connect(rank);
                }
            }
        }
        if !self.has_begun {
            return;
        }
        let member = &mut self.members[rank];
        let ran = (Rank(rank as u16), member.over);
        self.ran.entry(member.next).or_default().push(ran);
        member.next += 1;
    }

    fn deliver(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        match member.to.pop_front() {
            _ if !member.alive || member.over => {}
            Some(Message::Prepare(number)) => {
                let is_open = member.gate.change() == Some(number);
                if member.refuses && !is_open {
                    member.from.push_back(Message::Refusal(number));
                } else if let Some(until) = member.gate.acknowledge(number) {
                    member.from.push_back(Message::Acknowledge(number, until));
                }
            }
            Some(Message::Begin(number, first)) => member.gate.decide(number, first),
            Some(Message::Cancel) => member.gate.cancel(),
            _ => {}
        }
    }

    fn answer(&mut self, rank: usize) {
        let message = self.members[rank].from.pop_front();
        let Some(change) = &mut self.change else {
            return;
        };
        let rank = Rank(rank as u16);
        match message {
            Some(Message::Acknowledge(number, until)) if number == self.last_number => {
                change.acknowledged(rank, until);
            }
            Some(Message::Refusal(number)) if number == self.last_number => {
                change.refused(rank, "it cannot".into());
            }
            _ => {}
        }
    }

    fn view(&self) -> View {
        let mut view = View::default();
        let succession = &self.committed.as_ref().unwrap().succession;
        for (member, rank) in self.members.iter().zip((0..).map(Rank)) {
            match (member.session, member.over) {
                (Some(at), false) => drop(view.old.insert(rank, at)),
                (Some(at), true) => drop(view.new.insert(succession.becomes(rank).unwrap(), at)),
                (None, _) => {}
            }
        }
        let newcomers = self.newcomers.iter();
        view.new
            .extend(newcomers.filter_map(|(rank, (at, _))| Some((*rank, (*at)?))));
        view
    }

    /// Runs the controller once. With `dies` it crashes right after committing a decision; with
    /// `fails` it cannot withdraw anything.
    fn step(&mut self, dies: bool, fails: bool) {
        if let Some(step) = self.withdrawal.take() {
            return self.withdraw(step, fails);
        }
        let view = match &self.change {
            Some(_) => self.view(),
            None => return,
        };
        let change = self.change.as_mut().unwrap();
        let steps = change.steps(self.now, &view);
        let first = match change.phase() {
            Phase::Decided(first) => Some(first),
            _ => None,
        };
        let number = self.last_number;
        for step in steps {
            match step {
                ChangeAction::Prepare(rank) => self.send(rank, Message::Prepare(number)),
                ChangeAction::Begin(rank) => {
                    self.send(rank, Message::Begin(number, first.unwrap()))
                }
                ChangeAction::Welcome(rank) => self.newcomers.get_mut(&rank).unwrap().1 = first,
                ChangeAction::Decide(first) => {
                    self.committed.as_mut().unwrap().first = Some(first);
                    if dies {
                        return self.restart();
                    }
                    self.change.as_mut().unwrap().decided(first, self.now);
                }
                ChangeAction::LeaveOut(_) | ChangeAction::Cancel(_) => {
                    return self.withdraw(step, fails);
                }
                ChangeAction::Fence => {
                    self.is_over = true;
                    self.change = None;
                    return;
                }
            }
        }
    }

    fn withdraw(&mut self, step: ChangeAction, fails: bool) {
        if fails {
            self.withdrawal = Some(step);
            return;
        }
        for rank in 0..self.members.len() {
            self.send(Rank(rank as u16), Message::Cancel);
        }
        match step {
            ChangeAction::LeaveOut(ranks) => {
                self.left_out.extend(ranks);
                let stay: Vec<HostId> = (0..self.members.len())
                    .filter(|rank| !self.left_out.contains(&Rank(*rank as u16)))
                    .map(HostId)
                    .collect();
                let from: Vec<HostId> = (0..self.members.len()).map(HostId).collect();
                let why = |rank: Rank| rank.to_string();
                self.propose(Succession::new(&from, |_| true, &stay, why));
            }
            _ => (self.committed, self.change, self.is_over) = (None, None, true),
        }
    }

    fn send(&mut self, rank: Rank, message: Message) {
        let member = &mut self.members[usize::from(rank.0)];
        if member.session.is_some() {
            member.to.push_back(message);
        }
    }

    fn join(&mut self, at: usize) {
        let Some(committed) = &self.committed else {
            return;
        };
        let newcomers: Vec<Rank> = committed.succession.newcomers().collect();
        let first = committed.first;
        if let Some(rank) = newcomers.get(at % newcomers.len().max(1)) {
            self.serial += 1;
            let (session, sent) = self.newcomers.entry(*rank).or_default();
            if session.is_none() {
                // Late members are notified at once.
                (*session, *sent) = (Some(SessionId(self.serial)), sent.or(first));
            }
        }
    }

    fn disconnect_newcomer(&mut self, at: usize) {
        let one = at % self.newcomers.len().max(1);
        if let Some((session, _)) = self.newcomers.values_mut().nth(one) {
            *session = None;
        }
    }

    /// Runs until the change is complete, without further failures.
    fn complete(&mut self) {
        for _ in 0..40 {
            for rank in 0..self.members.len() {
                if self.members[rank].session.is_none() {
                    self.connect(rank);
                }
                while !self.members[rank].to.is_empty() {
                    self.deliver(rank);
                }
                while !self.members[rank].from.is_empty() {
                    self.answer(rank);
                }
                self.join(rank);
                self.run(rank);
            }
            self.step(false, false);
            if let Some(change) = &self.change
                && !matches!(change.phase(), Phase::Asking)
            {
                continue;
            }
            // Crashed members are not awaited.
            self.now += Duration::from_secs(1);
        }
        self.now += Duration::from_secs(601);
        self.step(false, false);
        for rank in 0..self.members.len() {
            if self.members[rank].session.is_none() {
                self.connect(rank);
            }
            while !self.members[rank].to.is_empty() {
                self.deliver(rank);
            }
            // The remaining operations of its epoch, and the first of the next.
            let most = first_of(&self.committed).unwrap_or_default();
            (0..=most).for_each(|_| self.run(rank));
        }
    }
}

fn first_of(committed: &Option<Committed>) -> Option<u32> {
    committed.as_ref().and_then(|committed| committed.first)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Run(usize),
    Deliver(usize),
    Answer(usize),
    Disconnect(usize),
    Connect(usize),
    Kill(usize),
    Refuse(usize),
    Join(usize),
    DisconnectNewcomer(usize),
    Step { dies: bool, fails: bool },
    Restart,
    Pass(u64),
}

fn events(members: usize) -> impl Strategy<Value = Vec<Event>> {
    let member = 0..members;
    let event = prop_oneof![
        20 => member.clone().prop_map(Event::Run),
        20 => member.clone().prop_map(Event::Deliver),
        20 => member.clone().prop_map(Event::Answer),
        2 => member.clone().prop_map(Event::Disconnect),
        4 => member.clone().prop_map(Event::Connect),
        1 => member.clone().prop_map(Event::Kill),
        1 => member.clone().prop_map(Event::Refuse),
        4 => member.clone().prop_map(Event::Join),
        1 => member.prop_map(Event::DisconnectNewcomer),
        20 => (prop::bool::weighted(0.1), prop::bool::weighted(0.3))
            .prop_map(|(dies, fails)| Event::Step { dies, fails }),
        1 => Just(Event::Restart),
        2 => (0..4000u64).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(200, 10000)))]
    #[test]
    fn survivors_run_each_operation_in_the_same_epoch(
        (members, to, leaves_out, has_begun, events) in (2usize..6).prop_flat_map(|members| {
            let hosts: Vec<HostId> = (0..members + 2).map(HostId).collect();
            let to = prop::sample::subsequence(hosts, 2..=members).prop_shuffle();
            let has_begun = prop::bool::weighted(0.8);
            (Just(members), to, any::<bool>(), has_begun, events(members))
        })
    ) {
        let lost = if leaves_out { Lost::LeaveOut } else { Lost::Cancel };
        let mut world = World::new(members, &to, lost, has_begun);
        for event in events {
            match event {
                Event::Run(rank) => world.run(rank),
                Event::Deliver(rank) => world.deliver(rank),
                Event::Answer(rank) => world.answer(rank),
                Event::Disconnect(rank) => world.disconnect(rank),
                Event::Connect(rank) => world.connect(rank),
                Event::Kill(rank) => {
                    world.members[rank].alive = false;
                    world.disconnect(rank);
                }
                Event::Refuse(rank) => world.members[rank].refuses = true,
                Event::Join(at) => world.join(at),
                Event::DisconnectNewcomer(at) => world.disconnect_newcomer(at),
                Event::Step { dies, fails } => world.step(dies, fails),
                Event::Restart => world.restart(),
                Event::Pass(millis) => world.now += Duration::from_millis(millis),
            }
        }
        world.complete();
        prop_assert!(world.is_over, "the change ends: {:?}", world.change);
        let first = first_of(&world.committed);
        prop_assert!(has_begun || first.is_none_or(|first| first == 0), "{first:?}");
        let stays = |rank: &Rank| match &world.committed {
            Some(committed) => committed.succession.becomes(*rank).is_some(),
            None => true,
        };
        for (operation, ran) in &world.ran {
            for (rank, over) in ran.iter().filter(|(rank, _)| stays(rank)) {
                let is_new = first.is_some_and(|first| *operation >= first);
                prop_assert_eq!(*over, is_new, "rank {} in operation {}", rank, operation);
            }
        }
        // New members begin with the same operation.
        for (_, sent) in world.newcomers.values() {
            prop_assert_eq!(*sent, first);
        }
        // No live member waits forever.
        for (member, rank) in world.members.iter().zip((0..).map(Rank)) {
            prop_assert!(!member.alive || member.gate.change().is_none() || member.over, "rank {}", rank);
        }
    }
}

/// A change after operations have begun.
fn begun(
    succession: Succession,
    options: ChangeOptions,
    first: Option<u32>,
    now: Instant,
) -> Change {
    let origin = Origin {
        of: JobId(1),
        succession: succession.into(),
        options,
        has_begun: true,
        first,
    };
    Change::new(&origin, MemberTimers::default(), now)
}

/// A change in which three members stay, after operations have begun. It is cancelled if one of
/// them is lost.
fn of_three(now: Instant) -> Change {
    let hosts = [0, 1, 2].map(HostId);
    let succession = Succession::new(&hosts, |_| true, &hosts, |_| String::new());
    let options = ChangeOptions {
        join: Duration::ZERO,
        lost: Lost::Cancel,
    };
    begun(succession, options, None, now)
}

#[test]
fn implausible_acknowledgements_are_rejected() {
    let now = Instant::now();
    let mut change = of_three(now);
    for (rank, operation) in [(0, 7), (1, u32::MAX), (2, 9)] {
        change.acknowledged(Rank(rank), operation);
    }
    let reason =
        "rank 1 cannot change epochs: it acknowledged operation 4294967295, but others are at 9";
    assert_eq!(
        change.steps(now, &View::default()),
        [ChangeAction::Cancel(reason.into())]
    );
}

#[test]
fn slow_members_get_more_time_than_absent_ones() {
    let hosts = [0, 1].map(HostId);
    let succession = Succession::new(&hosts, |rank| rank == Rank(0), &hosts, |_| String::new());
    let options = ChangeOptions {
        join: Duration::ZERO,
        lost: Lost::Cancel,
    };
    let now = Instant::now();
    let mut change = begun(succession, options, Some(7), now);
    let of = |rank: u16| View {
        old: [(Rank(rank), SessionId(1))].into(),
        ..View::default()
    };
    let minute = now + Duration::from_secs(60);
    let fences = |steps: Vec<ChangeAction>| steps.contains(&ChangeAction::Fence);
    assert!(!fences(change.steps(minute, &of(0))));
    assert_eq!(change.due(minute), now + Duration::from_secs(600));
    assert!(fences(change.clone().steps(change.due(minute), &of(0))));
    // A member that is left out, or reconnects with another session.
    assert!(fences(change.steps(minute, &of(1))));
}

#[test]
fn changes_can_be_cancelled_until_they_are_decided() {
    let now = Instant::now();
    let mut change = of_three(now);
    let mut decided = change.clone();
    change.request_cancel("why");
    let view = View::default();
    assert_eq!(
        change.steps(now, &view),
        [ChangeAction::Cancel("why".into())]
    );
    decided.decided(5, now);
    decided.request_cancel("why");
    assert_eq!(decided.steps(now, &view), []);
}

/// Members that were notified before the decision are only sent the first operation.
#[test]
fn members_are_notified_once_per_session() {
    let now = Instant::now();
    let mut change = of_three(now);
    let view = |attendances: [u64; 3]| {
        let here = attendances.into_iter().zip(0..);
        View {
            old: here.map(|(at, rank)| (Rank(rank), SessionId(at))).collect(),
            ..View::default()
        }
    };
    let [zero, one, two] = [0, 1, 2].map(Rank);
    let prepare = [zero, one, two].map(ChangeAction::Prepare);
    assert_eq!(change.steps(now, &view([1, 2, 3])), prepare);
    assert_eq!(change.steps(now, &view([1, 2, 3])), []);
    // A member lost its connection, and its notification with it.
    assert_eq!(
        change.steps(now, &view([1, 4, 3])),
        [ChangeAction::Prepare(one)]
    );
    for rank in [zero, one, two] {
        change.acknowledged(rank, 5);
    }
    assert_eq!(
        change.steps(now, &view([1, 4, 3])),
        [ChangeAction::Decide(5)]
    );
    change.decided(5, now);
    let expected = [
        ChangeAction::Begin(zero),
        ChangeAction::Begin(one),
        ChangeAction::Prepare(two),
        ChangeAction::Begin(two),
    ];
    assert_eq!(change.steps(now, &view([1, 4, 6])), expected);
    assert_eq!(change.steps(now, &view([1, 4, 6])), []);
    let again = [ChangeAction::Prepare(zero), ChangeAction::Begin(zero)];
    assert_eq!(change.steps(now, &view([7, 4, 6])), again);
}

/// Each notification lists all members.
#[test]
fn more_members_get_more_time() {
    let options = ChangeOptions {
        join: Duration::ZERO,
        lost: Lost::Cancel,
    };
    let now = Instant::now();
    let takes = |members: usize| {
        let hosts: Vec<HostId> = (0..members).map(HostId).collect();
        let succession = Succession::new(&hosts, |_| true, &hosts, |_| String::new());
        let mut change = begun(succession, options, None, now);
        let due = change.due(now);
        let [ChangeAction::Cancel(reason)] = &change.steps(due, &View::default())[..] else {
            panic!("no member has acknowledged");
        };
        (due - now, reason.clone())
    };
    let (short, reason) = takes(2);
    assert_eq!(short, Duration::from_micros(3_000_004));
    assert_eq!(reason, "rank 0 did not answer within 3 s");
    let (long, reason) = takes(4000);
    assert_eq!(long, Duration::from_secs(19));
    assert_eq!(reason, "rank 0 did not answer within 19 s");
    // The first member that acknowledged does not wait forever.
    assert_eq!(takes(usize::from(u16::MAX)).0, LONGEST);
    assert!(LONGEST < DECISION_TIMEOUT);
}

/// Two members are asked. One's notification waits for room in the queue; the other does not
/// answer.
#[test]
fn members_are_not_lost_for_unsent_notifications() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let here = |ranks: &[u16]| View {
        old: (ranks.iter())
            .map(|rank| (Rank(*rank), SessionId(1)))
            .collect(),
        ..View::default()
    };
    let asked = |lost| {
        let hosts = [0, 1, 2].map(HostId);
        let succession = Succession::new(&hosts, |_| true, &hosts, |_| String::new());
        let join = Duration::ZERO;
        let mut change = begun(succession, ChangeOptions { join, lost }, None, now);
        assert_eq!(change.steps(now, &here(&[0, 1, 2])).len(), 3);
        change.acknowledged(Rank(0), 5);
        change.queued(Rank(2));
        change
    };
    let all = here(&[0, 1, 2]);
    let mut change = asked(Lost::LeaveOut);
    let left_out = |rank| [ChangeAction::LeaveOut(vec![Rank(rank)])];
    assert_eq!(change.clone().steps(at(4), &all), left_out(1));
    change.acknowledged(Rank(1), 5);
    assert_eq!(
        (change.steps(at(4), &all), change.due(at(4))),
        (vec![], at(45))
    );
    // It disconnects meanwhile, and is lost like any other.
    assert_eq!(change.clone().steps(at(5), &here(&[0, 1])), left_out(2));
    // It is notified late, and gets its time from then on.
    let mut notified = change.clone();
    assert!(notified.notified(Rank(2), at(20)));
    assert_eq!(
        (notified.steps(at(22), &all), notified.due(at(22))),
        (vec![], at(23))
    );
    assert_eq!(notified.steps(at(23), &all), left_out(2));
    // It is never notified, and keeps its rank.
    let [ChangeAction::Cancel(reason)] = &change.steps(at(45), &all)[..] else {
        panic!("others have waited long enough");
    };
    let unsent = "rank 2 could not be notified within 45 s";
    assert!(reason.starts_with(unsent), "{reason}");

    // A member that is notified at once has as much time as the others.
    let mut change = asked(Lost::Cancel);
    assert!(!change.notified(Rank(2), at(0)));
    assert_eq!(change.due(at(0)), now + Duration::from_micros(3_000_009));
}
