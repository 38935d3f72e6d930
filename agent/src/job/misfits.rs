//! Ranks that run another operation than this one under the same number, such as one with another length.

use ultima_host::{Config, Outcome};

use super::JobError;

/// The share of a rank's packets that an operation must lack in a job without a seal: any host can send packets there that do not
/// fit.
const SHARE: f64 = 0.125;

/// Checks an operation that has ended.
///
/// # Errors
/// [`JobError::OtherOperation`]: it lacks packets of a rank whose packets did not fit.
pub(super) fn check(config: &Config, outcome: &Outcome) -> Result<(), JobError> {
    let mut missing = outcome.missing_from(config.rank).filter(|(rank, missing)| {
        let missing = f64::from(missing.contributions) + f64::from(missing.aggregates);
        let share = missing / outcome.owed_by(*rank, config.rank) as f64;
        outcome.different.contains(rank) && (config.key.is_some() || share >= SHARE)
    });
    match missing.next() {
        Some((rank, _)) => Err(JobError::OtherOperation {
            id: outcome.id,
            rank,
        }),
        None => Ok(()),
    }
}
