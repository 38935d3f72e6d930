//! The main process's state of all workers, from their messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ultima_host::{ClosedBy, Rules, Totals};

use super::agreement::Agreements;
use super::link::{Message, Step};
use super::report;
use ultima_digits::baseline::exact_mean;
use ultima_digits::metrics::{Accuracy, RunError, UpdateError};

/// The progress of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    Training,
    Trained,
    Drained,
    /// Its process ended early.
    Lost,
}

/// The state of one worker.
pub struct Worker {
    pub progress: Progress,
    pub totals: Totals,
    pub trained: Option<(Accuracy, Vec<f32>)>,
    /// The final weight of each worker's data in its shard, by rank.
    pub weights: Vec<f32>,
    /// Ranks that were silent at the end.
    pub suspected: Vec<u16>,
    /// Steps to which it contributed nothing.
    pub passed: u32,
    /// Why it failed, if it could report that.
    pub failure: Option<String>,
}

/// A worker's gradient in a step, and the update that it applied.
type Update = (Vec<f32>, Vec<f32>);

/// All workers of a run, and the measurements over their steps.
pub struct Collected {
    pub workers: Vec<Worker>,
    pub closed_by: report::ClosedBy,
    pub durations: Vec<Duration>,
    pub update_error: UpdateError,
    pub agreements: Agreements,
    /// The first step whose vote no worker has reported yet.
    agreed_until: u32,
    run: RunError,
    /// The distance of the workers' gradients from their mean.
    pub dispersion: UpdateError,
    /// Steps that all remaining workers have finished.
    pub steps_done: u32,
    /// Steps that not all workers have reported yet.
    open: BTreeMap<u32, Vec<Option<Update>>>,
    exact: Vec<f32>,
}

impl Collected {
    pub fn new(workers: u16, parameters: usize, rules: Rules) -> Self {
        let worker = || Worker {
            progress: Progress::Training,
            totals: Totals::default(),
            trained: None,
            weights: Vec::new(),
            suspected: Vec::new(),
            passed: 0,
            failure: None,
        };
        Self {
            workers: (0..workers).map(|_| worker()).collect(),
            closed_by: report::ClosedBy::default(),
            durations: Vec::new(),
            update_error: UpdateError::default(),
            agreements: Agreements::new(rules),
            agreed_until: 0,
            run: RunError::new(workers.into(), parameters),
            dispersion: UpdateError::default(),
            steps_done: 0,
            open: BTreeMap::new(),
            exact: vec![0.0; parameters],
        }
    }

    /// Processes a message of worker `rank`, or the end of its process.
    pub fn take(&mut self, rank: usize, message: Option<(Message, Vec<Vec<f32>>)>) {
        let worker = &mut self.workers[rank];
        match message {
            None => {
                if worker.progress != Progress::Drained {
                    worker.progress = Progress::Lost;
                }
            }
            Some((Message::Joined, _)) => {}
            Some((Message::Step(step), tensors)) => {
                worker.totals = step.totals;
                self.count(&step);
                // All workers report the same result, unless one is missing: the first report counts.
                if let Some(agreed) = step.agreed
                    && self.agreed_until <= step.step
                {
                    self.agreed_until = step.step + 1;
                    self.agreements.count(step.step, &agreed);
                }
                if let Ok([gradient, applied]) = <[Vec<f32>; 2]>::try_from(tensors) {
                    let ranks = self.workers.len();
                    let updates = self
                        .open
                        .entry(step.step)
                        .or_insert_with(|| vec![None; ranks]);
                    updates[rank] = Some((gradient, applied));
                }
            }
            Some((
                Message::Trained {
                    accuracy,
                    weights,
                    suspected,
                    passed,
                },
                mut tensors,
            )) => {
                worker.progress = Progress::Trained;
                (worker.weights, worker.passed) = (weights, passed);
                worker.suspected = suspected;
                worker.trained = tensors.pop().map(|parameters| (accuracy, parameters));
            }
            Some((Message::Failed { reason }, _)) => worker.failure = Some(reason),
            Some((Message::Drained { totals }, _)) => {
                worker.progress = Progress::Drained;
                worker.totals = totals;
            }
        }
        self.measure();
    }

    /// True if every worker that is not lost has reached `progress`.
    pub fn all(&self, progress: Progress) -> bool {
        self.workers
            .iter()
            .all(|worker| worker.progress >= progress)
    }

    /// Ranks of the workers that did not finish.
    pub fn lost(&self) -> Vec<u16> {
        let lost =
            |(rank, worker): (u16, &Worker)| (worker.progress == Progress::Lost).then_some(rank);
        (0..).zip(&self.workers).filter_map(lost).collect()
    }

    /// The error of the run over all steps, for the workers that finished.
    pub fn run_error(&self) -> f64 {
        self.run
            .mean(|rank| self.workers[rank].progress != Progress::Lost)
    }

    /// The final weight of each worker's data by rank: the mean over the shards of workers that finished.
    pub fn weights(&self) -> Vec<f32> {
        let views = self.workers.iter().map(|worker| &worker.weights);
        let views: Vec<&Vec<f32>> = views.filter(|weights| !weights.is_empty()).collect();
        let mean = |rank: usize| {
            let sum: f32 = views.iter().map(|weights| weights[rank]).sum();
            sum / views.len() as f32
        };
        match views.is_empty() {
            true => Vec::new(),
            false => (0..self.workers.len()).map(mean).collect(),
        }
    }

    /// Ranks that were silent at the end, according to any worker that finished.
    pub fn suspected(&self) -> Vec<u16> {
        let all = self.workers.iter().flat_map(|worker| &worker.suspected);
        all.copied()
            .collect::<BTreeSet<u16>>()
            .into_iter()
            .collect()
    }

    /// The reported failures of workers.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.workers
            .iter()
            .filter_map(|worker| worker.failure.as_deref())
    }

    fn count(&mut self, step: &Step) {
        self.durations.push(Duration::from_nanos(step.took_ns));
        *match step.closed_by {
            ClosedBy::Complete => &mut self.closed_by.complete,
            ClosedBy::KnownLoss => &mut self.closed_by.known_loss,
            ClosedBy::Early => &mut self.closed_by.t_c,
            ClosedBy::Flush => &mut self.closed_by.t_s,
            ClosedBy::Deadline => &mut self.closed_by.t_b,
        } += 1;
    }

    /// Measures the steps that all workers have reported. A lost worker counts in the steps that it reported.
    fn measure(&mut self) {
        while let Some(entry) = self.open.first_entry() {
            let mut reports = self.workers.iter().zip(entry.get());
            let waits = |(worker, update): (&Worker, &Option<Update>)| {
                worker.progress == Progress::Training && update.is_none()
            };
            if reports.any(waits) {
                return;
            }
            let updates = entry.remove();
            let reported = updates.iter().flatten();
            let gradients: Vec<&[f32]> =
                reported.map(|(gradient, _)| gradient.as_slice()).collect();
            self.steps_done += 1;
            exact_mean(&gradients, &mut self.exact);
            let applied = updates
                .iter()
                .map(|update| Some(update.as_ref()?.1.as_slice()));
            self.run.add(applied, &self.exact);
            for (gradient, applied) in updates.iter().flatten() {
                self.dispersion.add(gradient, &self.exact);
                self.update_error.add(applied, &self.exact);
            }
        }
    }
}
