//! The proof that a caller is a member.

use ultima_planner::fabric::Fabric;
use ultima_planner::job::Rank;

use super::error::JobRequestError;
use super::registry::record::Record;
use super::seats::{Attempt, Seat};

/// The proof that a caller is a member.
#[derive(Clone, Copy)]
pub struct Proof<'a> {
    /// The token of its seat.
    pub token: u64,
    /// The host that its certificate is for; none if it may act for all.
    pub host: Option<&'a str>,
}

/// Checks that a caller is the member that has a rank; passes if no member has it.
///
/// # Errors
/// Another member has the rank.
pub fn check_member(
    fabric: &Fabric,
    record: &Record,
    rank: Rank,
    proof: Proof<'_>,
) -> Result<(), JobRequestError> {
    if record.seats.state(rank) != Some(Seat::Joined) {
        return Ok(());
    }
    let host = record.job.members[usize::from(rank.0)].host;
    let host = &fabric.host(host).name;
    let is_it = record.seats.is_held(rank, Attempt(proof.token))
        && proof.host.is_none_or(|own| own == host);
    is_it
        .then_some(())
        .ok_or_else(|| JobRequestError::NotThatMember {
            name: record.job.name.clone(),
            rank: rank.0,
        })
}
