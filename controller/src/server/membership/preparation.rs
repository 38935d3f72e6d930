//! The message that announces a new epoch to the members of the old one: built once, and completed
//! for each member.

use std::sync::Arc;

use ultima_api::v1::JoinResponse;
use ultima_planner::job::{Job, Rank};
use ultima_planner::membership::Succession;

/// A new epoch, for the members of the previous one.
#[derive(Debug)]
pub struct Preparation {
    /// The new epoch.
    pub job: Arc<Job>,
    pub succession: Arc<Succession>,
    /// The answer for a new member, without the fields of a single member. It lists all members.
    pub seat: JoinResponse,
}

impl Preparation {
    /// The number of members listed in the message for this rank of the previous epoch.
    pub fn entries(&self, rank: Rank) -> usize {
        match self.succession.becomes(rank) {
            Some(_) => self.seat.members.len(),
            None => 0,
        }
    }
}
