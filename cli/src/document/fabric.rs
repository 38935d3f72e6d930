//! The fabric: its switches, drift on them, and drained elements.

use serde::Serialize;
use ultima_api::v1 as api;
use ultima_console::units::counted;
use ultima_planner::fabric::Fabric;

/// A valid fabric file.
#[derive(Serialize)]
pub struct Checked {
    file: String,
    switches: usize,
    hosts: usize,
    links: usize,
}

impl Checked {
    /// Counts the fabric's elements.
    pub fn new(file: String, fabric: &Fabric) -> Self {
        Self {
            file,
            switches: fabric.switches().len(),
            hosts: fabric.hosts().len(),
            links: fabric.links().len(),
        }
    }

    /// One line.
    pub fn text(&self) -> String {
        let Self {
            file,
            switches,
            hosts,
            links,
        } = self;
        format!(
            "{file}: {}, {}, {}\n",
            counted(*switches, "switch"),
            counted(*hosts, "host"),
            counted(*links, "link")
        )
    }
}

/// A switch.
#[derive(Serialize)]
pub struct Switch<'a> {
    pub name: &'a str,
    pub target: &'a str,
    pub grpc: &'a str,
    pub device_id: u64,
    pub connected: bool,
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
            connected: switch.connected,
            problem: &switch.problem,
            needs_resync: switch.dirty,
            health: match switch.health.as_str() {
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
    /// False if the switch reports that the port is down.
    pub up: bool,
    /// Jobs with members there.
    pub jobs: Vec<&'a str>,
}

impl<'a> Host<'a> {
    /// A host, with those of all `jobs` that have members there.
    pub fn new(host: &'a api::FabricHost, jobs: &'a [api::Job]) -> Self {
        let is_there = |job: &&api::Job| job.members.iter().any(|it| it.host == host.name);
        Self {
            name: &host.name,
            ip: &host.ip,
            mac: &host.mac,
            ranks: host.ranks,
            switch: &host.switch,
            port: host.port,
            port_name: &host.port_name,
            up: !host.port_down,
            jobs: jobs.iter().filter(is_there).map(|job| &*job.name).collect(),
        }
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
    element: String,
    drained: bool,
    not_rerouted: Vec<NotRerouted>,
    /// Jobs with members at the drained switch, which keep using it.
    attached_jobs: Vec<String>,
    /// Switches that have not confirmed the new routes.
    pending_switches: Vec<String>,
}

/// A job that still uses elements that are down or drained.
#[derive(Serialize)]
struct NotRerouted {
    job: String,
    /// Members to which no other path leads.
    unreachable: Vec<Unreachable>,
    problem: String,
}

#[derive(Serialize)]
struct Unreachable {
    rank: u32,
    host: String,
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

    /// A line for the element, one or two for each job that was not rerouted, and one for each pending switch.
    pub fn text(&self) -> String {
        let element = &self.element;
        let done = match self.drained {
            true => format!("drained {element}\n"),
            false => format!("undrained {element}\n"),
        };
        let jobs = self.not_rerouted.iter().map(NotRerouted::text);
        let attached = (self.attached_jobs.iter())
            .map(|job| format!("job {job} has members at {element}, which keep using it\n"));
        let pending = self.pending_switches.iter().map(|switch| {
            format!(
                "switch {switch} has not confirmed the new routes; the old routes stay until it does\n"
            )
        });
        jobs.chain(attached)
            .chain(pending)
            .fold(done, |text, line| text + &line)
    }
}

fn not_rerouted(jobs: &[api::Job]) -> impl Iterator<Item = NotRerouted> {
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

/// The jobs that still use elements that are down or drained, one or two lines each.
pub fn not_rerouted_text(jobs: &[api::Job]) -> String {
    not_rerouted(jobs).map(|job| job.text()).collect()
}

impl NotRerouted {
    fn text(&self) -> String {
        let job = &self.job;
        let mut text = String::new();
        let members = self.unreachable.iter();
        let members = members.map(|Unreachable { rank, host }| format!("rank {rank} on {host}"));
        let members: Vec<String> = members.collect();
        if !members.is_empty() {
            let members = members.join(", ");
            text += &format!("job {job} is not rerouted: no other path to {members}\n");
        }
        if !self.problem.is_empty() {
            text += &format!("job {job} is not rerouted: {}\n", self.problem);
        }
        text
    }
}

/// The drift of a switch: entities that differ from the desired state.
#[derive(Serialize)]
pub struct Diff<'a> {
    switch: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    problem: &'a str,
    differences: Vec<Difference<'a>>,
}

/// An entity of which a switch holds another value than desired, or would after a planned change.
#[derive(Serialize)]
pub struct Difference<'a> {
    entity: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    desired: Option<&'a str>,
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

impl Difference<'_> {
    /// As `diff` prints it: `-` and the actual value, `+` and the desired one.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (sign, value) in [('-', self.actual), ('+', self.desired)] {
            if let Some(value) = value {
                text += &format!("{sign} {}: {value}\n", self.entity);
            }
        }
        text
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

impl Diff<'_> {
    /// The number of differences, and each of them.
    pub fn text(&self) -> String {
        let switch = self.switch;
        let head = match (self.problem, self.differences.len()) {
            ("", 0) => format!("{switch}: in sync\n"),
            ("", 1) => format!("{switch}: 1 difference\n"),
            ("", count) => format!("{switch}: {count} differences\n"),
            (problem, _) => format!("{switch}: {problem}\n"),
        };
        let differences = self.differences.iter().map(Difference::text);
        head + &differences.collect::<String>()
    }
}
