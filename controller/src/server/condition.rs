//! The condition of the fabric's elements: down, drained, or back too recently to be used. It
//! decides nothing about trees and routes, which `moves` does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use ultima_planner::fabric::damping::{Damping, DampingConfig};
use ultima_planner::fabric::{Element, Fabric, Health, SwitchId, SwitchPort, TrunkId};
use ultima_planner::job::{Job, Member, Rank};

/// The observed state of the fabric's elements, and the operator's drains.
#[derive(Clone, Debug)]
pub struct Condition {
    damping_config: DampingConfig,
    /// Since when, as far as this controller knows.
    drained: BTreeMap<Element, SystemTime>,
    /// Drained elements that the fabric file lacks.
    unknown: BTreeSet<String>,
    /// The damping of elements that have failed.
    seen: BTreeMap<Element, Damping>,
    /// The failed elements that count as down.
    down: Health,
    /// Elements that lose the packets sent into them.
    lossy: BTreeSet<Element>,
    /// The last state in the event log of each element that is not up there. No path avoids a host port that is down.
    logged: BTreeMap<Element, Logged>,
    /// The changes since the last call of [`take_changes`](Self::take_changes).
    changes: Vec<StateChange>,
}

/// A state in the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The state.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
}

/// A change of an element's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// The element.
    pub element: Element,
    /// Its new state.
    pub state: State,
}

/// The state of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It may be used.
    Up,
    /// It is down.
    Down,
    /// It reports to be up, and loses packets.
    Lossy,
}

/// A problem of the port of a member's host.
#[derive(Clone, Copy, Debug)]
pub struct PortProblem {
    /// The member.
    pub rank: Rank,
    /// The port, or its switch.
    pub element: Element,
    /// True if the element is drained, false if it is down.
    pub is_drained: bool,
    /// Since when.
    pub since: SystemTime,
}

impl State {
    /// The reason of its events.
    pub fn reason(self) -> &'static str {
        match self {
            State::Up => "Up",
            State::Down => "Down",
            State::Lossy => "LosesPackets",
        }
    }
}

impl Condition {
    /// A fabric without failures, in which these elements are drained.
    pub fn new(fabric: &Fabric, damping_config: DampingConfig, drained: &[String]) -> Self {
        let mut unknown = BTreeSet::new();
        let known = drained.iter().filter_map(|name| {
            let element = fabric.element_named(name);
            let note = |error| {
                tracing::warn!(%error, "a drained element is no longer in the fabric; undrain it to remove it from the store");
                unknown.insert(name.clone());
            };
            element.map_err(note).ok()
        });
        let since = SystemTime::now();
        Condition {
            damping_config,
            drained: known.map(|element| (element, since)).collect(),
            unknown,
            seen: BTreeMap::new(),
            down: Health::default(),
            lossy: BTreeSet::new(),
            logged: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    /// Marks elements that are not up in the event log of an earlier leader. So a standby shows them, and the next leader plans
    /// jobs as they are until switches report their ports, and logs each change once. Returns the links that lose packets.
    pub fn restore(
        &mut self,
        fabric: &Fabric,
        logged: BTreeMap<Element, Logged>,
        now: Instant,
    ) -> Vec<TrunkId> {
        self.logged.clone_from(&logged);
        for (element, Logged { state, .. }) in logged {
            match (element, state) {
                (Element::Port(port), _) if fabric.trunk_at(port).is_none() => {}
                (Element::Trunk(_), _) | (_, State::Lossy) => self.mark_lossy(element, now),
                _ => self.mark_down(element, now),
            }
        }
        let trunk = |element: &Element| match *element {
            Element::Trunk(trunk) => Some(trunk),
            _ => None,
        };
        self.lossy.iter().filter_map(trunk).collect()
    }

    /// Notes a state for the event log. Returns false if the log has it.
    fn log(&mut self, element: Element, state: State) -> bool {
        let before = self.logged.get(&element).map_or(State::Up, |it| it.state);
        if before == state {
            return false;
        }
        let since = SystemTime::now();
        match state {
            State::Up => self.logged.remove(&element),
            State::Down | State::Lossy => self.logged.insert(element, Logged { state, since }),
        };
        self.changes.push(StateChange { element, state });
        true
    }

    /// True if the event log has an element as up.
    pub fn is_logged_up(&self, element: Element) -> bool {
        !self.logged.contains_key(&element)
    }

    /// Records that a host's port was seen up or down. Returns true if the observation is new.
    pub fn observe_host(&mut self, port: SwitchPort, is_up: bool) -> bool {
        let state = match is_up {
            true => State::Up,
            false => State::Down,
        };
        self.log(Element::Port(port), state)
    }

    /// Since when a host's port is down, also under earlier leaders; none if it is up.
    pub fn host_down_since(&self, port: SwitchPort) -> Option<SystemTime> {
        let logged = self.logged.get(&Element::Port(port));
        logged.map(|logged| logged.since)
    }

    /// The problems of the ports at which a job's members are.
    pub fn of_members(&self, fabric: &Fabric, job: &Job) -> Vec<PortProblem> {
        let of = |(rank, member): (Rank, &Member)| {
            let port = fabric.host(member.host).attached;
            let problem = move |element, is_drained, since| PortProblem {
                rank,
                element,
                is_drained,
                since,
            };
            let down = self.host_down_since(port);
            let down = down.map(|since| problem(Element::Port(port), false, since));
            let elements = [Element::Port(port), Element::Transit(port.switch)];
            let drained = elements.map(|element| {
                let since = self.drained.get(&element)?;
                Some(problem(element, true, *since))
            });
            down.into_iter().chain(drained.into_iter().flatten())
        };
        job.ranks().flat_map(of).collect()
    }

    /// The changes since the last call.
    pub fn take_changes(&mut self) -> Vec<StateChange> {
        std::mem::take(&mut self.changes)
    }

    /// Records that an element was seen up or down. Returns true if the observation is new, or if
    /// any element counts as another state by now.
    pub fn observe(&mut self, element: Element, is_up: bool, now: Instant) -> bool {
        if is_up {
            self.lossy.remove(&element);
        }
        let is_new = match self.seen.get_mut(&element) {
            Some(damping) => damping.observe(is_up, now),
            None if is_up => self.log(element, State::Up),
            None => {
                self.seen
                    .insert(element, Damping::failed(self.damping_config, now));
                true
            }
        };
        // A caller that waits for the next due time would miss this change otherwise.
        self.advance(now) || is_new
    }

    /// Marks an element as down at once, without damping.
    pub fn mark_down(&mut self, element: Element, now: Instant) {
        let damping_config = self.damping_config;
        let seen = self.seen.entry(element);
        seen.and_modify(|damping| damping.mark_down(now))
            .or_insert_with(|| Damping::down(damping_config, now));
        self.advance(now);
    }

    /// Marks an element as down that reports to be up but loses packets.
    pub fn mark_lossy(&mut self, element: Element, now: Instant) {
        self.lossy.insert(element);
        self.mark_down(element, now);
    }

    /// Advances to `now`. Returns true if any element counts as another state then.
    pub fn advance(&mut self, now: Instant) -> bool {
        let mut has_changed = false;
        let mut states = Vec::new();
        for (element, damping) in &mut self.seen {
            let (is_new, state) = match damping.advance(now) {
                true if self.lossy.contains(element) => (self.down.fail(*element), State::Lossy),
                true => (self.down.fail(*element), State::Down),
                false => (self.down.repair(*element), State::Up),
            };
            // An element that an earlier leader has seen down, and that was absent for less than the grace period now.
            let is_back = state == State::Up && damping.due().is_none();
            if is_new || is_back {
                states.push((*element, state));
            }
            has_changed |= is_new;
        }
        for (element, state) in states {
            self.log(element, state);
        }
        self.seen.retain(|_, damping| !damping.is_forgotten(now));
        has_changed
    }

    /// The next time at which an element's state changes without a new observation.
    pub fn due(&self) -> Option<Instant> {
        self.seen.values().filter_map(Damping::due).min()
    }

    /// Drains an element or undrains it.
    pub fn drain(&mut self, element: Element, drained: bool) {
        match drained {
            true => drop(self.drained.entry(element).or_insert_with(SystemTime::now)),
            false => drop(self.drained.remove(&element)),
        }
    }

    /// Sets since when elements are drained, where `since` knows it.
    pub fn date_drains(&mut self, since: impl Fn(Element) -> Option<SystemTime>) {
        for (element, time) in &mut self.drained {
            *time = since(*element).unwrap_or(*time);
        }
    }

    /// The health of the fabric if this element were drained or not.
    pub fn with(&self, element: Element, drained: bool) -> Health {
        let mut then = self.clone();
        then.drain(element, drained);
        then.health()
    }

    /// True if this name was drained and the fabric file lacks it.
    pub fn is_unknown(&self, name: &str) -> bool {
        self.unknown.contains(name)
    }

    /// Forgets a drained name that the fabric file lacks.
    pub fn forget_unknown(&mut self, name: &str) {
        self.unknown.remove(name);
    }

    /// The elements that are down.
    pub fn down(&self) -> &Health {
        &self.down
    }

    /// True if an element counts as down.
    pub fn is_down(&self, element: Element) -> bool {
        self.down.down().any(|down| down == element)
    }

    /// The elements not to use: down or drained.
    pub fn health(&self) -> Health {
        self.down
            .down()
            .chain(self.drained.keys().copied())
            .collect()
    }

    /// The drained elements alone.
    pub fn drained(&self) -> Health {
        self.drained.keys().copied().collect()
    }

    /// The elements of a switch that are not in use.
    pub fn of(&self, fabric: &Fabric, switch: SwitchId) -> Vec<ElementState> {
        let here = |element: &Element| match *element {
            Element::Switch(at) | Element::Transit(at) => at == switch,
            Element::Port(at) => at.switch == switch,
            Element::Trunk(trunk) => fabric
                .trunk(trunk)
                .ends
                .iter()
                .any(|end| end.switch == switch),
        };
        let health = self.health();
        let elements = health.down().filter(here).map(|element| {
            let is_back = |damping: &Damping| damping.due().is_some();
            let down =
                self.is_down(element)
                    .then(|| match self.seen.get(&element).is_some_and(is_back) {
                        true => "back, not trusted yet",
                        false if self.lossy.contains(&element) => "loses packets",
                        false => "down",
                    });
            let drained = self.drained.contains_key(&element).then_some("drained");
            let states: Vec<&str> = down.into_iter().chain(drained).collect();
            ElementState {
                name: fabric.name_of(element),
                state: states.join(", "),
            }
        });
        elements.collect()
    }
}

/// An element that is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementState {
    /// The element's name.
    pub name: String,
    /// Its state, on one line.
    pub state: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_that_is_down_and_drained_has_both_states() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = ultima_planner::fabric::parse(text, "two.yaml").unwrap();
        let now = Instant::now();
        let element = fabric.element_named("s1").unwrap();
        let mut condition = Condition::new(&fabric, DampingConfig::default(), &["s9".into()]);
        let of = |condition: &Condition| {
            let elements = condition.of(&fabric, SwitchId(0));
            let states = elements
                .into_iter()
                .map(|it| format!("{} {}", it.name, it.state));
            states.collect::<Vec<_>>().join("; ")
        };
        condition.drain(element, true);
        assert_eq!(of(&condition), "s1 drained");
        condition.mark_down(element, now);
        assert_eq!(of(&condition), "s1 down, drained");
        assert!(condition.observe(element, true, now) && !condition.observe(element, true, now));
        assert_eq!(of(&condition), "s1 back, not trusted yet, drained");
        condition.drain(element, false);
        assert_eq!(of(&condition), "s1 back, not trusted yet");
        condition.mark_lossy(element, now);
        assert_eq!(of(&condition), "s1 loses packets");
        let changes = condition.take_changes();
        let states: Vec<State> = changes.iter().map(|it| it.state).collect();
        assert_eq!(states, [State::Down]);
        assert_eq!(condition.take_changes(), []);
        condition.observe(element, true, now);
        assert_eq!(of(&condition), "s1 back, not trusted yet");
        // A name that is not in the fabric any more is remembered until it is forgotten.
        assert!(condition.is_unknown("s9") && !condition.is_unknown("s8"));
        condition.forget_unknown("s9");
        assert!(!condition.is_unknown("s9"));
    }

    #[test]
    fn the_states_in_the_event_log_are_restored() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = ultima_planner::fabric::parse(text, "two.yaml").unwrap();
        let mut condition = Condition::new(&fabric, DampingConfig::default(), &[]);
        let host = fabric.hosts()[0].attached;
        let link = fabric.element_named("s1/9-s2/9").unwrap();
        let since = SystemTime::UNIX_EPOCH;
        let logged = [(Element::Port(host), State::Down), (link, State::Lossy)];
        let logged = logged.map(|(element, state)| (element, Logged { state, since }));
        let lossy = condition.restore(&fabric, logged.into(), Instant::now());
        assert_eq!(lossy, [TrunkId(0)]);
        // The log has them.
        assert_eq!(condition.take_changes(), []);
        assert!(condition.host_down_since(host) == Some(since) && condition.is_down(link));
        let [state] = &condition.of(&fabric, SwitchId(0))[..] else {
            panic!("the link alone")
        };
        assert_eq!(state.state, "loses packets");
    }

    #[test]
    fn a_host_port_is_down_since_an_earlier_leader_saw_it() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = ultima_planner::fabric::parse(text, "two.yaml").unwrap();
        let mut condition = Condition::new(&fabric, DampingConfig::default(), &[]);
        let [host, other] = [0, 1].map(|at| fabric.hosts()[at].attached);
        let (state, since) = (State::Down, SystemTime::UNIX_EPOCH);
        let logged = [(Element::Port(host), Logged { state, since })];
        condition.restore(&fabric, logged.into(), Instant::now());
        assert_eq!(condition.host_down_since(host), Some(since));
        let before = SystemTime::now();
        assert!(condition.observe_host(other, false));
        assert!(!condition.observe_host(host, false));
        assert_eq!(condition.host_down_since(host), Some(since));
        assert!(condition.host_down_since(other) >= Some(before));
        // It comes back, and goes down again.
        assert!(condition.observe_host(host, true));
        assert_eq!(condition.host_down_since(host), None);
        condition.observe_host(host, false);
        assert!(condition.host_down_since(host) >= Some(before));
    }

    /// An observation of one element may arrive just when another one goes down or is trusted
    /// again: only this observation's result reports that.
    #[test]
    fn an_observation_also_reports_states_that_time_has_changed() {
        let text = include_str!("../../../topologies/two-switches.yaml");
        let fabric = ultima_planner::fabric::parse(text, "two.yaml").unwrap();
        let [one, other] = ["s1", "s2"].map(|name| fabric.element_named(name).unwrap());
        let mut condition = Condition::new(&fabric, DampingConfig::default(), &[]);
        let start = Instant::now();
        assert!(condition.observe(one, false, start));
        let down = condition.due().unwrap();
        assert!(condition.observe(other, true, down) && condition.is_down(one));
        assert!(!condition.observe(other, true, down));
        assert!(condition.observe(one, true, down));
        let up = condition.due().unwrap();
        assert!(condition.observe(other, true, up) && !condition.is_down(one));
        assert!(!condition.observe(other, true, up));
    }
}
