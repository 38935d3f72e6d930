//! Leave-one-out: the mean of the others replaces a missing contribution, and a rank that loses much weighs
//! more when it arrives.

use super::{Contributions, Estimator, weighted};

/// Weight of earlier operations in the moving average of arrivals.
const PAST: f64 = 0.9;
/// Lower bound of a rank's arrival probability. Below it, its weight would exceed four times the others'.
const LEAST: f64 = 0.25;

/// *(1/N)·Σ_i [ m₋ᵢ + (1{i arrived}/p_i)·(y_i − m₋ᵢ) ]*, where m₋ᵢ is the mean of the other contributions
/// that arrived and p_i the share of *i*'s contributions that arrived here in earlier operations (design.md,
/// "Estimators").
///
/// With the right p_i, independent of the others' losses, it is unbiased for lossy ranks too, and its
/// variance is that of the *difference* between a rank and the others. It is linear in the contributions: *j*
/// has the weight *(1/N)·[ 1/p_j + Σ_{i arrived, i≠j} (1−1/p_i)/(n−1) + missing/n ]* if *n* have arrived.
pub(super) struct ControlVariate {
    /// By rank: the average share of arrivals, and this operation's slots, in all and with its contribution.
    arrived: Vec<Arrived>,
    slots: u64,
    weights: Vec<f32>,
}

#[derive(Clone, Copy)]
struct Arrived {
    average: f64,
    now: u64,
}

impl ControlVariate {
    pub(super) fn new(ranks: u16) -> Self {
        let all = Arrived {
            average: 1.0,
            now: 0,
        };
        Self {
            arrived: vec![all; ranks.into()],
            slots: 0,
            weights: vec![0.0; ranks.into()],
        }
    }

    /// 1/p of a rank; the owner's own always arrives.
    fn inverse(&self, contributions: &Contributions<'_>, rank: u16) -> f64 {
        match rank == contributions.rank {
            true => 1.0,
            false => 1.0 / self.arrived[usize::from(rank)].average.max(LEAST),
        }
    }
}

impl Estimator for ControlVariate {
    fn estimate(&mut self, contributions: &Contributions<'_>, mean: &mut [f32]) {
        let mut weights = std::mem::take(&mut self.weights);
        let all = 0..contributions.ranks();
        let arrived = || all.clone().filter(|rank| contributions.has(*rank));
        let ranks = f64::from(contributions.ranks());
        let here = arrived().count() as f64;
        let inverse = |rank| self.inverse(contributions, rank);
        let excess: f64 = arrived().map(|rank| 1.0 - inverse(rank)).sum();
        let missing = (ranks - here) / here;
        for rank in arrived() {
            // Alone, it is its own mean of the others.
            let others = match here > 1.0 {
                true => (excess - (1.0 - inverse(rank))) / (here - 1.0),
                false => 0.0,
            };
            let weight = (inverse(rank) + others + missing) / ranks;
            weights[usize::from(rank)] = weight as f32;
        }
        weighted(contributions, |rank| weights[usize::from(rank)], mean);
        self.weights = weights;
        self.slots += 1;
        for rank in arrived() {
            self.arrived[usize::from(rank)].now += 1;
        }
    }

    fn operation_ended(&mut self) {
        let slots = std::mem::take(&mut self.slots);
        if slots == 0 {
            return;
        }
        for arrived in &mut self.arrived {
            let now = std::mem::take(&mut arrived.now) as f64 / slots as f64;
            arrived.average = arrived.average * PAST + now * (1.0 - PAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::estimate;
    use super::*;

    fn all(_: u16) -> (u32, u32) {
        (1, 1)
    }

    #[test]
    fn without_loss_it_is_the_mean() {
        let mut estimator = ControlVariate::new(4);
        let values = [Some(1.0), Some(2.0), Some(6.0), Some(7.0)];
        assert_eq!(estimate(&mut estimator, 2, &values, all), 4.0);
    }

    #[test]
    fn the_weights_are_the_definitions() {
        let mut estimator = ControlVariate::new(3);
        // Rank 2 loses every other slot, until p_2 has converged.
        for _ in 0..200 {
            estimate(&mut estimator, 0, &[Some(1.0), Some(1.0), Some(1.0)], all);
            estimate(&mut estimator, 0, &[Some(1.0), Some(1.0), None], all);
            estimator.operation_ended();
        }
        let close = |a: f32, b: f64| assert!((f64::from(a) - b).abs() < 1e-4, "{a} {b}");
        let (y0, y1, y2) = (3.0, 5.0, 40.0);
        // m₋₂ is 4, p_2 is a half, the others' are 1.
        let here = estimate(&mut estimator, 0, &[Some(3.0), Some(5.0), Some(40.0)], all);
        close(here, (y0 + y1 + 4.0 + 2.0 * (y2 - 4.0)) / 3.0);
        let gone = estimate(&mut estimator, 0, &[Some(3.0), Some(5.0), None], all);
        close(gone, (y0 + y1 + 4.0) / 3.0);
        // Half of the time each: the exact mean.
        close((here + gone) / 2.0, (y0 + y1 + y2) / 3.0);
        close(
            estimate(&mut estimator, 0, &[Some(3.0), None, None], all),
            3.0,
        );
    }
}
