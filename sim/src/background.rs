//! The calibration of background flows ([`ultima_link::Flows`]), which share links with the simulated job.
//!
//! The load is calibrated as OptiReduce does it (Warraich et al., NSDI 2025, section 5): with it a ring AllReduce has
//! the requested p99/p50.

use serde::Serialize;

use crate::experiment::{Algorithm, Experiment, ExperimentError};

/// Ranks of the calibrating ring, as many as in OptiReduce's evaluation.
const RANKS: u16 = 8;
/// Operations of each calibrating run.
const OPERATIONS: u32 = 200;
/// The seed of these runs, unlike the usual ones of experiments, so that these have other flows.
const SEED: u64 = 0xca11_b7a7;
/// The first load that is tried. It doubles until the ratio is reached.
const FIRST_LOAD: f64 = 0.001;
/// The highest load that is tried.
const MAX_LOAD: f64 = 0.9;
/// Number of bisections of the step in which the ratio is reached.
const BISECTIONS: u32 = 5;

/// Background flows on every link from a switch to a host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Background {
    /// The p99/p50 of a ring AllReduce to reach, over 1.
    pub ratio: f64,
    /// Mean bytes of a flow; exponentially distributed.
    pub flow: u64,
    /// The load that reaches it. None until [`Experiment::calibrate`].
    pub calibration: Option<Calibration>,
}

/// A calibrated load, and the ring's run with it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// The share of each link that the flows need, from 0 to 1.
    pub load: f64,
    /// p99/p50 of the ring's completion times.
    pub ring_ratio: f64,
    /// The ring's median completion time.
    pub ring_p50_ms: f64,
    /// The 99th percentile.
    pub ring_p99_ms: f64,
    /// Operations of the run.
    pub ring_operations: u32,
}

impl Experiment {
    /// The ring whose p99/p50 calibrates the background flows, if there are any: the same hosts, links and bucket on at
    /// most eight ranks, without other delays and losses.
    pub fn calibration_ring(&self) -> Option<Experiment> {
        let background = self.network.background?;
        let ring = Experiment::new(Algorithm::Ring, self.ranks.min(RANKS));
        let mut network = self.network.clone();
        network.background = Some(Background {
            calibration: None,
            ..background
        });
        (network.loss, network.jitter, network.cross, network.slow) = (None, None, 0.0, None);
        Some(Experiment {
            bytes: self.bytes,
            slot: self.slot,
            host: self.host,
            compute: self.compute,
            min_rto: self.min_rto,
            operations: OPERATIONS,
            seed: SEED,
            network,
            ..ring
        })
    }

    /// The experiment with a calibration of its background flows, if it has any.
    pub fn calibrated(&self, calibration: Calibration) -> Self {
        let mut calibrated = self.clone();
        if let Some(background) = &mut calibrated.network.background {
            background.calibration = Some(calibration);
        }
        calibrated
    }

    /// Finds the least load with which the ring of [`Experiment::calibration_ring`] has the requested p99/p50. Returns
    /// the given one if there is one, and None without background flows.
    ///
    /// # Errors
    /// [`ExperimentError::Background`] if no load reaches it, and as [`Experiment::validate`].
    pub fn calibrate(&self) -> Result<Option<Calibration>, ExperimentError> {
        let Some((background, ring)) = self.network.background.zip(self.calibration_ring()) else {
            return Ok(None);
        };
        if background.calibration.is_some() {
            return Ok(background.calibration);
        }
        self.validate()?;
        let with_load = |load: f64| -> Result<Calibration, ExperimentError> {
            let mut ring = ring.clone();
            let mut calibration = Calibration {
                load,
                ring_ratio: 1.0,
                ring_p50_ms: 0.0,
                ring_p99_ms: 0.0,
                ring_operations: OPERATIONS,
            };
            ring.network.background = Some(Background {
                calibration: Some(calibration),
                ..background
            });
            let completion = ring.run(&mut |_| ())?.completion_ms;
            calibration.ring_p50_ms = completion.p50;
            calibration.ring_p99_ms = completion.p99;
            calibration.ring_ratio = completion.p99 / completion.p50;
            Ok(calibration)
        };
        let mut best: Option<Calibration> = None;
        let mut most = 1.0f64;
        let (mut below, mut above) = (0.0, FIRST_LOAD);
        while best.is_none() {
            let load = above;
            if load > MAX_LOAD {
                let ratio = background.ratio;
                return Err(ExperimentError::Background { ratio, most });
            }
            let calibration = with_load(load)?;
            most = most.max(calibration.ring_ratio);
            match calibration.ring_ratio >= background.ratio {
                true => best = Some(calibration),
                false => (below, above) = (load, 2.0 * load),
            }
        }
        let off = |one: &Calibration| (one.ring_ratio / background.ratio).ln().abs();
        for _ in 0..BISECTIONS {
            let load = (below + above) / 2.0;
            let calibration = with_load(load)?;
            match calibration.ring_ratio >= background.ratio {
                true => above = load,
                false => below = load,
            }
            best = best
                .into_iter()
                .chain([calibration])
                .min_by(|one, other| off(one).total_cmp(&off(other)));
        }
        Ok(best)
    }
}
