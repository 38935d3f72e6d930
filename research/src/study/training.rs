//! Training with what operations deliver that lose packets.

use std::time::Duration;

use anyhow::Result;
use ultima_host::{Coding, Config, Recycling};

use super::cores::{Cores, Lost};
use ultima_digits::baseline::exact_mean;
use ultima_digits::data::{CLASSES, PIXELS};
use ultima_digits::metrics::{Accuracy, RunError, UpdateError, replica_spread};
use ultima_digits::mlp::Mlp;
use ultima_digits::training::{Plan, learning_rate};

/// What is trained.
#[derive(Clone, Debug)]
pub struct Job {
    pub plan: Plan,
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    pub steps: u32,
}

/// How losses are met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Gradients are Hadamard-coded.
    pub hadamard: bool,
    /// Later steps make losses good.
    pub recycling: bool,
}

impl Variant {
    /// From what does least about losses to what does most.
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

    /// As tables and plots have it.
    pub fn name(self) -> &'static str {
        match (self.hadamard, self.recycling) {
            (false, false) => "plain",
            (false, true) => "recycling",
            (true, false) => "Hadamard",
            (true, true) => "Hadamard, recycling",
        }
    }
}

/// What a run led to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trained {
    /// On the held-out examples, the mean over the ranks' replicas.
    pub accuracy: f64,
    /// The largest distance of any replica from rank 0's, in units of its norm.
    pub spread: f64,
    /// How far the sum of all that a rank applied is from that of the exact means: the mean over the ranks of
    /// ‖Σ applied − Σ exact‖²/‖Σ exact‖².
    pub run_error: f64,
    /// The mean of the same over single steps.
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

/// Trains with what the protocol cores deliver when packets get lost.
///
/// # Errors
/// If the cores cannot run with as many ranks.
pub fn with_losses(job: &Job, variant: Variant, lost: &mut Lost<'_>) -> Result<Trained> {
    let Plan { workers, seed, .. } = job.plan;
    // Nothing waits for it here: whoever gives something up says so.
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

/// Trains a replica at each rank; `average` puts into each rank's gradient, whose exact mean it is given, what that rank
/// applies.
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
    fn with_nothing_lost_it_is_the_exact_run() {
        let job = job(20);
        let exact = exact(&job).expect("trains");
        assert_eq!(
            (exact.spread, exact.run_error, exact.step_error),
            (0.0, 0.0, 0.0)
        );
        let plain = with_losses(&job, Variant::new(false, false), &mut |_, _| false);
        assert_eq!(plain.expect("trains"), exact);
    }

    #[test]
    fn what_is_lost_parts_replicas_and_recycling_brings_them_together() {
        let job = job(40);
        let run = |recycling| {
            // A fifth of all packets, as good as at random.
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
        // A step has what belongs to others.
        assert!(with.step_error > without.step_error, "{with:?} {without:?}");
    }
}
