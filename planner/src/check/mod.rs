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
}

impl Findings {
    /// Adds a reason why packets do not arrive on `path`, or adds the path to the same reason.
    pub fn add(&mut self, diagnosis: Diagnosis, path: Option<Path>) {
        let next = self.all.len();
        let at = *self
            .places
            .entry(diagnosis)
            .or_insert_with_key(|diagnosis| {
                self.all.push(Finding {
                    diagnosis: diagnosis.clone(),
                    paths: Vec::new(),
                });
                next
            });
        self.all[at].paths.extend(path);
    }

    /// Returns the findings in the order of their first occurrence.
    pub fn all(self) -> Vec<Finding> {
        self.all
    }
}
