//! What the study found, as tables.

use serde::Serialize;

use super::completion::Completion;
use crate::chart::Spread;
use crate::study::format::{accuracy, percent};
use crate::study::training::Variant;
use ultima_console::output::table;

/// All of it.
#[derive(Serialize)]
pub struct Study {
    /// Always true: times are of a simulated network.
    pub simulated: bool,
    pub completion: Vec<Completion>,
    pub rows: Vec<Row>,
}

/// A share that is cut, a way to deal the data and one to meet losses: time, simulated, and accuracy, of real training
/// over simulated losses. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Always true.
    pub simulated: bool,
    pub ranks: u16,
    pub bytes: u64,
    pub rate_bps: u64,
    pub tail: f64,
    pub operations: u32,
    /// As asked for, of every message's packets.
    pub share: f64,
    pub t_s_ms: f64,
    pub t_b_ms: f64,
    /// What came too late in the simulation, of all contributions and aggregates.
    pub late_share: f64,
    /// Mean over operations and seeds.
    pub operation_ms: f64,
    pub compute_ms: f64,
    /// Both together.
    pub step_ms: f64,
    /// The step with nothing cut over this one.
    pub speed_up: f64,
    pub shards: &'static str,
    pub hadamard: bool,
    pub recycling: bool,
    /// Of the training.
    pub steps: u32,
    /// The first one.
    pub seed: u64,
    pub seeds: u16,
    /// Over the seeds, on the held-out examples, after the last step.
    pub accuracy: f64,
    pub accuracy_least: f64,
    pub accuracy_most: f64,
    /// The same of the runs with exact means.
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

/// For people.
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
        "cut", "late", "step ms", "speed-up", "shards", "exact", plain, recycling, hadamard, both,
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
    let cuts = table(header, lines);
    format!(
        "SIMULATED: how long an AllReduce takes\n\n{times}\n\
         SIMULATED: what a step of tar takes when the tail is cut. Real training, simulated losses: accuracy in %, \
         mean over seeds and the farthest of them\n\n{cuts}"
    )
}
