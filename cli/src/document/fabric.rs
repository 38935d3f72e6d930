//! The fabric's switches, and in what they are not as they should be.

use serde::Serialize;
use ultima_controller::api;
use ultima_controller::fabric::Fabric;

/// A fabric's file that is right.
#[derive(Serialize)]
pub struct Checked {
    file: String,
    switches: usize,
    hosts: usize,
    links: usize,
}

impl Checked {
    /// How much of each it has.
    pub fn new(file: String, fabric: &Fabric) -> Self {
        Self {
            file,
            switches: fabric.switches().len(),
            hosts: fabric.hosts().len(),
            links: fabric.links().len(),
        }
    }

    /// On one line.
    pub fn text(&self) -> String {
        let Self {
            file,
            switches,
            hosts,
            links,
        } = self;
        format!("{file}: {switches} switches, {hosts} hosts, {links} links\n")
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
    /// Whether it is yet to be looked at, because a write has not come to a known end.
    pub in_doubt: bool,
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
            in_doubt: switch.in_doubt,
            health: match switch.health.as_str() {
                "" => "up",
                health => health,
            },
            jobs: &switch.jobs,
        }
    }
}

impl Switch<'_> {
    /// How the controller stands with it, for people.
    pub fn state(&self) -> &str {
        match (self.connected, self.in_doubt) {
            (true, false) => "connected",
            (true, true) => "connected, to be looked at",
            (false, _) => self.problem,
        }
    }
}

/// What became of a part of the fabric that was drained, or is used again.
#[derive(Serialize)]
pub struct Drained {
    part: String,
    drained: bool,
    held_back: Vec<HeldBack>,
    /// Jobs with members at the drained switch, which keep using it.
    attached_jobs: Vec<String>,
    /// Switches that are not known to have the new ways.
    pending_switches: Vec<String>,
}

/// A job that could not be moved off what is down or drained.
#[derive(Serialize)]
struct HeldBack {
    job: String,
    cut_off: Vec<CutOff>,
    reason: String,
}

#[derive(Serialize)]
struct CutOff {
    rank: u32,
    host: String,
}

impl Drained {
    /// With what jobs say of it.
    pub fn new(answer: api::SetAdminStateResponse, drained: bool, jobs: &[api::Job]) -> Self {
        let is_attached = |job: &&api::Job| {
            job.members
                .iter()
                .any(|member| member.switch == answer.part)
        };
        let attached = jobs.iter().filter(|_| drained).filter(is_attached);
        Self {
            attached_jobs: attached.map(|job| job.name.clone()).collect(),
            part: answer.part,
            drained,
            held_back: held_back(jobs).collect(),
            pending_switches: answer.pending_switches,
        }
    }

    /// Whether nothing uses the part any more that could be taken off it: of one that is in use again, whether all switches know.
    pub fn is_done(&self) -> bool {
        self.pending_switches.is_empty() && (self.held_back.is_empty() || !self.drained)
    }

    /// A line for the part, one or two for each job, and one for each switch.
    pub fn text(&self) -> String {
        let part = &self.part;
        let said = match self.drained {
            true => format!("drained {part}\n"),
            false => format!("{part} is in use\n"),
        };
        let jobs = self.held_back.iter().map(HeldBack::text);
        let attached = (self.attached_jobs.iter())
            .map(|job| format!("job {job} has members at {part}, which keep using it\n"));
        let pending = self.pending_switches.iter().map(|switch| {
            format!(
                "switch {switch} is not known to have the new ways: what led there before is kept until it is back\n"
            )
        });
        jobs.chain(attached)
            .chain(pending)
            .fold(said, |text, line| text + &line)
    }
}

fn held_back(jobs: &[api::Job]) -> impl Iterator<Item = HeldBack> {
    let of = |job: &api::Job| HeldBack {
        job: job.name.clone(),
        cut_off: (job.members.iter())
            .filter(|member| member.cut_off)
            .map(|member| CutOff {
                rank: member.rank,
                host: member.host.clone(),
            })
            .collect(),
        reason: job.stays.clone(),
    };
    let is_held = |it: &HeldBack| !it.cut_off.is_empty() || !it.reason.is_empty();
    jobs.iter().map(of).filter(is_held)
}

/// The same for people, a line or two for each job.
pub fn held_back_text(jobs: &[api::Job]) -> String {
    held_back(jobs).map(|job| job.text()).collect()
}

impl HeldBack {
    fn text(&self) -> String {
        let job = &self.job;
        let mut text = String::new();
        let cut_off = self.cut_off.iter();
        let cut_off = cut_off.map(|CutOff { rank, host }| format!("rank {rank} on {host}"));
        let cut_off: Vec<String> = cut_off.collect();
        if !cut_off.is_empty() {
            let cut_off = cut_off.join(", ");
            text += &format!("job {job} keeps its ways, as no others lead to {cut_off}\n");
        }
        if !self.reason.is_empty() {
            text += &format!("job {job} keeps its ways: {}\n", self.reason);
        }
        text
    }
}

/// In what a switch is not as it should be.
#[derive(Serialize)]
pub struct Diff<'a> {
    switch: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    problem: &'a str,
    differences: Vec<Difference<'a>>,
}

/// One thing of which a switch holds something else than it should, or would.
#[derive(Serialize)]
pub struct Difference<'a> {
    entity: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<&'a str>,
}

impl<'a> From<&'a api::Difference> for Difference<'a> {
    fn from(it: &'a api::Difference) -> Self {
        Self {
            entity: &it.entity,
            held: it.held.as_deref(),
            wanted: it.wanted.as_deref(),
        }
    }
}

impl Difference<'_> {
    /// As `diff` has it: what goes after `-`, what comes after `+`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (sign, value) in [('-', self.held), ('+', self.wanted)] {
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
    /// How many, and each: what is there and should not be after `-`, what should and is not after `+`.
    pub fn text(&self) -> String {
        let switch = self.switch;
        let head = match (self.problem, self.differences.len()) {
            ("", 0) => format!("{switch}: as it should be\n"),
            ("", 1) => format!("{switch}: 1 difference\n"),
            ("", count) => format!("{switch}: {count} differences\n"),
            (problem, _) => format!("{switch}: {problem}\n"),
        };
        let differences = self.differences.iter().map(Difference::text);
        head + &differences.collect::<String>()
    }
}
