//! Rate control by queueing time, which switches stamp into packets.
//!
//! Like Swift (G. Kumar et al., SIGCOMM 2020, algorithm 1) it targets a delay: additive increase below it,
//! above it a decrease in proportion to the excess, at most one per delay. Unlike Swift it needs no round
//! trips: stamps measure the queue alone, as in HPCC (Y. Li et al., SIGCOMM 2019), in the slowest switch on
//! the path. CE marks lower the rate, too: a switch's virtual queue marks while its own queue is short.

use crate::time::Time;

use super::{LEAST_SHARE, RateControl, Scale, Seen};

/// Increase of the share per interval: from half to all of the limit in 32.
const STEP: f64 = 1.0 / 64.0;
/// Share of the excess that a decrease removes (Swift's β, §3.1 and §4.2: 0.8).
const BETA: f64 = 0.8;
/// Largest decrease by a queue. Swift's max_mdf is 0.5, for a window of one among many flows on a link. Here
/// all senders of a job decrease together, and bursts of other traffic would halve all of them.
const MOST_CUT: f64 = 0.125;
/// Decrease by trimmed payloads: the queue is full (Swift's max_mdf, §4.2: 0.5).
const TRIMMED_CUT: f64 = 0.5;
/// The longest wait for a queue before the next decrease, in intervals: a forged report of a receiver must
/// not delay decreases.
const LONGEST_HOLD: u32 = 64;

pub(super) struct InBand {
    share: f64,
    scale: Scale,
    /// Until packets sent since the last decrease have been measured.
    hold_until: Time,
}

impl InBand {
    pub(super) fn new(scale: &Scale) -> Self {
        Self {
            share: 1.0,
            scale: *scale,
            hold_until: Time::ZERO,
        }
    }

    /// The decrease of the rate; zero if queues are below the target.
    fn cut(&self, seen: &Seen) -> f64 {
        let target = self.scale.target;
        let over = match seen.queue > target {
            true => BETA * (1.0 - target.as_secs_f64() / seen.queue.as_secs_f64()),
            false => 0.0,
        };
        let trimmed = match seen.trimmed > 0.0 {
            true => TRIMMED_CUT,
            false => 0.0,
        };
        // Half of the marked share: DCTCP (M. Alizadeh et al., SIGCOMM 2010, §3.1).
        over.max(seen.marked / 2.0).min(MOST_CUT).max(trimmed)
    }
}

impl RateControl for InBand {
    fn adapt(&mut self, now: Time, seen: &Seen) -> f64 {
        let cut = self.cut(seen);
        if cut == 0.0 {
            self.share += STEP;
        } else if now >= self.hold_until {
            self.share *= 1.0 - cut;
            let interval = self.scale.interval;
            self.hold_until = now + interval + seen.queue.min(interval * LONGEST_HOLD);
        }
        self.share = self.share.clamp(LEAST_SHARE, 1.0);
        self.share
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::scale;
    use super::*;

    fn fresh() -> InBand {
        InBand::new(&scale())
    }

    fn queue(us: u64) -> Seen {
        Seen {
            queue: Duration::from_micros(us),
            ..Seen::default()
        }
    }

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1000)
    }

    #[test]
    fn the_cut_is_in_proportion_to_the_overshoot() {
        let share = |us| fresh().adapt(Time::ZERO, &queue(us));
        assert_eq!(share(101), 1.0);
        // The target is 101.872 µs.
        assert!((share(110) - (1.0 - 0.8 * (1.0 - 101.872 / 110.0))).abs() < 1e-9);
        assert_eq!(share(1000), 0.875);
    }

    #[test]
    fn marks_and_trimmed_payloads_count_without_a_queue() {
        let marked = Seen {
            marked: 0.2,
            ..Seen::default()
        };
        assert!((fresh().adapt(Time::ZERO, &marked) - 0.9).abs() < 1e-9);
        let trimmed = Seen {
            trimmed: 1.0 / 255.0,
            ..Seen::default()
        };
        assert_eq!(fresh().adapt(Time::ZERO, &trimmed), 0.5);
    }

    #[test]
    fn one_queue_is_answered_once() {
        let mut rate = fresh();
        assert_eq!(rate.adapt(at(0), &queue(200)), 0.875);
        // Packets sent before wait 200 µs, and are reported 50 µs later.
        assert_eq!(rate.adapt(at(200), &queue(200)), 0.875);
        assert_eq!(rate.adapt(at(250), &queue(200)), 0.765625);
    }

    #[test]
    fn it_recovers_step_by_step() {
        let mut rate = fresh();
        rate.adapt(at(0), &queue(1000));
        let shares: Vec<f64> = (1..12)
            .map(|n| rate.adapt(at(50 * n), &Seen::default()))
            .collect();
        assert_eq!(shares[0], 0.875 + STEP);
        assert!(shares[6] < 1.0 && shares[7..] == [1.0; 4]);
    }
}
