//! Connectivity checks: finds where a job's packets stop. No I/O.
//!
//! Members send each other short and full-size check packets. On a path where none arrived, a few
//! more are sent, with the switches' counters read before and after ([`Evidence`]). [`diagnose`]
//! follows the path from the sender: the first hop that did not see the packets is the finding.

mod diagnose;
mod evidence;
mod mesh;
#[cfg(test)]
mod tests;

pub use diagnose::{diagnose, unreachable};
pub use evidence::{Counted, End, Evidence, PathSwitch, Port};
pub use mesh::{Mesh, Reports, SilentPaths, received, silent_paths};

use std::collections::HashMap;

use ultima_api::v1::{self, Hop};

use crate::job::Rank;

/// A path between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// True by the job's group, false if addressed to the receiver.
    pub by_group: bool,
}

impl From<Path> for v1::Path {
    fn from(Path { from, to, by_group }: Path) -> Self {
        v1::Path {
            from: from.0.into(),
            to: to.0.into(),
            by_group,
        }
    }
}

/// The position of a hop.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopPosition {
    /// The switch's name; none if the hop is not at a switch.
    pub switch: Option<String>,
    /// The port on the switch.
    pub port: Option<Port>,
}

impl HopPosition {
    /// The port's full name in the fabric's file, SWITCH/PORT; none if the hop is not at a port.
    pub fn port_name(&self) -> Option<String> {
        let (switch, port) = self.switch.as_ref().zip(self.port.as_ref())?;
        Some(format!("{switch}/{port}"))
    }

    /// True if a path enters (else leaves) this switch by this port.
    fn is_on(&self, steps: &[PathSwitch<'_>], enters: bool) -> bool {
        let is_here = |step: &PathSwitch<'_>| {
            let port = if enters {
                &step.in_port
            } else {
                &step.out_port
            };
            self.switch.as_deref() == Some(step.switch) && self.port.as_ref() == Some(port)
        };
        steps.iter().any(is_here)
    }
}

/// The reason why packets do not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Diagnosis {
    /// The kind of hop.
    pub hop: Hop,
    /// The position of the hop.
    pub place: HopPosition,
    /// The observation, on one line.
    pub what: String,
    /// The fix, on one line.
    pub advice: String,
}

/// A reason and all paths that it interrupts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The reason.
    pub diagnosis: Diagnosis,
    /// The interrupted paths.
    pub paths: Vec<Path>,
}

/// The packets received on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathCount {
    /// The path.
    pub path: Path,
    /// Packets sent, of each length.
    pub sent: u32,
    /// Short packets received.
    pub short_received: u32,
    /// Full-size packets received.
    pub full_received: u32,
    /// The number of switches on the path, as the switches counted it.
    pub hops: u32,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// The reasons why packets do not arrive; empty if all do.
    pub findings: Vec<Finding>,
    /// Every tried path between these members.
    pub paths: Vec<PathCount>,
    /// The members with a session with the controller.
    pub members: Vec<Rank>,
}

/// The distinct reasons why packets do not arrive.
#[derive(Debug, Default)]
pub struct Findings {
    all: Vec<Finding>,
    /// The index of each finding, because there may be one per member.
    places: HashMap<Diagnosis, usize>,
    links: Vec<LinkEnd>,
}

/// The end of a link that is the reason of a finding: packets are lost where they enter or leave a switch.
#[derive(Debug, PartialEq, Eq)]
struct LinkEnd {
    /// The index of its finding.
    finding: usize,
    enters: bool,
}

impl Findings {
    /// Adds a reason why packets do not arrive on `path`, or adds the path to the same reason.
    pub fn add(&mut self, diagnosis: Diagnosis, path: Option<Path>) {
        let at = self.index_of(diagnosis);
        self.all[at].paths.extend(path);
    }

    /// Adds the reason why packets do not arrive on an examined path.
    pub fn add_examined(&mut self, evidence: &Evidence<'_>) {
        let finding = self.index_of(diagnose(evidence));
        let Finding { diagnosis, paths } = &mut self.all[finding];
        paths.push(evidence.path);
        if !matches!(diagnosis.hop, Hop::FirstPort | Hop::Link | Hop::Mtu) {
            return;
        }
        let [enters, leaves] =
            [true, false].map(|enters| diagnosis.place.is_on(&evidence.steps, enters));
        let enters = match (enters, leaves) {
            (true, false) => true,
            (false, true) => false,
            // A copy for another rank of its sender's host leaves by the port where it entered.
            (true, true) if diagnosis.hop == Hop::FirstPort => true,
            _ => return,
        };
        let link = LinkEnd { finding, enters };
        if !self.links.contains(&link) {
            self.links.push(link);
        }
    }

    /// Adds a path without examining it to the finding about a link that it passes in the same direction, if there is one:
    /// `full` if only full-size packets do not arrive. Returns true if so.
    pub fn explain<'a>(
        &mut self,
        path: Path,
        full: bool,
        steps: impl FnOnce() -> Vec<PathSwitch<'a>>,
    ) -> bool {
        if self.links.is_empty() {
            return false;
        }
        let steps = steps();
        let is_cause = |link: &&LinkEnd| {
            let Diagnosis { hop, place, .. } = &self.all[link.finding].diagnosis;
            (full || *hop != Hop::Mtu) && place.is_on(&steps, link.enters)
        };
        let Some(finding) = self.links.iter().find(is_cause).map(|link| link.finding) else {
            return false;
        };
        self.all[finding].paths.push(path);
        true
    }

    /// The index of the finding with this reason, which is added if there is none.
    fn index_of(&mut self, diagnosis: Diagnosis) -> usize {
        let next = self.all.len();
        *self
            .places
            .entry(diagnosis)
            .or_insert_with_key(|diagnosis| {
                self.all.push(Finding {
                    diagnosis: diagnosis.clone(),
                    paths: Vec::new(),
                });
                next
            })
    }

    /// Returns the findings in the order of their first occurrence.
    pub fn all(self) -> Vec<Finding> {
        self.all
    }
}
