//! The cells that a run measures, in order.

use std::time::Duration;

use serde::Serialize;

use super::method::Method;
use super::options::Options;
use ultima_lab::SwitchKind;

/// The state of a lab's links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Condition {
    /// p99 ÷ p50 of Gloo's AllReduce to reach; 1 for links without delay and background traffic.
    pub tail: f64,
    /// Share of packets lost on each link, 0 to 1.
    pub loss: f64,
}

/// A lab and what it measures.
#[derive(Clone, Debug)]
pub struct LabPlan {
    pub ranks: u16,
    /// Rate of links in bits per second; `None` for links without emulation.
    pub rate: Option<u64>,
    /// MTU of links.
    pub mtu: u16,
    pub conditions: Vec<(Condition, Vec<u64>)>,
    /// Tails at which models are trained.
    pub trainings: Vec<f64>,
}

/// All measurements of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub labs: Vec<LabPlan>,
    pub methods: Vec<Method>,
    /// Time for all measurements, by their weights. A busy machine measures less.
    pub time: Duration,
    /// Turns of each method in a cell.
    pub rounds: u32,
    /// The size of the AllReduces that calibrate tails.
    pub calibrated: u64,
    /// Measurements that calibrate a tail, at most.
    pub calibrations: u32,
    /// Most operations of a method in a cell.
    pub operations: u32,
    /// Trainings for each tail and method.
    pub seeds: u32,
    /// Most steps of a training.
    pub steps: u32,
}

/// The size of the main cells, if it is measured.
const MAIN: u64 = 400_000;
const QUIET: Condition = Condition {
    tail: 1.0,
    loss: 0.0,
};

impl Plan {
    /// The plan that the options ask for.
    pub fn new(options: &Options) -> Plan {
        let quick = options.quick;
        let given = |given: &[u64], usual: &[u64]| match given {
            [] => usual.to_vec(),
            given => given.to_vec(),
        };
        let sizes = |usual: &[u64]| given(&options.sizes, usual);
        let (limited, unlimited) = match quick {
            true => (sizes(&[4_000, MAIN]), sizes(&[MAIN, 4_000_000])),
            false => (
                sizes(&[4_000, MAIN, 4_000_000]),
                sizes(&[4_000, MAIN, 4_000_000, 25_000_000, 100_000_000]),
            ),
        };
        let main = |sizes: &[u64]| match sizes.contains(&MAIN) {
            true => MAIN,
            false => sizes[sizes.len() / 2],
        };
        let ranks = match (&options.ranks[..], quick) {
            ([], true) => vec![4],
            ([], false) => vec![4, 2, 8],
            (given, _) => given.to_vec(),
        };
        let loss = match (&options.loss[..], quick) {
            ([], true) => vec![0.0],
            ([], false) => vec![0.0, 0.001, 0.01, 0.05],
            (given, _) => given.to_vec(),
        };
        let rate = options.rate.unwrap_or(match options.switch {
            SwitchKind::Embedded => 100_000_000,
            SwitchKind::Bmv2 => 10_000_000,
        });
        let mut tails = options.tails.clone();
        tails.sort_by(f64::total_cmp);
        tails.dedup();
        let with_tail = |tail: f64| Condition { tail, loss: 0.0 };
        let mut labs = Vec::new();
        for (index, ranks) in ranks.into_iter().enumerate() {
            let first = index == 0;
            let conditions = if first {
                let tailed = tails.iter().map(|&tail| (with_tail(tail), limited.clone()));
                let lossy = loss.iter().filter(|loss| **loss > 0.0);
                let lossy =
                    lossy.map(|&loss| (Condition { tail: 1.0, loss }, vec![main(&limited)]));
                tailed.chain(lossy).collect()
            } else {
                let worst = tails.iter().copied().fold(1.0, f64::max);
                let mut both = vec![QUIET, with_tail(worst)];
                both.dedup();
                let main = vec![main(&limited)];
                both.into_iter().map(|it| (it, main.clone())).collect()
            };
            let trained = first && !options.no_training;
            labs.push(LabPlan {
                ranks,
                rate: Some(rate),
                mtu: options.mtu,
                conditions,
                trainings: (tails.iter().copied())
                    .filter(|tail| trained && *tail > 1.0)
                    .collect(),
            });
            if !options.no_unlimited {
                let sizes = match first {
                    true => unlimited.clone(),
                    false => vec![main(&unlimited)],
                };
                labs.push(LabPlan {
                    ranks,
                    rate: None,
                    mtu: options.mtu,
                    conditions: vec![(QUIET, sizes)],
                    trainings: Vec::new(),
                });
            }
        }
        let time = Duration::from_secs(if quick { 165 } else { 22 * 60 });
        Plan {
            labs,
            methods: match &options.methods[..] {
                [] => Method::ALL.to_vec(),
                given => given.to_vec(),
            },
            time: options.time.unwrap_or(time),
            rounds: if quick { 3 } else { 5 },
            calibrated: main(&limited),
            calibrations: if quick { 1 } else { 2 },
            operations: if quick { 60 } else { 200 },
            seeds: if quick { 1 } else { 3 },
            steps: if quick { 100 } else { 150 },
        }
    }

    /// The weights of all cells and trainings of these labs.
    pub fn weight(&self, labs: &[LabPlan]) -> u32 {
        let cell =
            |of: &(Condition, Vec<u64>)| of.1.iter().map(|&it| weight(of.0, it)).sum::<u32>();
        let lab = |lab: &LabPlan| {
            let trainings = lab.trainings.len() as u32 * self.seeds * TRAINING_WEIGHT;
            lab.conditions.iter().map(cell).sum::<u32>() + trainings
        };
        labs.iter().map(lab).sum()
    }

    /// The weight of the calibration of all tails.
    pub fn calibration_weight(&self) -> u32 {
        self.tails().len() as u32 * CALIBRATION_WEIGHT
    }

    /// The tails over 1 of all labs.
    pub fn tails(&self) -> Vec<f64> {
        let conditions = self.labs.iter().flat_map(|lab| &lab.conditions);
        let mut tails: Vec<f64> = conditions
            .map(|(condition, _)| condition.tail)
            .filter(|tail| *tail > 1.0)
            .collect();
        tails.sort_by(f64::total_cmp);
        tails.dedup();
        tails
    }
}

/// The weight of a tail's calibration.
pub const CALIBRATION_WEIGHT: u32 = 4;
/// The weight of a training.
pub const TRAINING_WEIGHT: u32 = 2;

/// A cell's weight: percentiles of the main cells with a tail need many operations.
pub fn weight(condition: Condition, bytes: u64) -> u32 {
    match condition.tail > 1.0 && bytes == MAIN {
        true => 3,
        false => 1,
    }
}

/// How often `each`, in seconds, fits into `time`.
pub(super) fn fitting(time: Duration, each: f64) -> u32 {
    let count = time.as_secs_f64() / each.max(1e-9);
    // Saturates.
    count as u32
}
