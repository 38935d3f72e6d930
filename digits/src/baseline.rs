//! The run to compare with: the same training in one process, its gradients averaged exactly.

use crate::data::DigitsError;
use crate::metrics::Accuracy;
use crate::training::{Plan, learning_rate};

/// The result of training with exact averages.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// On the held-out examples.
    pub accuracy: Accuracy,
    /// After the last step, as [`Mlp::parameters`](crate::mlp::Mlp::parameters) lays them out.
    pub parameters: Vec<f32>,
}

/// Trains for `steps` as the plan's workers would if nothing were ever lost.
///
/// # Errors
/// If the embedded data are damaged.
pub fn train(plan: Plan, steps: u32) -> Result<Baseline, DigitsError> {
    let (digits, mut batches) = plan.deal()?;
    let mut model = plan.model();
    let mut gradients = vec![vec![0.0; model.parameters().len()]; plan.workers.into()];
    let mut mean = vec![0.0; model.parameters().len()];
    for step in 0..steps {
        for (batches, gradient) in batches.iter_mut().zip(&mut gradients) {
            let batch = batches.draw(&digits.train);
            model.gradient(batch.features(), batch.labels(), gradient);
        }
        exact_mean(&gradients, &mut mean);
        model.descend(&mean, learning_rate(step, steps));
    }
    Ok(Baseline {
        accuracy: Accuracy::of(&model, &digits.held_out),
        parameters: model.parameters().to_vec(),
    })
}

/// Writes the mean of `gradients`, added in rank order, into `mean`.
///
/// # Panics
/// If there is no gradient, or one of another length than `mean`.
pub fn exact_mean<G: AsRef<[f32]>>(gradients: &[G], mean: &mut [f32]) {
    let (first, others) = gradients.split_first().expect("a mean needs a gradient");
    mean.copy_from_slice(first.as_ref());
    for gradient in others {
        assert_eq!(
            gradient.as_ref().len(),
            mean.len(),
            "gradients of one model"
        );
        mean.iter_mut()
            .zip(gradient.as_ref())
            .for_each(|(sum, entry)| *sum += entry);
    }
    let count = gradients.len() as f32;
    mean.iter_mut().for_each(|sum| *sum /= count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::Dealing;
    use crate::training::{STEPS, Trainer};
    use ultima_testing::per_run;

    #[test]
    fn a_mean_is_the_sum_by_the_count() {
        let mut mean = [f32::NAN; 3];
        exact_mean(
            &[[1.0, 2.0, -4.0], [2.0, 4.0, 4.0], [6.0, 0.0, 3.0]],
            &mut mean,
        );
        assert_eq!(mean, [3.0, 2.0, 1.0]);
    }

    #[test]
    fn the_default_run_learns_however_shards_are_dealt() {
        let all = [Dealing::ByClass, Dealing::Random];
        for shards in all.into_iter().take(per_run(1, all.len())) {
            let accuracy = train(
                Plan {
                    workers: 4,
                    shards,
                    seed: 1,
                },
                STEPS,
            )
            .unwrap()
            .accuracy;
            assert!(
                accuracy.overall() >= 0.96,
                "{shards:?}: {}",
                accuracy.overall()
            );
        }
    }

    #[test]
    fn workers_that_average_exactly_follow_the_baseline_bit_for_bit() {
        let plan = Plan {
            workers: 3,
            shards: Dealing::ByClass,
            seed: 5,
        };
        let mut trainers: Vec<Trainer> = (0..plan.workers)
            .map(|rank| Trainer::new(plan, rank).unwrap())
            .collect();
        let parameters = trainers[0].parameters().len();
        let mut gradients = vec![vec![0.0; parameters]; plan.workers.into()];
        let mut mean = vec![0.0; parameters];
        for step in 0..3 {
            for (trainer, gradient) in trainers.iter_mut().zip(&mut gradients) {
                trainer.gradient(gradient);
            }
            exact_mean(&gradients, &mut mean);
            let rate = learning_rate(step, 3);
            trainers
                .iter_mut()
                .for_each(|trainer| trainer.apply(&mean, rate));
        }
        let baseline = train(plan, 3).unwrap();
        for trainer in &trainers {
            assert!(trainer.parameters() == baseline.parameters);
            assert_eq!(trainer.accuracy(), baseline.accuracy);
        }
    }
}
