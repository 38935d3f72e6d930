//! The fabric: its switches, hosts and links, drift on switches, and drained elements.

use super::job::uid;
use crate::v1 as api;
use serde::Serialize;

/// A switch.
#[derive(Serialize)]
pub struct Switch<'a> {
    pub name: &'a str,
    pub target: &'a str,
    pub grpc: &'a str,
    pub device_id: u64,
    /// None if the controller does not know it.
    pub connected: Option<bool>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub problem: &'a str,
    /// True if the outcome of a write is unknown, so that the controller will read the switch again.
    pub needs_resync: bool,
    pub health: &'a str,
    pub jobs: &'a [String],
}

impl<'a> From<&'a api::Switch> for Switch<'a> {
    fn from(switch: &'a api::Switch) -> Self {
        Self {
            name: &switch.name,
            target: &switch.target,
            grpc: &switch.grpc,
            device_id: switch.device_id,
            connected: (!switch.unknown).then_some(switch.connected),
            problem: &switch.problem,
            needs_resync: switch.dirty,
            health: match switch.health.as_str() {
                "" if !switch.connected => "unknown",
                "" => "up",
                health => health,
            },
            jobs: &switch.jobs,
        }
    }
}

/// A host.
#[derive(Serialize)]
pub struct Host<'a> {
    pub name: &'a str,
    pub ip: &'a str,
    pub mac: &'a str,
    /// Room for ranks of one job.
    pub ranks: u32,
    pub switch: &'a str,
    pub port: u32,
    pub port_name: &'a str,
    /// The state of the port, as of [`port_state`].
    pub state: String,
    /// True if the state is `up`.
    pub up: bool,
    /// Jobs with members there.
    pub jobs: Vec<&'a str>,
}

impl<'a> Host<'a> {
    /// A host whose port has this state, with those of all `jobs` that have members there.
    pub fn new(host: &'a api::FabricHost, state: String, jobs: &'a [api::Job]) -> Self {
        let is_there = |job: &&api::Job| job.members.iter().any(|it| it.host == host.name);
        Self {
            name: &host.name,
            ip: &host.ip,
            mac: &host.mac,
            ranks: host.ranks,
            switch: &host.switch,
            port: host.port,
            port_name: &host.port_name,
            up: state == UP,
            state,
            jobs: jobs.iter().filter(is_there).map(|job| &*job.name).collect(),
        }
    }
}

/// The state of a port that is in use.
const UP: &str = "up";
/// The state of a drained element.
const DRAINED: &str = "drained";

/// The states of a port, separated by commas. It is `unknown` if the controller is not connected to the switch, unless the port
/// was known to be down.
pub fn port_state(port: &str, fabric: &api::GetFabricResponse, switches: &[api::Switch]) -> String {
    let at = |switch: &&api::Switch| port.split('/').next() == Some(&switch.name);
    let switch = switches.iter().find(at);
    let elements = switch.map_or(&[][..], |it| &it.elements);
    let state = |name: &str| {
        let known = elements.iter().find(|it| it.element == name);
        known.map_or("", |it| &it.state)
    };
    let is_down = |it: &api::FabricHost| it.port_name == port && it.port_down;
    let is_drained = |link: &api::FabricLink| {
        let ends = link.ends.iter();
        link.drained
            && ends
                .flat_map(|it| [&it.from_name, &it.to_name])
                .any(|end| end == port)
    };
    let of_port = state(port).split(", ").filter(|it| !it.is_empty());
    let (drains, mut states): (Vec<&str>, Vec<&str>) = of_port.partition(|it| *it == DRAINED);
    let mut of_switch = switch.map_or("", |it| state(&it.name)).split(", ");
    if states.is_empty() {
        if fabric.hosts.iter().any(is_down) {
            states.push("down");
        } else if !switch.is_some_and(|it| it.connected) {
            states.push("unknown");
        }
    }
    if !drains.is_empty()
        || of_switch.any(|it| it == DRAINED)
        || fabric.links.iter().any(is_drained)
    {
        states.push(DRAINED);
    }
    match &states[..] {
        [] => UP.to_owned(),
        states => states.join(", "),
    }
}

/// A link between switches.
#[derive(Serialize)]
pub struct Link<'a> {
    /// As `ultima fabric drain` takes it.
    pub name: String,
    pub up: bool,
    /// True if an operator has drained the link, one of its ports or one of its switches.
    pub drained: bool,
    /// Jobs whose multicast tree has the link.
    pub jobs: Vec<&'a str>,
}

impl<'a> Link<'a> {
    /// A link, with those of all `jobs` whose tree has it.
    pub fn new(link: &api::FabricLink, jobs: &'a [api::Job]) -> Self {
        let name = link.ends.as_ref().map(super::job::link_name);
        let name = name.unwrap_or_default();
        let uses = |job: &&api::Job| job.tree.iter().any(|it| super::job::link_name(it) == name);
        Self {
            jobs: jobs.iter().filter(uses).map(|job| &*job.name).collect(),
            up: link.up,
            drained: link.drained,
            name,
        }
    }
}

/// A recent event.
#[derive(Serialize)]
pub struct RecentEvent<'a> {
    pub id: u64,
    pub object: &'a str,
    /// The uid of a job, as in its status.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    pub reason: &'a str,
    pub message: &'a str,
    pub count: u32,
    /// Seconds of Unix time.
    pub first_seen: u64,
    pub last_seen: u64,
}

impl<'a> From<&'a api::Event> for RecentEvent<'a> {
    fn from(event: &'a api::Event) -> Self {
        Self {
            id: event.id,
            object: &event.object,
            uid: uid(event.uid),
            reason: &event.reason,
            message: &event.message,
            count: event.count,
            first_seen: event.first_ms / 1000,
            last_seen: event.last_ms / 1000,
        }
    }
}

/// The result of `ultima fabric drain` and `undrain`.
#[derive(Serialize)]
pub struct Drained {
    pub element: String,
    pub drained: bool,
    pub not_rerouted: Vec<NotRerouted>,
    /// Jobs with members at the drained switch, which keep using it.
    pub attached_jobs: Vec<String>,
    /// Switches that have not confirmed the new routes.
    pub pending_switches: Vec<String>,
}

/// A job that still uses elements that are down or drained.
#[derive(Serialize)]
pub struct NotRerouted {
    pub job: String,
    /// Members to which no other path leads.
    pub unreachable: Vec<Unreachable>,
    pub problem: String,
}

#[derive(Serialize)]
pub struct Unreachable {
    pub rank: u32,
    pub host: String,
}

impl Drained {
    /// Combines the controller's answer with the state of the jobs.
    pub fn new(answer: api::SetAdminStateResponse, drained: bool, jobs: &[api::Job]) -> Self {
        let is_attached = |job: &&api::Job| {
            job.members
                .iter()
                .any(|member| member.switch == answer.element)
        };
        let attached = jobs.iter().filter(|_| drained).filter(is_attached);
        Self {
            attached_jobs: attached.map(|job| job.name.clone()).collect(),
            element: answer.element,
            drained,
            not_rerouted: not_rerouted(jobs).collect(),
            pending_switches: answer.pending_switches,
        }
    }

    /// True if all switches have confirmed the new routes and, after a drain, no job still uses the element.
    pub fn is_done(&self) -> bool {
        // A job is attached only after a drain.
        let is_unused = self.attached_jobs.is_empty() && self.not_rerouted.is_empty();
        self.pending_switches.is_empty() && (is_unused || !self.drained)
    }
}

/// The jobs that still use elements that are down or drained.
pub fn not_rerouted(jobs: &[api::Job]) -> impl Iterator<Item = NotRerouted> {
    let of = |job: &api::Job| NotRerouted {
        job: job.name.clone(),
        unreachable: (job.members.iter())
            .filter(|member| member.cut_off)
            .map(|member| Unreachable {
                rank: member.rank,
                host: member.host.clone(),
            })
            .collect(),
        problem: job.remaining.clone(),
    };
    let is_affected = |it: &NotRerouted| !it.unreachable.is_empty() || !it.problem.is_empty();
    jobs.iter().map(of).filter(is_affected)
}

/// The drift of a switch: entities that differ from the desired state.
#[derive(Serialize)]
pub struct Diff<'a> {
    pub switch: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub problem: &'a str,
    pub differences: Vec<Difference<'a>>,
}

/// An entity of which a switch holds another value than desired, or would after a planned change.
#[derive(Serialize)]
pub struct Difference<'a> {
    pub entity: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<&'a str>,
}

impl<'a> From<&'a api::Difference> for Difference<'a> {
    fn from(it: &'a api::Difference) -> Self {
        Self {
            entity: &it.entity,
            actual: it.held.as_deref(),
            desired: it.wanted.as_deref(),
        }
    }
}

impl<'a> From<&'a api::SwitchDiff> for Diff<'a> {
    fn from(diff: &'a api::SwitchDiff) -> Self {
        Self {
            switch: &diff.switch,
            problem: &diff.problem,
            differences: diff.differences.iter().map(Into::into).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports 1 (h1) and 9 (to s2) of s1, whose elements have these states.
    fn states(connected: bool, is_host_down: bool, elements: &[(&str, &str)]) -> [String; 2] {
        let element = |(element, state): &(&str, &str)| api::ElementState {
            element: (*element).into(),
            state: (*state).into(),
        };
        let switch = api::Switch {
            name: "s1".into(),
            connected,
            elements: elements.iter().map(element).collect(),
            ..api::Switch::default()
        };
        let host = api::FabricHost {
            name: "h1".into(),
            port_name: "s1/1".into(),
            port_down: is_host_down,
            ..api::FabricHost::default()
        };
        let link = api::FabricLink {
            ends: Some(api::TreeLink {
                from_name: "s1/9".into(),
                to_name: "s2/9".into(),
                ..api::TreeLink::default()
            }),
            up: true,
            drained: elements
                .iter()
                .any(|(name, state)| name.len() != 4 && *state == DRAINED),
        };
        let fabric = api::GetFabricResponse {
            hosts: vec![host],
            links: vec![link],
        };
        ["s1/1", "s1/9"].map(|port| port_state(port, &fabric, std::slice::from_ref(&switch)))
    }

    #[test]
    fn a_port_s_state_is_unknown_if_its_switch_does_not_answer() {
        for (connected, is_down, elements, expected) in [
            (true, false, &[][..], ["up", "up"]),
            (true, true, &[], ["down", "up"]),
            (false, false, &[("s1", "down")], ["unknown", "unknown"]),
            (false, true, &[], ["down", "unknown"]),
            (true, false, &[("s1", "drained")], ["drained", "drained"]),
            (
                false,
                false,
                &[("s1", "drained")],
                ["unknown, drained", "unknown, drained"],
            ),
            (true, true, &[("s1/1", "drained")], ["down, drained", "up"]),
            (true, false, &[("s1/9-s2/9", "drained")], ["up", "drained"]),
            (
                true,
                false,
                &[("s1/9", "back, not trusted yet, drained")],
                ["up", "back, not trusted yet, drained"],
            ),
        ] {
            assert_eq!(
                states(connected, is_down, elements),
                expected,
                "{elements:?}"
            );
        }
    }
}
