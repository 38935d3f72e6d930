//! Ranks that run another operation than this one under the same number, such as one with another length.

use ultima_host::{Collective, Outcome, Rejection};

use super::JobError;

/// A look at the counters costs a message to the data thread and back. So only the first operations that lack packets are looked
/// at, every [`EVERY`]th one, ...
const FIRST: u64 = 4;
const EVERY: u64 = 16;
/// ... and those that lack at least this share of a rank's packets.
const SHARE: f64 = 0.125;

/// A job's packets that did not fit this rank's operations.
#[derive(Debug, Default)]
pub(super) struct Misfits {
    /// Those that an earlier look has seen, in this epoch.
    seen: u64,
    operations: u64,
}

impl Misfits {
    /// Checks an operation that has ended. If the job is not sealed, any host can send packets that do not fit, so small losses do
    /// not count.
    ///
    /// # Errors
    /// [`JobError::OtherOperation`]: it lacks packets, and packets that do not fit have arrived since the last look.
    pub(super) fn check(
        &mut self,
        collective: &mut Collective,
        outcome: &Outcome,
    ) -> Result<(), JobError> {
        let number = self.operations;
        self.operations += 1;
        let Some((rank, share)) = latest(collective.config().rank, outcome) else {
            return Ok(());
        };
        let is_sampled = number < FIRST || number.is_multiple_of(EVERY);
        if share < SHARE && !(is_sampled && collective.config().key.is_some()) {
            return Ok(());
        }
        let rejected = collective.report()?.totals.rejected;
        let reasons = [Rejection::Slot, Rejection::Length, Rejection::Exact];
        let count = reasons.map(|reason| rejected.of(reason)).iter().sum();
        match std::mem::replace(&mut self.seen, count) < count {
            true => Err(JobError::OtherOperation {
                id: outcome.id,
                rank,
            }),
            false => Ok(()),
        }
    }
}

/// The rank that lacks the largest share of its packets at this `rank`, and the share. A silent rank does not count.
fn latest(rank: u16, outcome: &Outcome) -> Option<(u16, f64)> {
    let slots = |rank: u16| f64::from(outcome.slots[usize::from(rank)]);
    let heard = outcome
        .missing_from(rank)
        .filter(|(other, _)| !outcome.suspected.contains(other));
    let shares = heard.map(|(other, missing)| {
        let missing = f64::from(missing.contributions) + f64::from(missing.aggregates);
        (other, missing / (slots(rank) + slots(other)))
    });
    shares.max_by(|a, b| a.1.total_cmp(&b.1))
}
