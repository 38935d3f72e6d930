//! The times at which ranks start an operation: some compute longer than others.

use std::time::Duration;

use rand_distr::{Distribution, StandardUniform};

use crate::clock::Ps;
use crate::tail::{self, Tail};

/// The stage number of draws that belong to no message: no algorithm has as many stages.
const COMPUTE: u32 = u32::MAX;
const STRAGGLER: u32 = u32::MAX - 1;

/// Ranks that sometimes start an operation late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// The probability that a rank starts an operation late, over 0 and at most 1.
    pub share: f64,
    /// The delay.
    pub delay: Duration,
}

/// From one operation's end at the last rank to the next one's start, by rank.
///
/// A rank computes for the time *C*·max(1, *X*). *X* is drawn for each operation and rank from the
/// distribution of messages ([`Tail`]), with its own ratio. A straggler of this operation adds a fixed time.
/// A draw depends on the seed, the operation and the rank, so all algorithms meet the same ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starts {
    compute: Ps,
    tail: Tail,
    stragglers: Option<Stragglers>,
    seed: u64,
}

impl Starts {
    /// Creates starts with the compute time `compute` and p99/p50 of `ratio`.
    pub(crate) fn new(compute: Ps, ratio: f64, stragglers: Option<Stragglers>, seed: u64) -> Self {
        Self {
            compute,
            tail: Tail::new(ratio, seed),
            stragglers,
            seed,
        }
    }

    /// The minimum compute time.
    pub(crate) fn compute(&self) -> Ps {
        self.compute
    }

    /// True if `rank` is a straggler of `operation`.
    pub(crate) fn straggles(&self, operation: u32, rank: u32) -> bool {
        self.stragglers.is_some_and(|stragglers| {
            let mut random = tail::random(self.seed, operation, STRAGGLER, rank);
            let drawn: f64 = StandardUniform.sample(&mut random);
            drawn < stragglers.share
        })
    }

    /// `rank`'s time before `operation` beyond [`Starts::compute`].
    pub(crate) fn delay(&self, operation: u32, rank: u32) -> Ps {
        let factor = self.tail.factor(operation, COMPUTE, rank);
        let longer = Tail::wait(self.compute, factor);
        match self.stragglers {
            Some(stragglers) if self.straggles(operation, rank) => {
                longer + Ps::from(stragglers.delay)
            }
            _ => longer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_share_is_late() {
        let stragglers = Stragglers {
            share: 0.1,
            delay: Duration::from_millis(3),
        };
        let compute = Ps(1_000_000_000);
        let starts = Starts::new(compute, 1.0, Some(stragglers), 5);
        let draws = (0..200).flat_map(|operation| (0..100).map(move |rank| (operation, rank)));
        let late = draws
            .clone()
            .filter(|&(operation, rank)| starts.delay(operation, rank) > Ps::ZERO)
            .inspect(|&(operation, rank)| {
                assert!(starts.straggles(operation, rank));
                assert_eq!(starts.delay(operation, rank), Ps(3_000_000_000));
            })
            .count();
        assert!((1850..2150).contains(&late), "{late} of 20,000");
        let mut longer: Vec<u64> = {
            let starts = Starts::new(compute, 1.5, None, 5);
            draws.map(|(o, r)| starts.delay(o, r).0).collect()
        };
        longer.sort_unstable();
        let [p50, p99] = [10_000, 19_800].map(|at| longer[at] as f64 / compute.0 as f64);
        assert!(p50 < 0.01 && (p99 / 0.5 - 1.0).abs() < 0.1, "{p50} {p99}");
    }
}
