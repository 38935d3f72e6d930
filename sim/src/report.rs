//! What a simulation says.

use serde::Serialize;

use crate::clock::Ps;
use crate::experiment::{Algorithm, Experiment};
use crate::network::Accounts;
use crate::starts::Stragglers;

/// Completion times over the operations of a run, in milliseconds. Percentiles by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Completion {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Completion {
    pub(crate) fn of(mut times: Vec<Ps>) -> Self {
        times.sort_unstable();
        let percentile = |p: usize| {
            let rank = (times.len() * p).div_ceil(100).max(1);
            times.get(rank - 1).map_or(0.0, |time| time.as_ms())
        };
        let sum: f64 = times.iter().map(|time| time.as_ms()).sum();
        Self {
            mean: sum / times.len().max(1) as f64,
            p50: percentile(50),
            p99: percentile(99),
            max: percentile(100),
        }
    }
}

/// A run's results. Equal experiments give equal bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Always true: nothing here was measured on a network.
    pub simulated: bool,
    /// As asked for.
    pub algorithm: Algorithm,
    /// As asked for.
    pub ranks: u16,
    /// Of [`Algorithm::Tar2d`]: groups, as asked for or as cost least.
    pub groups: Option<u16>,
    /// As asked for.
    pub bytes: u64,
    /// As asked for.
    pub slot: usize,
    /// As asked for.
    pub tail: f64,
    /// As asked for.
    pub loss: Option<String>,
    /// As asked for.
    pub operations: u32,
    /// As asked for.
    pub seed: u64,
    /// What ranks compute between operations, as asked for.
    pub compute_ms: f64,
    /// p99/p50 of it, as asked for.
    pub compute_tail: f64,
    /// As asked for.
    pub stragglers: Option<StragglersReport>,
    /// How long the operations took, from the beginning at a rank that is not delayed.
    pub completion_ms: Completion,
    /// Each operation's time, in their order; no part of what is serialised.
    #[serde(skip)]
    pub operations_ms: Vec<f64>,
    /// With stragglers: [`Report::completion_ms`] to the result at the last rank that was none.
    pub on_time_ms: Option<Completion>,
    /// Contributions and aggregates that counted, of those that do without loss; 1 for algorithms that
    /// wait for everything.
    pub arrived_share: f64,
    /// The same of those that the network did not lose (`owed_lost`): what is missing came too late, or its sender had
    /// not sent it in time.
    pub arrived_share_of_not_lost: f64,
    /// Values that arrived over the time that they took, as a share of what the bound allows.
    pub goodput_share_of_bound: f64,
    /// The least time in which a receiver's link carries 2·S·(N−1)/N bytes.
    pub bound_ms: f64,
    /// t_S of the bounded transport; on a grid the rows'.
    pub t_s_ms: Option<f64>,
    /// t_B of the bounded transport; on a grid what the three phases may take.
    pub t_b_ms: Option<f64>,
    /// The least retransmission timeout of TCP; the one of in-network aggregation.
    pub min_rto_ms: Option<f64>,
    /// Slots of the pool of in-network aggregation.
    pub pool_slots: Option<u64>,
    /// In a run with payloads: the largest distance of a result's entry from the exact mean.
    pub worst_error: Option<f32>,
    /// The longest wait in a switch's queue.
    pub longest_queue_us: f64,
    /// The 99th percentile of what packets waited in front of links to hosts that are not slow.
    pub p99_queue_us: f64,
    /// What became of the packets.
    pub network: Accounts,
    /// Events simulated.
    pub events: u64,
    /// The most packets that were on their way at once, copies of one counted once.
    pub most_packets: usize,
}

/// Who begins late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StragglersReport {
    /// The probability for a rank and an operation.
    pub share: f64,
    /// How much later.
    pub delay_ms: f64,
}

impl From<Stragglers> for StragglersReport {
    fn from(stragglers: Stragglers) -> Self {
        Self {
            share: stragglers.share,
            delay_ms: stragglers.delay.as_secs_f64() * 1e3,
        }
    }
}

impl Report {
    /// Adds what follows from the rest.
    pub(crate) fn finished(mut self, experiment: &Experiment) -> Self {
        let bound = experiment.bound().as_ms();
        self.goodput_share_of_bound = self.arrived_share * bound / self.completion_ms.mean;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let times = (1..=200).rev().map(|ms| Ps(ms * 1_000_000_000)).collect();
        let expected = Completion {
            mean: 100.5,
            p50: 100.0,
            p99: 198.0,
            max: 200.0,
        };
        assert_eq!(Completion::of(times), expected);
        let one = Completion::of(vec![Ps(2_000_000_000)]);
        assert_eq!((one.p50, one.p99, one.max), (2.0, 2.0, 2.0));
    }
}
