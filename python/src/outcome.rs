//! An operation's outcome, as a Python object.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use ultima_host::{Cause, ClosedBy, ExactOutcome};

/// How an operation ended at this rank.
#[pyclass(frozen, get_all, module = "ultima")]
#[derive(Clone)]
pub struct Outcome {
    /// The step that the operation belongs to.
    step: u32,
    /// Its bucket in the step.
    bucket: u16,
    /// Seconds from its start to its end.
    seconds: f64,
    /// What ended it: "complete", "known-loss", "early", "flush" or "deadline".
    closed_by: &'static str,
    /// Its deadline: seconds from its start. 0 for an exact operation.
    deadline: f64,
    /// Packets that other ranks owed this one.
    owed: u64,
    /// Those that did not arrive in time, by cause.
    lost: BTreeMap<&'static str, u64>,
    /// The share of a rank's packets that did not arrive in time, by rank, where that is not 0.
    late: BTreeMap<u16, f64>,
    /// The packets that did not arrive in time, by the rank that owed them.
    missed: BTreeMap<u16, u64>,
    /// Packets whose payload a switch removed, by the number of switches on their path up to here.
    trimmed_by_hops: BTreeMap<u8, u64>,
    /// The rank whose contributions arrived last, and the seconds that this rank waited for them alone: after it had
    /// sent its own, and received those of all others. None if that is no time.
    slowest: Option<(u16, f64)>,
    /// Ranks that were silent in this and at least two earlier operations. The job does not wait for them.
    silent: Vec<u16>,
}

#[pymethods]
impl Outcome {
    /// The share of the owed packets that did not arrive in time.
    #[getter]
    fn lost_share(&self) -> f64 {
        self.lost.values().sum::<u64>() as f64 / self.owed.max(1) as f64
    }

    fn __repr__(&self) -> String {
        format!(
            "Outcome(step={}, bucket={}, seconds={:.6}, closed_by='{}', lost_share={:.6})",
            self.step,
            self.bucket,
            self.seconds,
            self.closed_by,
            self.lost_share()
        )
    }
}

impl Outcome {
    /// Its operation's name in errors.
    pub fn name(&self) -> String {
        format!("step {} bucket {}", self.step, self.bucket)
    }

    /// That of a bounded operation at `rank`.
    pub fn bounded(rank: u16, outcome: &ultima_host::Outcome) -> Self {
        let causes = Cause::ALL.map(|cause| {
            let lost = outcome.lost.scatter.of(cause) + outcome.lost.gather.of(cause);
            (cause.name(), lost)
        });
        let missed = outcome.missing_from(rank).map(|(other, missing)| {
            let missed = u64::from(missing.contributions) + u64::from(missing.aggregates);
            (other, missed)
        });
        let missed: BTreeMap<_, _> = missed.collect();
        let late = missed.iter().map(|(other, missed)| {
            let owed = outcome.owed_by(*other, rank);
            (*other, *missed as f64 / owed as f64)
        });
        let trimmed = outcome.trimmed_by_hops.iter();
        Self {
            step: outcome.id.step,
            bucket: outcome.id.bucket,
            seconds: outcome.duration.as_secs_f64(),
            closed_by: outcome.closed_by.name(),
            deadline: outcome.t_b.as_secs_f64(),
            owed: outcome.owed,
            lost: causes.into_iter().filter(|(_, lost)| *lost > 0).collect(),
            late: late.collect(),
            missed,
            trimmed_by_hops: trimmed.map(|at| (at.hops, at.trimmed + at.late)).collect(),
            slowest: (outcome.last.waited_for()).map(|(rank, time)| (rank, time.as_secs_f64())),
            silent: outcome.suspected.clone(),
        }
    }

    /// That of a complete exact operation.
    pub fn exact(outcome: &ExactOutcome) -> Self {
        Self {
            step: outcome.id.step,
            bucket: outcome.id.bucket,
            seconds: outcome.duration.as_secs_f64(),
            closed_by: ClosedBy::Complete.name(),
            deadline: 0.0,
            owed: 0,
            lost: BTreeMap::new(),
            late: BTreeMap::new(),
            missed: BTreeMap::new(),
            trimmed_by_hops: BTreeMap::new(),
            slowest: None,
            silent: Vec::new(),
        }
    }
}
