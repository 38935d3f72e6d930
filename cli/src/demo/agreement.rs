//! What the workers agree on beside the updates: one worker's part, and what the main process makes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::{Collective, Error, OperationId, Outcome, Rules, Safeguards};

use super::deadline::Bounds;

/// The gradients' bucket, and those of what is exact.
pub const GRADIENT: u16 = 0;
const VOTE: u16 = 1;
const HEAL: u16 = 2;
const AFTER: u16 = 3;

/// What the machine may take beyond deadlines and sleeps, until a worker that does not vote is taken to be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Exact operations of one kind that fail in a row before a worker gives that kind up. A single one may fail at one
/// worker and succeed at the others; the next one then repairs it.
const MISSES: u32 = 2;

/// What all workers agreed on after a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// The update was applied by none.
    pub skipped: bool,
    /// How far replicas had parted, where that was measured.
    pub spread: Option<f64>,
    /// Whether they are averaged.
    pub heal: bool,
    /// How far the averaged replicas are from each other, or which ranks are missing; none where they were not averaged.
    pub healed_to: Option<Told<f64>>,
    /// Whether gradients are coded from now on, where that was decided.
    pub code: Option<bool>,
}

/// What was agreed, or in one line who is missing.
pub type Told<T> = Result<T, String>;

/// One worker's part.
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
            limit: PATIENCE + 10 * bounds.t_b + 10 * sleeps,
            heals,
            failed_votes: 0,
            failed_heals: 0,
        }
    }

    /// Votes on the update of a step where that is due: none where it is not, an error's text where a worker is missing.
    /// `update` becomes zero where all skip it; `parameters` is what it will be applied to.
    ///
    /// # Errors
    /// If the workers agreed to stop, or the network is gone.
    pub fn vote(
        &mut self,
        collective: &mut Collective,
        outcome: &Outcome,
        update: &mut [f32],
        parameters: &[f32],
    ) -> Result<Option<Told<Agreed>>, Error> {
        let step = outcome.id.step;
        if self.failed_votes >= MISSES || !self.safeguards.is_due(step) {
            return Ok(None);
        }
        let id = OperationId { step, bucket: VOTE };
        let lost = outcome.lost_share();
        let verdict = collective.agree(id, &mut self.safeguards, (lost, parameters), self.limit);
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

    /// Averages the replicas; tells how far they are from each other then.
    ///
    /// # Errors
    /// If the network is gone.
    pub fn heal(
        &mut self,
        collective: &mut Collective,
        step: u32,
        parameters: &mut [f32],
    ) -> Result<Told<f64>, Error> {
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
fn unless_missing<T>(result: Result<T, Error>, failed: &mut u32) -> Result<Told<T>, Error> {
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

/// What was agreed in a run, as the report tells it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Agreements {
    /// Updates that all workers skipped.
    pub skipped_updates: u32,
    /// The drift of the replicas, where it is measured.
    pub drift: Option<Drift>,
    /// When gradients were coded and when not, where that follows the loss.
    pub coding: Option<Vec<Switched>>,
    /// Why nothing was agreed any more from some step on.
    pub ended: Option<String>,
}

/// The transform was switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Switched {
    /// After which step.
    pub step: u32,
    /// On.
    pub on: bool,
}

/// How far replicas parted on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Drift {
    /// The largest spread that is left alone, as a share of the parameters' norm.
    pub bound: f64,
    /// Measured in every so many steps.
    pub every: u32,
    /// How often it was measured.
    pub measured: u32,
    /// The largest that was found.
    pub largest: f64,
    /// When replicas were averaged.
    pub healed: Vec<Healed>,
}

/// Replicas that were averaged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Healed {
    /// After which step.
    pub step: u32,
    /// How far they had parted.
    pub before: f64,
    /// How far they were from each other then.
    pub after: f64,
}

impl Agreements {
    /// Nothing yet, in a run with these rules.
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

    /// What the workers agreed on after `step`, which all say alike: one of them is asked.
    pub fn count(&mut self, step: u32, agreed: &Told<Agreed>) {
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
