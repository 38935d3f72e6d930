//! Calibrates tails: finds bursts of background traffic beside which Gloo's AllReduce has the requested p99 ÷ p50, as OptiReduce's
//! authors define their environments (Warraich et al., NSDI 2025, section 5).

use std::time::Duration;

use anyhow::Result;
use serde::{Serialize, Serializer};
use ultima_switch::tm::{Background, FlowLengths};

use super::bed::{Bed, Links};
use super::method::Method;
use super::plan::fitting;
use super::statistics::{Interval, interval, p50, p99, p99_over_p50};
use super::workers::{Workers, operations, slowest};

/// Bursts in the time of one of Gloo's AllReduces, on all links together. p99 ÷ p50 alone determines no rate: rare, long bursts
/// and frequent, short ones may give the same. If a Poisson process of exponential bursts delays AllReduces, each by its length,
/// this rate makes the mean at p99 ÷ p50 = 3 1.22 times that at 1.5. OptiReduce's authors publish iteration times with Gloo's ring
/// of six models, in which it is 1.11 to 1.33, on average 1.23 (README of OptiReduce/benchmark). Half of the AllReduces meet a burst.
const RATE: f64 = 0.8;
/// The mean burst of that model, in AllReduces, for each unit of p99 ÷ p50 above 1.
const BURST: f64 = 0.19;
/// AllReduces that show the time without bursts.
const FIRST: u32 = 20;
/// AllReduces of a measurement at least and at most.
const LEAST: u32 = 20;
const MOST: u32 = 150;
/// A calibration ends when the measured ratio is this close to the requested one.
const CLOSE: f64 = 0.1;
/// The largest change of the bursts from one measurement to the next.
const STEP: f64 = 2.0;

/// The links of a tail, and Gloo's AllReduces on them.
#[derive(Clone, Serialize)]
pub struct Tail {
    /// The requested p99 ÷ p50.
    pub tail: f64,
    #[serde(rename = "delay_ms", serialize_with = "ms")]
    pub delay: Duration,
    /// The share of each link toward a host that bursts take.
    pub share: f64,
    /// Their mean size.
    pub burst_bytes: u64,
    /// Mean seconds between two bursts on a link.
    pub interval_s: f64,
    /// Bytes of an AllReduce.
    pub bytes: u64,
    pub operations: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Gloo's p99 ÷ p50.
    pub measured: Interval,
}

fn ms<S: Serializer>(delay: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(delay.as_secs_f64() * 1e3)
}

/// How to calibrate a tail.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    pub delay: Duration,
    /// Rate of the links in bits per second.
    pub rate: u64,
    pub ranks: u16,
    /// Bytes of an AllReduce.
    pub bytes: u64,
    /// Measurements at most.
    pub measurements: u32,
    pub time: Duration,
}

impl Tail {
    /// The links' settings.
    pub fn links(&self) -> Links {
        Links {
            delay: self.delay,
            background: Some(Background {
                share: self.share,
                flow: self.burst_bytes,
                lengths: FlowLengths::Exponential,
            }),
            loss: 0.0,
        }
    }
}

impl Calibration {
    /// Finds the bursts for p99 ÷ p50 of `tail`. The time that a burst adds is proportional to its size, so each measurement
    /// corrects the size.
    ///
    /// # Errors
    /// A link or a rank fails.
    pub async fn find(&self, tail: f64, bed: &Bed, workers: &mut [Workers]) -> Result<Tail> {
        let quiet = Links {
            delay: self.delay,
            ..Links::default()
        };
        bed.set(quiet).await?;
        let first = self.gloo(FIRST, Duration::ZERO, workers).await?;
        let usual = p50(&mut first.clone());
        let interval_s = f64::from(self.ranks) * usual / RATE;
        let mut burst_s = BURST * (tail - 1.0) * usual;
        let each = self.time / self.measurements;
        let count = fitting(each, usual + RATE * burst_s).clamp(LEAST, MOST);
        let mut best: Option<Tail> = None;
        for _ in 0..self.measurements {
            let mut found = Tail {
                tail,
                delay: self.delay,
                // Bursts that need more than the link would never end.
                share: (burst_s / interval_s).min(0.5),
                burst_bytes: (burst_s * self.rate as f64 / 8.0) as u64,
                interval_s,
                bytes: self.bytes,
                operations: 0,
                p50_ms: 0.0,
                p99_ms: 0.0,
                measured: Interval::default(),
            };
            bed.set(found.links()).await?;
            let usual = Duration::from_secs_f64(usual);
            let seconds = self.gloo(count, usual, workers).await?;
            found.measure(&seconds);
            let ratio = found.measured.value;
            let off = |it: &Tail| (it.measured.value / tail).ln().abs();
            burst_s *= ((tail - 1.0) / (ratio - 1.0).max(1e-3)).clamp(1.0 / STEP, STEP);
            let is_close = off(&found) < CLOSE;
            best = Some(match best {
                Some(best) if off(&best) <= off(&found) => best,
                _ => found,
            });
            if is_close {
                break;
            }
        }
        best.ok_or_else(|| anyhow::anyhow!("internal error: no measurement of a tail"))
    }

    async fn gloo(&self, count: u32, usual: Duration, workers: &mut [Workers]) -> Result<Vec<f64>> {
        let ran = operations(workers, Method::GlooRing, self.bytes, count, usual).await?;
        Ok(slowest(&ran))
    }
}

impl Tail {
    fn measure(&mut self, seconds: &[f64]) {
        let mut seconds = seconds.to_vec();
        self.operations = seconds.len();
        self.p50_ms = 1e3 * p50(&mut seconds);
        self.p99_ms = 1e3 * p99(&mut seconds);
        self.measured = interval(&seconds, p99_over_p50).unwrap_or_default();
    }
}
