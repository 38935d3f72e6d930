//! Membership events of a job.

use crate::v1::membership_event::Kind;
use crate::v1::{self as api, MembershipEvent};
use serde::Serialize;

/// One event.
#[derive(Serialize)]
pub struct Event<'a> {
    pub kind: &'static str,
    pub epoch: u32,
    pub rank: Option<u32>,
    pub host: &'a str,
    pub first_operation: Option<u32>,
    pub reason: &'a str,
}

/// The state of the job at the start of a watch.
#[derive(Serialize)]
pub struct Current {
    pub kind: &'static str,
    pub epoch: u32,
    pub ranks: usize,
    pub first_operation: u32,
}

impl<'a> From<&'a MembershipEvent> for Event<'a> {
    fn from(event: &'a MembershipEvent) -> Self {
        Self {
            kind: match event.kind() {
                Kind::Joined => "joined",
                Kind::Left => "left",
                Kind::Suspected => "suspected",
                Kind::Cleared => "recovered",
                Kind::Installed => "installed",
                Kind::LeftOut => "removed",
                Kind::Decided => "decided",
                Kind::Cancelled => "cancelled",
                Kind::Fenced => "fenced",
                Kind::Deleted => "deleted",
                Kind::Unspecified => "unknown",
            },
            epoch: event.epoch,
            rank: event.rank,
            host: &event.host,
            first_operation: event.first_operation,
            reason: &event.reason,
        }
    }
}

impl From<&api::Job> for Current {
    fn from(job: &api::Job) -> Self {
        Self {
            kind: "current",
            epoch: job.epoch,
            ranks: job.members.len(),
            first_operation: job.first_operation,
        }
    }
}
