//! What happens to a job's members.

use serde::Serialize;
use ultima_controller::api::{self, MembershipEvent};

/// One thing that happened.
#[derive(Serialize)]
pub struct Event<'a> {
    kind: String,
    epoch: u32,
    rank: Option<u32>,
    host: &'a str,
    first_operation: Option<u32>,
    reason: &'a str,
}

/// How things are, for one who has not heard what happened before.
#[derive(Serialize)]
pub struct Now {
    kind: &'static str,
    epoch: u32,
    ranks: usize,
    first_operation: u32,
}

impl<'a> From<&'a MembershipEvent> for Event<'a> {
    fn from(event: &'a MembershipEvent) -> Self {
        let kind = event.kind().as_str_name().trim_start_matches("KIND_");
        Self {
            kind: kind.to_lowercase(),
            epoch: event.epoch,
            rank: event.rank,
            host: &event.host,
            first_operation: event.first_operation,
            reason: &event.reason,
        }
    }
}

impl From<&api::Job> for Now {
    fn from(job: &api::Job) -> Self {
        Self {
            kind: "now",
            epoch: job.epoch,
            ranks: job.members.len(),
            first_operation: job.first_operation,
        }
    }
}
