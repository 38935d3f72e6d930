//! Votes of the workers after a step: a worker's part, and the main process's record of the results.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::{Collective, Error, OperationId, Outcome, Rules, Safeguards};

use super::deadline::Bounds;

/// The bucket of the gradients; the others are for exact operations.
pub const GRADIENT: u16 = 0;
const VOTE: u16 = 1;
const HEAL: u16 = 2;
const AFTER: u16 = 3;

/// The timeout of a vote, in addition to deadlines and sleeps.
const VOTE_TIMEOUT: Duration = Duration::from_secs(5);

/// Exact operations of one kind that fail in a row before a worker gives that kind up. A single one may fail at one
/// worker and succeed at the others; the next one then repairs it.
const MISSES: u32 = 2;

/// The result of a vote after a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// True if all workers skip the update.
    pub skipped: bool,
    /// The spread of the replicas, if measured.
    pub spread: Option<f64>,
    /// True if the replicas are to be averaged.
    pub heal: bool,
    /// How far the averaged replicas are from each other, or which ranks are missing; none where they were not averaged.
    pub healed_to: Option<VoteResult<f64>>,
    /// True if gradients are coded from now on; none if that was not decided.
    pub code: Option<bool>,
}

/// The result of a vote, or one line about the missing workers.
pub type VoteResult<T> = Result<T, String>;

/// A worker's part in votes.
pub struct Agreement {
    safeguards: Safeguards,
    limit: Duration,
    /// False where slots never arrive: averaging needs all of them, a vote only the first.
    heals: bool,
    /// Votes that failed in a row.
    failed_votes: u32,
    /// Averagings that failed in a row.
    failed_heals: u32,
}

impl Agreement {
    /// By these `rules`, among workers of which none sleeps longer than `sleeps` before a step. Replicas are measured,
    /// and averaged if `heals`.
    pub fn new(rules: Rules, seed: u64, bounds: Bounds, sleeps: Duration, heals: bool) -> Self {
        Self {
            safeguards: Safeguards::new(rules, seed),
            limit: VOTE_TIMEOUT + 10 * bounds.t_b + 10 * sleeps,
            heals,
            failed_votes: 0,
            failed_heals: 0,
        }
    }

    /// Votes on the update of a step if a vote is due. Sets `update` to zero if all workers skip it; `parameters` are those before the update.
    ///
    /// # Errors
    /// The workers agreed to stop, or the network failed.
    pub fn vote(
        &mut self,
        collective: &mut Collective,
        outcome: &Outcome,
        update: &mut [f32],
        parameters: &[f32],
    ) -> Result<Option<VoteResult<Agreed>>, Error> {
        let step = outcome.id.step;
        if self.failed_votes >= MISSES || !self.safeguards.is_due(step) {
            return Ok(None);
        }
        let id = OperationId { step, bucket: VOTE };
        let lost = outcome.lost_share();
        let verdict = collective.agree(id, &mut self.safeguards, lost, parameters, self.limit);
        let heals = self.heals && self.failed_heals < MISSES;
        let agreed = unless_missing(verdict, &mut self.failed_votes)?.map(|verdict| {
            if verdict.skip {
                collective.skip(GRADIENT, update);
            }
            if let Some(on) = verdict.code {
                collective.code(on);
            }
            Agreed {
                skipped: verdict.skip,
                spread: verdict.spread,
                heal: verdict.heal && heals,
                healed_to: None,
                code: verdict.code,
            }
        });
        Ok(Some(agreed))
    }

    /// Averages the replicas and returns their spread afterwards.
    ///
    /// # Errors
    /// The network failed.
    pub fn heal(
        &mut self,
        collective: &mut Collective,
        step: u32,
        parameters: &mut [f32],
    ) -> Result<VoteResult<f64>, Error> {
        let id = |bucket| OperationId { step, bucket };
        let healed = collective.heal(id(HEAL), parameters, self.limit);
        if let Err(missing) = unless_missing(healed, &mut self.failed_heals)? {
            return Ok(Err(missing));
        }
        let spread = collective.spread(id(AFTER), &self.safeguards, parameters, self.limit);
        unless_missing(spread, &mut self.failed_heals)
    }
}

/// Counts failures in a row; a missing worker does not end the training.
fn unless_missing<T>(result: Result<T, Error>, failed: &mut u32) -> Result<VoteResult<T>, Error> {
    match result {
        Ok(value) => {
            *failed = 0;
            Ok(Ok(value))
        }
        Err(Error::Incomplete(missing)) => {
            *failed += 1;
            Ok(Err(missing.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// The votes of a run, for the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Agreements {
    /// Updates that all workers skipped.
    pub skipped_updates: u32,
    /// The drift of the replicas, if measured.
    pub drift: Option<Drift>,
    /// Changes of the Hadamard transform, if it follows the loss.
    pub coding: Option<Vec<Switched>>,
    /// Why voting stopped, if it did.
    pub ended: Option<String>,
}

/// The transform was switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Switched {
    /// The step before the change.
    pub step: u32,
    /// The new state.
    pub on: bool,
}

/// The drift of the replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Drift {
    /// The largest tolerated spread, as a fraction of the parameters' norm.
    pub bound: f64,
    /// Number of steps between measurements.
    pub every: u32,
    /// Number of measurements.
    pub measured: u32,
    /// The largest spread.
    pub largest: f64,
    /// Averaged replicas.
    pub healed: Vec<Healed>,
}

/// An averaging of the replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Healed {
    /// The step before it.
    pub step: u32,
    /// The spread before.
    pub before: f64,
    /// The spread after.
    pub after: f64,
}

impl Agreements {
    /// An empty record for a run with these rules.
    pub fn new(rules: Rules) -> Self {
        Self {
            coding: rules.coding.map(|_| Vec::new()),
            drift: rules.drift.map(|rule| Drift {
                bound: rule.bound,
                every: rule.every,
                ..Drift::default()
            }),
            ..Self::default()
        }
    }

    /// Records the result of a vote after `step`, as one worker reports it; all workers have the same.
    pub fn count(&mut self, step: u32, agreed: &VoteResult<Agreed>) {
        let agreed = match agreed {
            Ok(agreed) => agreed,
            Err(missing) => {
                self.ended.get_or_insert_with(|| missing.clone());
                return;
            }
        };
        self.skipped_updates += u32::from(agreed.skipped);
        if let (Some(coding), Some(on)) = (&mut self.coding, agreed.code) {
            let was = coding.last().is_some_and(|last| last.on);
            coding.extend((on != was).then_some(Switched { step, on }));
        }
        if let (Some(drift), Some(spread)) = (&mut self.drift, agreed.spread) {
            drift.measured += 1;
            drift.largest = drift.largest.max(spread);
            match &agreed.healed_to {
                Some(Ok(after)) => drift.healed.push(Healed {
                    step,
                    before: spread,
                    after: *after,
                }),
                Some(Err(missing)) => {
                    self.ended.get_or_insert_with(|| missing.clone());
                }
                None => {}
            }
        }
    }
}
