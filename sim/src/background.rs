//! Background flows: transfers of other jobs that share links with the simulated one.
//!
//! The load is calibrated as OptiReduce does it (Warraich et al., NSDI 2025, section 5): with it a ring AllReduce has
//! the requested p99/p50.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand_distr::{Distribution, Exp, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::clock::Ps;
use crate::experiment::{Algorithm, Experiment, ExperimentError};

/// Ranks of the calibrating ring, as many as in OptiReduce's evaluation.
const RANKS: u16 = 8;
/// Operations of each of its runs.
const OPERATIONS: u32 = 200;
/// Its seed. Not one that experiments usually have, so that they meet other flows.
const SEED: u64 = 0xca11_b7a7;
/// The first load that is tried. It doubles until the ratio is reached.
const FIRST_LOAD: f64 = 0.001;
/// The highest load that is tried.
const MAX_LOAD: f64 = 0.9;
/// Number of bisections of the step in which the ratio is reached.
const BISECTIONS: u32 = 5;
/// Connections of a flow, as an incast from eight hosts has: beside one flow the job has a ninth of the link.
const CONNECTIONS: u64 = 8;

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

/// The flows on one link: a Poisson process of exponentially distributed lengths. All connections share the link
/// equally (processor sharing), as those of TCP do: beside *k* flows the job has 1/(8·*k* + 1) of its rate.
///
/// The state is that at the end of the job's last packet. The flows since then are added when the next packet arrives,
/// so they cost no events.
pub(crate) struct Flows {
    /// The state's time.
    at: Ps,
    next_arrival: Ps,
    gaps: Exp<f64>,
    /// Mean time of a flow alone on the link, in seconds.
    mean: f64,
    /// What a connection that never ended would have got so far, as time of the whole link.
    service: Ps,
    /// By flow: `service` at its end.
    ends: BinaryHeap<Reverse<Ps>>,
    random: Xoshiro256PlusPlus,
}

impl Flows {
    /// Creates flows that need `load` of a link, over 0 and under 1, and `mean` of its time each.
    pub(crate) fn new(load: f64, mean: Ps, random: Xoshiro256PlusPlus) -> Self {
        let mean = mean.as_secs();
        let mut flows = Self {
            at: Ps::ZERO,
            next_arrival: Ps::ZERO,
            gaps: Exp::new(load / mean).expect("a positive rate"),
            mean,
            service: Ps::ZERO,
            ends: BinaryHeap::new(),
            random,
        };
        flows.next_arrival = flows.gap();
        flows
    }

    fn gap(&mut self) -> Ps {
        Ps::from_secs_f64(self.gaps.sample(&mut self.random))
    }

    /// When a packet leaves that is first in line at `start` and takes `alone` on an idle link.
    pub(crate) fn transmit(&mut self, start: Ps, alone: Ps) -> Ps {
        self.advance(start, None);
        self.advance(Ps::NEVER, Some(alone))
    }

    /// Advances to `until`, or to the end of the job's packet, which needs `work`. Returns the time.
    fn advance(&mut self, until: Ps, mut work: Option<Ps>) -> Ps {
        let until = until.max(self.at);
        loop {
            let sharing = CONNECTIONS * self.ends.len() as u64 + u64::from(work.is_some());
            let first_end = self.ends.peek().map(|Reverse(end)| end.since(self.service));
            // What each gets until the first one ends.
            let each = first_end.into_iter().chain(work).min();
            let end = each.map_or(Ps::NEVER, |each| {
                self.at + Ps(each.0.saturating_mul(sharing))
            });
            let stop = end.min(self.next_arrival).min(until);
            let got = match each {
                Some(each) if stop == end => each,
                _ => Ps(stop.since(self.at).0 / sharing.max(1)),
            };
            self.at = stop;
            if sharing > 0 {
                self.service += got;
            }
            work = work.map(|work| work.since(got));
            if work == Some(Ps::ZERO) {
                return stop;
            }
            while self.ends.peek().is_some_and(|end| end.0 <= self.service) {
                self.ends.pop();
            }
            if stop == self.next_arrival {
                let length: f64 = Exp1.sample(&mut self.random);
                let length = Ps::from_secs_f64(length * self.mean / CONNECTIONS as f64);
                self.ends.push(Reverse(self.service + length));
                let gap = self.gap();
                self.next_arrival += gap;
            } else if stop == until {
                return stop;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    const MS: u64 = 1_000_000_000;

    fn flows(load: f64, mean: Ps) -> Flows {
        Flows::new(load, mean, Xoshiro256PlusPlus::seed_from_u64(1))
    }

    #[test]
    fn a_packet_shares_with_the_flows_of_its_time() {
        let mut flows = flows(0.5, Ps(MS));
        // Two flows of eight times 3 and 8 ms at the start, and none later.
        flows
            .ends
            .extend([Reverse(Ps(3 * MS)), Reverse(Ps(8 * MS))]);
        flows.next_arrival = Ps(10_000 * MS);
        // 1 ms beside both: 17 ms. All 17 connections get 1 ms.
        assert_eq!(flows.transmit(Ps(0), Ps(MS)), Ps(17 * MS));
        // The shorter one ends after 16 · 2 ms, at 49 ms; 8 ms later the other has 4 ms left for each connection.
        assert_eq!(flows.advance(Ps(57 * MS), None), Ps(57 * MS));
        assert_eq!(flows.ends.len(), 1);
        // 4 ms beside one: 36 ms; it ends then too.
        assert_eq!(flows.transmit(Ps(57 * MS), Ps(4 * MS)), Ps(93 * MS));
        assert_eq!(flows.transmit(Ps(93 * MS), Ps(MS)), Ps(94 * MS));
        assert_eq!(flows.transmit(Ps(100 * MS), Ps(MS)), Ps(101 * MS));
    }

    #[test]
    fn flows_take_their_load() {
        let mut flows = flows(0.3, Ps(MS));
        let (mut busy, steps) = (0, 200_000);
        for step in 0..steps {
            flows.advance(Ps(step * MS / 4), None);
            busy += u64::from(!flows.ends.is_empty());
        }
        let share = busy as f64 / steps as f64;
        assert!((share - 0.3).abs() < 0.02, "{share}");
        // A job that always sends has 1 − load of the link, and flows stay as many as that allows.
        let start = flows.at;
        for _ in 0..100_000 {
            flows.transmit(flows.at, Ps(MS / 4));
        }
        let share = 100_000.0 * (MS / 4) as f64 / flows.at.since(start).0 as f64;
        assert!((share - 0.7).abs() < 0.02, "{share}");
    }
}
