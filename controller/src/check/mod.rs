//! Where a job's packets stop: what a check saw, and what follows from it. No I/O.
//!
//! Members send check packets to each other, short ones and full ones. For a way by which none came
//! a few more are sent with the switches' counters read before and after ([`Evidence`]), and
//! [`diagnose`] walks the way from the sender on: the first hop that did not see them is the finding.

mod diagnose;
mod evidence;
#[cfg(test)]
mod tests;

pub use diagnose::{diagnose, unreachable};
pub use evidence::{Counted, End, Evidence, Port, Step};

use std::collections::HashMap;

use crate::job::Rank;

/// Where packets stop, from the sender on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hop {
    /// A switch does not answer the controller, so that nothing is known of what it does.
    Switch,
    /// A member that is not there.
    Member,
    /// The sender's kernel does not send.
    OwnSocket,
    /// Nothing comes in at the first switch's port.
    FirstPort,
    /// A switch refuses them.
    Admission,
    /// A switch has no group for them, or one that lacks copies.
    Group,
    /// A switch has no route for them.
    Route,
    /// A switch does not send out what it was to send.
    Egress,
    /// One end of a link sends them, nothing comes at the other.
    Link,
    /// They come to the receiver's host and not to its socket.
    ReceiverSocket,
    /// Short packets pass where full ones don't.
    Mtu,
}

/// One way between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// By the job's group, not addressed to the receiver.
    pub by_group: bool,
}

/// Where on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The switch's name; none where it is at none.
    pub switch: Option<String>,
    /// The port there.
    pub port: Option<Port>,
}

impl Place {
    /// The port as the fabric's file names it, SWITCH/PORT; none where it is at none.
    pub fn port_name(&self) -> Option<String> {
        let (switch, port) = self.switch.as_ref().zip(self.port.as_ref())?;
        Some(format!("{switch}/{port}"))
    }
}

/// Why packets don't arrive by one way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Diagnosis {
    /// At which kind of hop.
    pub hop: Hop,
    /// Where.
    pub place: Place,
    /// What was seen, on one line.
    pub what: String,
    /// What to do, on one line.
    pub advice: String,
}

/// One reason and all the ways that it closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The reason.
    pub diagnosis: Diagnosis,
    /// The ways.
    pub paths: Vec<Path>,
}

/// What came by one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Which.
    pub path: Path,
    /// Packets sent, of each length.
    pub sent: u32,
    /// Short ones that came.
    pub short_came: u32,
    /// Full ones that came.
    pub full_came: u32,
    /// Switches passed, as switches count them.
    pub hops: u32,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Why packets don't arrive; none where all do.
    pub findings: Vec<Finding>,
    /// Every way between members that attend that was tried.
    pub ways: Vec<Way>,
    /// Members that attend.
    pub attending: Vec<Rank>,
}

/// Reasons why packets don't arrive, each once.
#[derive(Debug, Default)]
pub struct Findings {
    all: Vec<Finding>,
    /// Where each stands: there may be one for each member.
    places: HashMap<Diagnosis, usize>,
}

impl Findings {
    /// Adds a reason why packets don't arrive by `path`; reasons that are the same become one.
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

    /// In the order in which they were added first.
    pub fn all(self) -> Vec<Finding> {
        self.all
    }
}
