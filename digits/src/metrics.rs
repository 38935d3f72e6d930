//! The measures of a run: accuracy, the replicas' distance, the updates' errors, and their durations.

use crate::data::{CLASSES, Samples};
use crate::mlp::Mlp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Right answers on the held-out examples, by the digit that they show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accuracy {
    correct: [u32; CLASSES],
    examples: [u32; CLASSES],
}

impl Accuracy {
    /// The accuracy of `model` on `samples`.
    pub fn of(model: &Mlp, samples: &Samples) -> Self {
        let mut accuracy = Self::default();
        for (answer, &class) in model
            .classify(samples.features())
            .iter()
            .zip(samples.labels())
        {
            accuracy.examples[usize::from(class)] += 1;
            accuracy.correct[usize::from(class)] += u32::from(*answer == class);
        }
        accuracy
    }

    /// The share of right answers, 0 to 1; NaN without examples.
    pub fn overall(&self) -> f64 {
        share(self.correct.iter().sum(), self.examples.iter().sum())
    }

    /// The same for each digit; NaN for a digit without examples.
    pub fn by_class(&self) -> [f64; CLASSES] {
        std::array::from_fn(|class| share(self.correct[class], self.examples[class]))
    }
}

fn share(part: u32, of: u32) -> f64 {
    f64::from(part) / f64::from(of)
}

/// How far replicas have parted: the largest ‖w_i − w_0‖/‖w_0‖, where w_0 is the first replica.
///
/// Zero when all are bit-identical, and for fewer than two.
pub fn replica_spread<R: AsRef<[f32]>>(replicas: &[R]) -> f64 {
    let Some((first, others)) = replicas.split_first() else {
        return 0.0;
    };
    others
        .iter()
        .map(|other| squared_error(other.as_ref(), first.as_ref()))
        .fold(0.0, f64::max)
        .sqrt()
}

/// ‖value − reference‖²/‖reference‖², summed in f64; zero when both are equal, infinite when only
/// the reference is zero.
fn squared_error(value: &[f32], reference: &[f32]) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    for (&value, &reference) in value.iter().zip(reference) {
        error += (f64::from(value) - f64::from(reference)).powi(2);
        norm += f64::from(reference).powi(2);
    }
    if error == 0.0 { 0.0 } else { error / norm }
}

/// The mean, over ranks and steps, of ‖applied − exact‖²/‖exact‖².
///
/// Every update weighs the same: with ranks that took part in every step this is the mean over steps of
/// the mean over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateError {
    sum: f64,
    updates: u64,
}

impl UpdateError {
    /// Counts one rank's update of one step: what it `applied` against the `exact` mean gradient.
    pub fn add(&mut self, applied: &[f32], exact: &[f32]) {
        self.sum += squared_error(applied, exact);
        self.updates += 1;
    }

    /// The mean; zero before the first update.
    pub fn mean(&self) -> f64 {
        if self.updates == 0 {
            0.0
        } else {
            self.sum / self.updates as f64
        }
    }
}

/// How far all that each rank applied in a run is from all exact updates.
pub struct RunError {
    /// By rank.
    applied: Vec<Vec<f64>>,
    exact: Vec<f64>,
}

impl RunError {
    /// For `ranks` and updates of `parameters` values.
    pub fn new(ranks: usize, parameters: usize) -> Self {
        Self {
            applied: vec![vec![0.0; parameters]; ranks],
            exact: vec![0.0; parameters],
        }
    }

    /// Counts one step: what each rank `applied`, none by one that was gone, against the `exact` mean gradient.
    pub fn add<'a>(&mut self, applied: impl Iterator<Item = Option<&'a [f32]>>, exact: &[f32]) {
        let parts = self.applied.iter_mut().zip(applied);
        let parts = parts.filter_map(|(sum, values)| Some((sum, values?)));
        for (sum, values) in parts.chain([(&mut self.exact, exact)]) {
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += f64::from(*value);
            }
        }
    }

    /// The mean over the ranks that `finished` of ‖Σ applied − Σ exact‖²/‖Σ exact‖²; zero without any.
    pub fn mean(&self, finished: impl Fn(usize) -> bool) -> f64 {
        let norm: f64 = self.exact.iter().map(|exact| exact.powi(2)).sum();
        let errors: Vec<f64> = (self.applied.iter().enumerate())
            .filter(|(rank, _)| finished(*rank))
            .map(|(_, applied)| {
                let parts = applied.iter().zip(&self.exact);
                parts.map(|(a, exact)| (a - exact).powi(2)).sum::<f64>() / norm
            })
            .collect();
        match errors.len() {
            0 => 0.0,
            ranks => errors.iter().sum::<f64>() / ranks as f64,
        }
    }
}

/// Percentiles of durations, in milliseconds, exact from all samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the samples took at most this.
    pub p50: f64,
    /// 99 % of the samples took at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Percentiles {
    /// Of `samples`, by the nearest-rank definition, so that each is one of them; zeros without any.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100);
            rank.checked_sub(1)
                .map_or(0.0, |index| samples[index].as_secs_f64() * 1e3)
        };
        Self {
            p50: percentile(50),
            p99: percentile(99),
            max: percentile(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Digits, PIXELS};

    #[test]
    fn accuracy_counts_by_class_what_the_model_answers() {
        let held_out = Digits::load(1).unwrap().held_out;
        let model = Mlp::new(&[PIXELS, CLASSES], 1);
        let accuracy = Accuracy::of(&model, &held_out);
        let answers = model.classify(held_out.features());
        let right = answers
            .iter()
            .zip(held_out.labels())
            .filter(|(a, b)| a == b)
            .count();
        assert_eq!(accuracy.overall(), right as f64 / held_out.len() as f64);
        let weighted: f64 = accuracy
            .by_class()
            .iter()
            .zip(accuracy.examples)
            .map(|(share, examples)| share * f64::from(examples))
            .sum();
        assert!((weighted - right as f64).abs() < 1e-9);
        assert!(
            (0.0..0.5).contains(&accuracy.overall()),
            "untrained: {}",
            accuracy.overall()
        );
    }

    #[test]
    fn spread_is_the_largest_relative_distance_to_the_first() {
        assert_eq!(replica_spread::<Vec<f32>>(&[]), 0.0);
        assert_eq!(replica_spread(&[[3.0, 4.0], [3.0, 4.0]]), 0.0);
        // Distances 1 and 2 from a replica of norm 5.
        assert_eq!(replica_spread(&[[3.0, 4.0], [4.0, 4.0], [3.0, 6.0]]), 0.4);
    }

    #[test]
    fn errors_of_a_run_cancel_between_steps() {
        let mut error = RunError::new(3, 2);
        let [none, twice]: [&[f32]; 2] = [&[0.0, 0.0], &[6.0, 8.0]];
        let exact = [3.0, 4.0];
        error.add([Some(none), Some(twice), None].into_iter(), &exact);
        error.add([Some(twice), Some(twice), None].into_iter(), &exact);
        assert_eq!(error.mean(|rank| rank == 0), 0.0);
        assert_eq!(error.mean(|rank| rank < 2), 0.5);
        assert_eq!(error.mean(|_| false), 0.0);
    }

    #[test]
    fn update_error_is_the_mean_over_updates() {
        let exact = [3.0, 4.0];
        let mut error = UpdateError::default();
        assert_eq!(error.mean(), 0.0);
        error.add(&exact, &exact);
        // A zero in the update's place is wrong by all of it.
        error.add(&[0.0, 0.0], &exact);
        assert_eq!(error.mean(), 0.5);
        error.add(&[3.0, 9.0], &exact);
        // A step whose exact gradient is zero is right when nothing is applied.
        error.add(&[0.0], &[0.0]);
        assert_eq!(error.mean(), 0.5);
    }

    #[test]
    fn percentiles_are_samples_of_nearest_rank() {
        let samples = |n: u64| (1..=n).rev().map(Duration::from_millis).collect();
        assert_eq!(Percentiles::of(samples(0)), Percentiles::default());
        assert_eq!(
            Percentiles::of(samples(1)),
            Percentiles {
                p50: 1.0,
                p99: 1.0,
                max: 1.0
            }
        );
        assert_eq!(
            Percentiles::of(samples(3)),
            Percentiles {
                p50: 2.0,
                p99: 3.0,
                max: 3.0
            }
        );
        assert_eq!(
            Percentiles::of(samples(200)),
            Percentiles {
                p50: 100.0,
                p99: 198.0,
                max: 200.0
            }
        );
    }
}
