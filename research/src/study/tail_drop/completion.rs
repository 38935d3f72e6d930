//! Completion times of each algorithm.

use serde::Serialize;
use ultima_sim::{Experiment, Report};

/// Number of points of a written or drawn distribution: percentiles.
const POINTS: usize = 100;

/// One algorithm over all seeds. Times are in milliseconds, percentiles by nearest rank.
#[derive(Clone, Debug, Serialize)]
pub struct Completion {
    /// Always true.
    pub simulated: bool,
    pub algorithm: &'static str,
    pub ranks: u16,
    pub bytes: u64,
    pub rate_bps: u64,
    pub tail: f64,
    /// Operations of all seeds.
    pub operations: usize,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// Contributions and aggregates that counted, of all.
    pub arrived_share: f64,
    /// In order.
    #[serde(skip)]
    times_ms: Vec<f64>,
}

/// A point of a distribution: this share of the operations took this long at most.
#[derive(Serialize)]
pub struct Point {
    pub simulated: bool,
    pub algorithm: &'static str,
    pub share: f64,
    pub ms: f64,
}

impl Completion {
    /// The completion times of one experiment with one or more seeds.
    pub fn of(experiment: &Experiment, reports: &[Report]) -> Self {
        let times = reports.iter().flat_map(|report| &report.operations_ms);
        let mut times_ms: Vec<f64> = times.copied().collect();
        times_ms.sort_by(f64::total_cmp);
        let mut completion = Self {
            simulated: true,
            algorithm: experiment.algorithm.name(),
            ranks: experiment.ranks,
            bytes: experiment.bytes,
            rate_bps: experiment.network.rate,
            tail: experiment.tail,
            operations: times_ms.len(),
            mean_ms: times_ms.iter().sum::<f64>() / times_ms.len() as f64,
            p50_ms: 0.0,
            p99_ms: 0.0,
            max_ms: 0.0,
            arrived_share: reports.iter().map(|r| r.arrived_share).sum::<f64>()
                / reports.len() as f64,
            times_ms,
        };
        [completion.p50_ms, completion.p99_ms, completion.max_ms] =
            [50, 99, 100].map(|percent| completion.percentile(percent));
        completion
    }

    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.times_ms.len() * percent).div_ceil(POINTS).max(1);
        self.times_ms[rank - 1]
    }

    /// Its distribution, the 1st percentile first.
    pub fn distribution(&self) -> impl Iterator<Item = Point> + '_ {
        (1..=POINTS).map(|percent| Point {
            simulated: true,
            algorithm: self.algorithm,
            share: percent as f64 / POINTS as f64,
            ms: self.percentile(percent),
        })
    }
}
