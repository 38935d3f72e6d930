//! Cross traffic.

use rand_distr::{Distribution, Exp, Pareto};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::clock::Ps;

/// The Pareto distribution's shape: finite mean, infinite variance, like flow sizes in data centres.
const SHAPE: f64 = 1.5;

/// Bursts of other hosts' packets in a queue: a Poisson process whose bursts have Pareto lengths.
///
/// A burst arrives at once, as through fast upstream links. A queue is only observed when a packet arrives,
/// so the bursts since the last packet are added then, and cost no events.
pub(crate) struct Bursts {
    next: Ps,
    gaps: Exp<f64>,
    /// A burst's time on the link, in seconds.
    lengths: Pareto<f64>,
    random: Xoshiro256PlusPlus,
}

impl Bursts {
    /// Creates bursts that take `share` of a link, over 0 and under 1, and `mean` of its time each.
    pub(crate) fn new(share: f64, mean: Ps, random: Xoshiro256PlusPlus) -> Self {
        let mean = mean.as_secs();
        let mut bursts = Self {
            next: Ps::ZERO,
            gaps: Exp::new(share / mean).expect("a positive rate"),
            lengths: Pareto::new(mean * (SHAPE - 1.0) / SHAPE, SHAPE).expect("a positive scale"),
            random,
        };
        bursts.next = bursts.gap();
        bursts
    }

    fn gap(&mut self) -> Ps {
        Ps::from_secs_f64(self.gaps.sample(&mut self.random))
    }

    /// The time at which a queue is empty that would be empty at `free_at` without the bursts until `now`. Bytes that
    /// do not fit into `depth` are dropped.
    pub(crate) fn until(&mut self, now: Ps, mut free_at: Ps, depth: Ps) -> Ps {
        while self.next <= now {
            let full = self.next + depth;
            let length = Ps::from_secs_f64(self.lengths.sample(&mut self.random));
            let more = free_at.max(self.next) + length;
            free_at = more.min(full.max(free_at));
            let gap = self.gap();
            self.next += gap;
        }
        free_at
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn bursts_take_their_share() {
        let random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut bursts = Bursts::new(0.3, Ps(10_000_000), random);
        let (mut busy, mut free_at) = (0, Ps::ZERO);
        let step = Ps(1_000_000);
        let steps = 2_000_000;
        let mut now = Ps::ZERO;
        for _ in 0..steps {
            now += step;
            free_at = bursts.until(now, free_at, Ps(1_000_000_000));
            busy += u64::from(free_at > now);
        }
        let share = busy as f64 / steps as f64;
        assert!((share - 0.3).abs() < 0.03, "{share}");
    }
}
