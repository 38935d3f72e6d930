//! The report of a simulation.

use serde::Serialize;

use crate::algorithm::Algorithm;
use crate::background::Background;
use crate::clock::Ps;
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
    /// Always true: no network was measured.
    pub simulated: bool,
    /// From the experiment.
    pub algorithm: Algorithm,
    /// From the experiment.
    pub ranks: u16,
    /// Groups of [`Algorithm::Tar2d`], as given or chosen.
    pub groups: Option<u16>,
    /// From the experiment.
    pub bytes: u64,
    /// From the experiment.
    pub slot: usize,
    /// From the experiment.
    pub tail: f64,
    /// From the experiment.
    pub jitter: Option<String>,
    /// From the experiment.
    pub loss: Option<String>,
    /// From the experiment.
    pub operations: u32,
    /// From the experiment.
    pub seed: u64,
    /// Compute time between operations, from the experiment.
    pub compute_ms: f64,
    /// The compute time's p99/p50, from the experiment.
    pub compute_tail: f64,
    /// From the experiment.
    pub stragglers: Option<StragglersReport>,
    /// The background flows, with their calibration.
    pub background: Option<Background>,
    /// Durations of operations, from the start at a rank without delay.
    pub completion_ms: Completion,
    /// Each operation's duration, in order. Not serialized.
    #[serde(skip)]
    pub operations_ms: Vec<f64>,
    /// With stragglers: [`Report::completion_ms`] up to the result at the last non-straggler.
    pub on_time_ms: Option<Completion>,
    /// Share of contributions and aggregates that counted, of those without loss; 1 for algorithms that wait
    /// for all.
    pub arrived_share: f64,
    /// The same share of those that the network did not lose (`owed_lost`). The rest was late, or not sent in
    /// time.
    pub arrived_share_of_not_lost: f64,
    /// Values that arrived, over their time, as a share of the bound.
    pub goodput_share_of_bound: f64,
    /// The least time in which a receiver's link carries 2·S·(N−1)/N bytes.
    pub bound_ms: f64,
    /// t_S of the bounded transport; on a grid of its rows.
    pub t_s_ms: Option<f64>,
    /// t_B of the bounded transport; on a grid of all three phases.
    pub t_b_ms: Option<f64>,
    /// The minimum retransmission timeout of TCP, or the timeout of in-network aggregation.
    pub min_rto_ms: Option<f64>,
    /// Slots of the pool of in-network aggregation.
    pub pool_slots: Option<u64>,
    /// With values: the largest distance of a result's entry from the exact mean.
    pub worst_error: Option<f32>,
    /// The longest wait in a switch's queue.
    pub longest_queue_us: f64,
    /// The 99th percentile of waits before links to hosts that are not slow.
    pub p99_queue_us: f64,
    /// Packet counters.
    pub network: Accounts,
    /// Events simulated.
    pub events: u64,
    /// Maximum number of packets in flight; copies of one packet count once.
    pub most_packets: usize,
}

/// The stragglers of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StragglersReport {
    /// Probability per rank and operation.
    pub share: f64,
    /// The delay.
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
    /// Adds what follows from others, with the `bound` of an operation.
    pub(crate) fn finished(mut self, bound: Ps) -> Self {
        self.goodput_share_of_bound = self.arrived_share * bound.as_ms() / self.completion_ms.mean;
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
