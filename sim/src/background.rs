//! Background flows ([`ultima_link::Flows`]), which share links with the simulated job.

use serde::Serialize;

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
