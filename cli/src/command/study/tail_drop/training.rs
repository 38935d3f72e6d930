//! Training with what operations that are cut deliver.

use std::time::Duration;

use anyhow::Result;
use ultima_host::{Coding, Config, Recycling};

use super::tails::Tails;
use crate::command::study::cores::Cores;
use crate::demo::baseline::exact_mean;
use crate::demo::digits::{CLASSES, PIXELS};
use crate::demo::metrics::{Accuracy, replica_spread};
use crate::demo::mlp::Mlp;
use crate::demo::training::{Plan, learning_rate};

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
}

/// Trains with exact means.
///
/// # Errors
/// If the embedded data are damaged.
pub fn exact(job: &Job) -> Result<Trained> {
    let mut mean = Vec::new();
    train(job, |gradients| {
        mean.resize(gradients[0].len(), 0.0);
        exact_mean(gradients, &mut mean);
        gradients.iter_mut().for_each(|own| own.clone_from(&mean));
        Ok(())
    })
}

/// Trains with what the protocol cores deliver when `share` is cut off every message.
///
/// # Errors
/// If the cores cannot run with as many ranks.
pub fn with_cut(job: &Job, share: f64, variant: Variant) -> Result<Trained> {
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
    let mut tails = Tails::new(share, seed);
    train(job, |gradients| {
        cores.step(gradients, &mut |header, receiver| {
            tails.cuts(header, receiver)
        })
    })
}

/// Trains a replica at each rank; `average` puts into each rank's gradient what that rank applies.
fn train(job: &Job, mut average: impl FnMut(&mut [Vec<f32>]) -> Result<()>) -> Result<Trained> {
    let (digits, mut batches) = job.plan.deal()?;
    let hidden = job.hidden.iter().copied();
    let widths: Vec<usize> = [PIXELS]
        .into_iter()
        .chain(hidden)
        .chain([CLASSES])
        .collect();
    let mut replicas = vec![Mlp::new(&widths, job.plan.seed); batches.len()];
    let mut gradients = vec![vec![0.0; replicas[0].parameters().len()]; replicas.len()];
    for step in 0..job.steps {
        for ((model, batches), gradient) in replicas.iter().zip(&mut batches).zip(&mut gradients) {
            let batch = batches.draw(&digits.train);
            model.gradient(batch.features(), batch.labels(), gradient);
        }
        average(&mut gradients)?;
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::shards::Dealing;

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
    fn with_nothing_cut_it_is_the_exact_run() {
        let job = job(20);
        let exact = exact(&job).expect("trains");
        assert_eq!(exact.spread, 0.0);
        let plain = with_cut(&job, 0.0, Variant::new(false, false)).expect("trains");
        assert_eq!(plain, exact);
    }

    #[test]
    fn what_is_cut_parts_replicas_and_recycling_brings_them_together() {
        let job = job(40);
        let spread = |recycling| {
            with_cut(&job, 0.2, Variant::new(true, recycling))
                .expect("trains")
                .spread
        };
        let [without, with] = [false, true].map(spread);
        assert!(without > 1e-3, "{without}");
        assert!(with < without / 3.0, "{with} {without}");
    }
}
