//! Training over operations that lose packets.

use std::time::Duration;

use anyhow::Result;
use ultima_host::{Coding, Config, Recycling};

use super::cores::{Cores, Lost};
use ultima_digits::baseline::exact_mean;
use ultima_digits::data::{CLASSES, PIXELS};
use ultima_digits::metrics::{Accuracy, RunError, UpdateError, replica_spread};
use ultima_digits::mlp::Mlp;
use ultima_digits::training::{Plan, learning_rate};

/// A training job.
#[derive(Clone, Debug)]
pub struct Job {
    pub plan: Plan,
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    pub steps: u32,
}

/// Protection against losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Gradients are Hadamard-coded.
    pub hadamard: bool,
    /// Later steps send lost values again.
    pub recycling: bool,
}

impl Variant {
    /// All variants, from the least protection to the most.
    pub const ALL: [Variant; 4] = [
        Variant::new(false, false),
        Variant::new(false, true),
        Variant::new(true, false),
        Variant::new(true, true),
    ];

    const fn new(hadamard: bool, recycling: bool) -> Self {
        Self {
            hadamard,
            recycling,
        }
    }

    /// The name in tables and plots.
    pub fn name(self) -> &'static str {
        match (self.hadamard, self.recycling) {
            (false, false) => "plain",
            (false, true) => "recycling",
            (true, false) => "Hadamard",
            (true, true) => "Hadamard, recycling",
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trained {
    /// Accuracy on the held-out examples, mean over the ranks' replicas.
    pub accuracy: f64,
    /// The largest distance of any replica from rank 0's, in units of its norm.
    pub spread: f64,
    /// Distance of the sum of a rank's updates from the sum of the exact means: mean over the ranks of
    /// ‖Σ applied − Σ exact‖²/‖Σ exact‖².
    pub run_error: f64,
    /// The same for single steps, mean over steps.
    pub step_error: f64,
}

/// Trains with exact means.
///
/// # Errors
/// If the embedded data are damaged.
pub fn exact(job: &Job) -> Result<Trained> {
    train(job, |gradients, mean| {
        gradients
            .iter_mut()
            .for_each(|own| own.copy_from_slice(mean));
        Ok(())
    })
}

/// Trains over protocol cores that lose packets.
///
/// # Errors
/// If the cores cannot run with this number of ranks.
pub fn with_losses(job: &Job, variant: Variant, lost: &mut Lost<'_>) -> Result<Trained> {
    let Plan { workers, seed, .. } = job.plan;
    // Any value will do: time advances to the next timer without waiting.
    let t_b = Duration::from_millis(10);
    let config = Config {
        coding: match variant.hadamard {
            true => Coding::default(),
            false => Coding::Identity,
        },
        recycling: variant.recycling.then(Recycling::default),
        ..Config::new(1, 1, 0, workers, seed, t_b)
    };
    let mut cores = Cores::new(&config)?;
    train(job, |gradients, _| cores.step(gradients, lost))
}

/// Trains a replica at each rank. `average` gets all gradients and their exact mean, and replaces each gradient by the update
/// that its rank applies.
fn train(
    job: &Job,
    mut average: impl FnMut(&mut [Vec<f32>], &[f32]) -> Result<()>,
) -> Result<Trained> {
    let (digits, mut batches) = job.plan.deal()?;
    let hidden = job.hidden.iter().copied();
    let widths: Vec<usize> = [PIXELS]
        .into_iter()
        .chain(hidden)
        .chain([CLASSES])
        .collect();
    let mut replicas = vec![Mlp::new(&widths, job.plan.seed); batches.len()];
    let parameters = replicas[0].parameters().len();
    let mut gradients = vec![vec![0.0; parameters]; replicas.len()];
    let mut mean = vec![0.0; parameters];
    let mut run_error = RunError::new(replicas.len(), parameters);
    let mut step_error = UpdateError::default();
    for step in 0..job.steps {
        for ((model, batches), gradient) in replicas.iter().zip(&mut batches).zip(&mut gradients) {
            let batch = batches.draw(&digits.train);
            model.gradient(batch.features(), batch.labels(), gradient);
        }
        exact_mean(&gradients, &mut mean);
        average(&mut gradients, &mean)?;
        run_error.add(gradients.iter().map(|own| Some(&own[..])), &mean);
        for update in &gradients {
            step_error.add(update, &mean);
        }
        for (model, update) in replicas.iter_mut().zip(&gradients) {
            model.descend(update, learning_rate(step, job.steps));
        }
    }
    let accuracy = |model| Accuracy::of(model, &digits.held_out).overall();
    let sum: f64 = replicas.iter().map(accuracy).sum();
    let parameters: Vec<&[f32]> = replicas.iter().map(Mlp::parameters).collect();
    Ok(Trained {
        accuracy: sum / replicas.len() as f64,
        spread: replica_spread(&parameters),
        run_error: run_error.mean(|_| true),
        step_error: step_error.mean(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_digits::shards::Dealing;
    use ultima_wire::Header;

    fn job(steps: u32) -> Job {
        let plan = Plan {
            workers: 3,
            shards: Dealing::ByClass,
            seed: 5,
        };
        Job {
            plan,
            hidden: vec![96],
            steps,
        }
    }

    #[test]
    fn without_loss_the_run_is_exact() {
        let job = job(20);
        let exact = exact(&job).expect("trains");
        assert_eq!(
            (exact.spread, exact.run_error, exact.step_error),
            (0.0, 0.0, 0.0)
        );
        let plain = with_losses(&job, Variant::new(false, false), &mut |_, _| false);
        let plain = plain.expect("trains");
        assert_eq!((plain.accuracy, plain.spread), (exact.accuracy, 0.0));
        // Owners add in an order of their own, so the last bits differ from those of sums in the order of ranks.
        assert!(
            plain.run_error < 1e-12 && plain.step_error < 1e-12,
            "{plain:?}"
        );
    }

    #[test]
    fn recycling_keeps_replicas_together() {
        let job = job(40);
        let run = |recycling| {
            // A fifth of all packets, pseudorandom.
            let mut sent = 0u32;
            let mut lost = |_: &Header, _| {
                sent += 1;
                sent.wrapping_mul(0x9e37_79b1) < u32::MAX / 5
            };
            with_losses(&job, Variant::new(true, recycling), &mut lost).expect("trains")
        };
        let [without, with] = [false, true].map(run);
        assert!(without.spread > 1e-3, "{without:?}");
        assert!(with.spread < without.spread / 3.0, "{with:?} {without:?}");
        assert!(with.run_error < without.run_error, "{with:?} {without:?}");
        // A step's update includes values of other steps.
        assert!(with.step_error > without.step_error, "{with:?} {without:?}");
    }
}
