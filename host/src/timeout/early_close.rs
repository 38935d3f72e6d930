//! t_C: the recent duration of a stage, and the share of it that stragglers get.
//!
//! OptiReduce (NSDI 2025, §3.2.1): every rank measures its stages, scaled to the duration with all packets.
//! Ranks exchange the measurements, and t_C is a moving average of the medians. Once the last hundredth of
//! every rank's packets has begun to arrive (LAST), missing packets get *x* % of t_C.

use std::time::Duration;

use crate::cause::Phase;
use crate::stats::ClosedBy;

use super::{SharedTc, Stage};

/// Weight of the past in the moving average (OptiReduce, §3.2.1).
const ALPHA: f64 = 0.95;
/// *x* in percent: its start and its maximum (ibid.).
const X_START: u32 = 10;
const X_MOST: u32 = 50;
/// *x* doubles if a round lost more than this share, and decreases by one if it lost less (ibid.).
const LOST_MUCH: f64 = 1e-3;
const LOST_LITTLE: f64 = 1e-4;

/// One bucket's t_C for both stages, and its *x*.
pub(crate) struct EarlyClose {
    stages: [TC; 2],
    percent: u32,
}

struct TC {
    average: Option<Duration>,
    /// The others' last measurements by rank, as in headers; zero before the first.
    peers: Vec<u16>,
}

impl EarlyClose {
    pub(super) fn new(ranks: u16) -> Self {
        let stage = || TC {
            average: None,
            peers: vec![0; ranks.into()],
        };
        Self {
            stages: [stage(), stage()],
            percent: X_START,
        }
    }

    pub(super) fn peer_t_c(&mut self, phase: Phase, rank: u16, t_c: SharedTc) {
        if let Some(peer) = self.stages[phase as usize].peers.get_mut(usize::from(rank)) {
            *peer = t_c.0;
        }
    }

    /// The moving average; zero before the first operation.
    pub(super) fn t_c(&self, phase: Phase) -> Duration {
        self.stages[phase as usize].average.unwrap_or_default()
    }

    /// The time that a stage waits once its last packets have begun to arrive.
    pub(super) fn grace(&self) -> [Option<Duration>; 2] {
        self.stages
            .each_ref()
            .map(|stage| stage.average.map(|t_c| t_c * self.percent / 100))
    }

    /// Notes the end of an operation that missed the share `lost` of its packets.
    pub(super) fn ended(&mut self, stages: &[Stage; 2], lost: f64) {
        for (t_c, stage) in self.stages.iter_mut().zip(stages) {
            t_c.measured(scaled(stage));
        }
        if lost > LOST_MUCH {
            self.percent = (self.percent * 2).min(X_MOST);
        } else if lost < LOST_LITTLE {
            self.percent = (self.percent - 1).max(1);
        }
    }
}

impl TC {
    /// Adds this rank's own measurement to the median.
    fn measured(&mut self, own: Duration) {
        let peers = self.peers.iter().filter(|peer| **peer != 0);
        let peers = peers.map(|peer| Duration::from(SharedTc(*peer)));
        let mut all: Vec<Duration> = peers.chain([own]).collect();
        let median = super::percentile(&mut all, 50);
        self.average = Some(match self.average {
            Some(average) => average.mul_f64(ALPHA) + median.mul_f64(1.0 - ALPHA),
            None => median,
        });
    }
}

/// The estimated duration of a stage with all of its packets. If it closed early, it is scaled by the missing
/// packets; if a bound closed it, it is the bound.
fn scaled(stage: &Stage) -> Duration {
    let came = stage.owed.saturating_sub(stage.missing.total());
    match stage.closed_by {
        ClosedBy::Early if came > 0 => stage.after.mul_f64(stage.owed as f64 / came as f64),
        _ => stage.after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{Cause, Causes};

    const MS: Duration = Duration::from_millis(1);

    fn stage(after: Duration, closed_by: ClosedBy, missing: u64) -> Stage {
        let mut causes = Causes::default();
        causes.count(Cause::Overdue, missing);
        Stage {
            after,
            closed_by,
            owed: 100,
            missing: causes,
        }
    }

    #[test]
    fn t_c_is_a_moving_average_of_medians() {
        let mut early = EarlyClose::new(3);
        assert_eq!(early.grace(), [None; 2]);
        let whole = stage(10 * MS, ClosedBy::Complete, 0);
        early.ended(&[whole; 2], 0.0005);
        assert_eq!(early.t_c(Phase::Gather), 10 * MS);
        assert_eq!(early.grace(), [Some(MS); 2]);
        early.peer_t_c(Phase::Gather, 0, (30 * MS).into());
        early.peer_t_c(Phase::Gather, 2, (50 * MS).into());
        early.peer_t_c(Phase::Gather, 9, MS.into());
        early.ended(&[whole; 2], 0.0005);
        assert_eq!(early.t_c(Phase::Scatter), 10 * MS);
        // 30 ms are 458 units of 2^16 ns, rounded up.
        assert_eq!(early.t_c(Phase::Gather).as_micros(), 11_000);
    }

    #[test]
    fn early_closes_are_scaled_to_all_packets() {
        assert_eq!(scaled(&stage(8 * MS, ClosedBy::Early, 20)), 10 * MS);
        assert_eq!(scaled(&stage(8 * MS, ClosedBy::Early, 100)), 8 * MS);
        assert_eq!(scaled(&stage(8 * MS, ClosedBy::Deadline, 20)), 8 * MS);
    }

    #[test]
    fn x_follows_the_loss() {
        let mut early = EarlyClose::new(2);
        let whole = [stage(100 * MS, ClosedBy::Complete, 0); 2];
        let mut grace = |lost| {
            early.ended(&whole, lost);
            early.grace()[0].expect("measured").as_millis()
        };
        assert_eq!([0.01; 4].map(&mut grace), [20, 40, 50, 50]);
        assert_eq!([0.0005, 0.0, 0.0].map(&mut grace), [50, 49, 48]);
        for _ in 0..100 {
            grace(0.0);
        }
        assert_eq!(grace(0.0), 1);
    }
}
