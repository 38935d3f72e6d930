//! How the demo trains: its constants, and one worker's part of a step.

use crate::data::{CLASSES, Digits, DigitsError, PIXELS};
use crate::metrics::Accuracy;
use crate::mlp::Mlp;
use crate::shards::{Batches, Dealing, deal};
use serde::{Deserialize, Serialize};

/// The model's layers: 104,842 parameters, about 300 packets of 1,408 bytes payload, hence a step that a
/// lost packet is a small part of.
pub const WIDTHS: [usize; 4] = [PIXELS, 288, 288, CLASSES];

/// Examples that a worker takes per step.
pub const BATCH: usize = 64;

/// Step size of plain gradient descent at the first step, for the mean gradient over all workers whatever
/// their number.
///
/// Half of it in twice the steps, or twice in half, ends as well without loss; with loss the smaller one lets replicas
/// part less and costs less accuracy, most of all where shards are dealt by class.
const LEARNING_RATE: f32 = 0.25;

/// The step size at `step` of `steps`: it falls linearly to zero, so that the noise of small batches, and of
/// whatever the network lost, averages out towards the end instead of being the last word.
pub fn learning_rate(step: u32, steps: u32) -> f32 {
    LEARNING_RATE * (steps - step) as f32 / steps as f32
}

/// Steps of a run unless the user says otherwise.
pub const STEPS: u32 = 600;

/// The settings that all processes of a run share, so that they train the same model.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How many workers share the training set.
    pub workers: u16,
    /// How it is dealt to them.
    pub shards: Dealing,
    /// Decides split, shards, first weights and order of examples.
    pub seed: u64,
}

impl Plan {
    /// The data, and for each rank its way through them.
    ///
    /// # Errors
    /// If the embedded data are damaged.
    pub fn deal(&self) -> Result<(Digits, Vec<Batches>), DigitsError> {
        let digits = Digits::load(self.seed)?;
        let shards = deal(
            digits.train.labels(),
            self.workers.into(),
            self.shards,
            self.seed,
        );
        let batches = shards.into_iter().enumerate();
        let batches = batches
            .map(|(rank, shard)| Batches::new(shard, BATCH, self.seed, rank))
            .collect();
        Ok((digits, batches))
    }

    /// The model that every worker starts from.
    pub fn model(&self) -> Mlp {
        Mlp::new(&WIDTHS, self.seed)
    }
}

/// One worker: its replica of the model and its share of the data.
#[derive(Clone, Debug)]
pub struct Trainer {
    digits: Digits,
    batches: Batches,
    model: Mlp,
}

impl Trainer {
    /// The worker with this `rank`.
    ///
    /// # Errors
    /// If the embedded data are damaged.
    ///
    /// # Panics
    /// If the rank is not below the plan's workers.
    pub fn new(plan: Plan, rank: u16) -> Result<Self, DigitsError> {
        let (digits, mut batches) = plan.deal()?;
        Ok(Self {
            digits,
            batches: batches.swap_remove(rank.into()),
            model: plan.model(),
        })
    }

    /// The replica's parameters.
    pub fn parameters(&self) -> &[f32] {
        self.model.parameters()
    }

    /// The same to be replaced.
    pub fn parameters_mut(&mut self) -> &mut [f32] {
        self.model.parameters_mut()
    }

    /// Takes the next batch, writes its mean gradient into `gradient`, returns its mean loss in nats.
    ///
    /// # Panics
    /// If `gradient` has not one entry per parameter.
    pub fn gradient(&mut self, gradient: &mut [f32]) -> f32 {
        let batch = self.batches.draw(&self.digits.train);
        self.model
            .gradient(batch.features(), batch.labels(), gradient)
    }

    /// Applies the workers' mean gradient to the replica, with this step size.
    ///
    /// # Panics
    /// If `mean` has not one entry per parameter.
    pub fn apply(&mut self, mean: &[f32], rate: f32) {
        self.model.descend(mean, rate);
    }

    /// How well the replica classifies what was held out.
    pub fn accuracy(&self) -> Accuracy {
        Accuracy::of(&self.model, &self.digits.held_out)
    }
}
