//! The study's results as tables.

use serde::Serialize;

use super::completion::Completion;
use crate::chart::Spread;
use crate::study::format::{accuracy, percent};
use crate::study::training::Variant;
use ultima_console::output::table;

/// All results.
#[derive(Serialize)]
pub struct Study {
    /// Always true: the network is simulated.
    pub simulated: bool,
    pub completion: Vec<Completion>,
    pub rows: Vec<Row>,
}

/// The simulated time and the accuracy for one dropped share, distribution of the data and variant. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Always true.
    pub simulated: bool,
    pub ranks: u16,
    pub bytes: u64,
    pub rate_bps: u64,
    pub tail: f64,
    pub operations: u32,
    /// Requested share of every message's packets.
    pub share: f64,
    pub t_s_ms: f64,
    pub t_b_ms: f64,
    /// Share of contributions and aggregates that were late in the simulation.
    pub late_share: f64,
    /// Mean over operations and seeds.
    pub operation_ms: f64,
    pub compute_ms: f64,
    /// `operation_ms` plus `compute_ms`.
    pub step_ms: f64,
    /// Step time with nothing dropped over this step time.
    pub speed_up: f64,
    pub shards: &'static str,
    pub hadamard: bool,
    pub recycling: bool,
    /// Training steps.
    pub steps: u32,
    /// First seed.
    pub seed: u64,
    pub seeds: u16,
    /// Mean over the seeds, on the held-out examples, after the last step.
    pub accuracy: f64,
    pub accuracy_least: f64,
    pub accuracy_most: f64,
    /// The same for the runs with exact means.
    pub exact: f64,
    pub exact_least: f64,
    pub exact_most: f64,
    /// The largest distance of a replica from rank 0's, in units of its norm; mean over the seeds.
    pub replica_spread: f64,
}

impl Row {
    pub fn accuracy(&self) -> Spread {
        Spread {
            least: self.accuracy_least,
            mean: self.accuracy,
            most: self.accuracy_most,
        }
    }

    pub fn exact(&self) -> Spread {
        Spread {
            least: self.exact_least,
            mean: self.exact,
            most: self.exact_most,
        }
    }
}

/// The tables as text.
pub fn text(study: &Study) -> String {
    let completion = study.completion.iter().map(|of| {
        [
            of.algorithm.to_owned(),
            of.operations.to_string(),
            format!("{:.2}", of.mean_ms),
            format!("{:.2}", of.p50_ms),
            format!("{:.2}", of.p99_ms),
            format!("{:.2}", of.max_ms),
        ]
    });
    let times = table(
        ["algorithm", "operations", "mean ms", "p50", "p99", "max"],
        completion,
    );
    let [plain, recycling, hadamard, both] = Variant::ALL.map(Variant::name);
    let header = [
        "dropped", "late", "step ms", "speed-up", "shards", "exact", plain, recycling, hadamard,
        both,
    ];
    // One line has all variants.
    let lines = study.rows.chunks(Variant::ALL.len()).map(|rows| {
        let row = &rows[0];
        let of = |at: usize| accuracy(rows[at].accuracy());
        [
            percent(row.share),
            percent(row.late_share),
            format!("{:.2}", row.step_ms),
            format!("{:.3}", row.speed_up),
            row.shards.to_owned(),
            accuracy(row.exact()),
            of(0),
            of(1),
            of(2),
            of(3),
        ]
    });
    let accuracies = table(header, lines);
    format!(
        "SIMULATED: completion time of an AllReduce\n\n{times}\n\
         SIMULATED: step time of tar with the tail dropped. Training with simulated losses: accuracy in %, mean over the \
         seeds ± the largest deviation\n\n{accuracies}"
    )
}
