//! The fabric: its file, drift on switches, and drained elements.

use serde::Serialize;
use ultima_api::document::{self, Diff, Difference, Drained, NotRerouted, Unreachable};
use ultima_api::v1 as api;
use ultima_console::units::counted;
use ultima_planner::fabric::Fabric;

use super::Text;

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
}

impl Text for Checked {
    /// One line.
    fn text(&self) -> String {
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

impl Text for Drained {
    /// A line for the element, one or two for each job that was not rerouted, and one for each pending switch.
    fn text(&self) -> String {
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

/// The jobs that still use elements that are down or drained, one or two lines each.
pub fn not_rerouted(jobs: &[api::Job]) -> String {
    document::not_rerouted(jobs).map(|job| job.text()).collect()
}

impl Text for NotRerouted {
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

impl Text for Difference<'_> {
    /// As `diff` prints it: `-` and the actual value, `+` and the desired one.
    fn text(&self) -> String {
        let mut text = String::new();
        for (sign, value) in [('-', self.actual), ('+', self.desired)] {
            if let Some(value) = value {
                text += &format!("{sign} {}: {value}\n", self.entity);
            }
        }
        text
    }
}

impl Text for Diff<'_> {
    /// The number of differences, and each of them.
    fn text(&self) -> String {
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
