//! Rate by the time that packets spent in queues, as switches stamp it.
//!
//! As Swift (G. Kumar et al., SIGCOMM 2020, algorithm 1) it aims at a delay: additive increase under it, over it a decrease in
//! proportion to the overshoot, at most one for each delay. Unlike Swift it needs no round trips: what is stamped is the
//! queue alone, as in HPCC (Y. Li et al., SIGCOMM 2019), and by the slowest switch on the way. Where no switch stamps,
//! packets come with a hop count of zero; then they are answered, and the rate is TIMELY's, or lower where marks say so.

use crate::time::Time;

use super::timely::Timely;
use super::{LEAST_SHARE, RateControl, Scale, Seen};

/// What the share of the limit rises by in an interval: from half to all of it in 32.
const STEP: f64 = 1.0 / 64.0;
/// What of the overshoot is taken off at once (Swift's β, §3.1 and §4.2: 0.8).
const BETA: f64 = 0.8;
/// The most that a queue takes off at once. Swift's max_mdf is 0.5, of a window that many flows share a link with; here all
/// senders of a job decrease together, and bursts of others that they are no cause of would halve all of them.
const MOST_CUT: f64 = 0.125;
/// What trimmed payloads take off: the queue is full (Swift's max_mdf, §4.2: 0.5).
const TRIMMED_CUT: f64 = 0.5;
/// The longest queue that is waited for before the next decrease, in intervals: what a receiver makes up must not hold
/// back decreases for others.
const LONGEST_HOLD: u32 = 64;

pub(super) struct InBand {
    share: f64,
    scale: Scale,
    /// Until what was sent since the last decrease has been seen.
    hold_until: Time,
    /// For where no switch stamps; new whenever one does.
    timely: Timely,
}

impl InBand {
    pub(super) fn new(scale: &Scale) -> Self {
        Self {
            share: 1.0,
            scale: *scale,
            hold_until: Time::ZERO,
            timely: Timely::new(scale),
        }
    }

    /// What is to be taken off the rate: nothing if queues are as they should be.
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
        if seen.stamped {
            // What round trips said says nothing of the next time that no switch stamps.
            self.timely = Timely::new(&self.scale);
            return self.share;
        }
        self.timely.adapt(now, seen).min(self.share)
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
        // What was sent before waits 200 µs, and is told 50 µs later.
        assert_eq!(rate.adapt(at(200), &queue(200)), 0.875);
        assert_eq!(rate.adapt(at(250), &queue(200)), 0.765625);
    }

    #[test]
    fn without_stamps_round_trips_count() {
        let mut rate = fresh();
        let mut adapt = |us, stamped| {
            let seen = Seen {
                round_trip: Some(Duration::from_micros(us)),
                stamped,
                ..Seen::default()
            };
            rate.adapt(at(0), &seen)
        };
        assert_eq!(adapt(2000, true), 1.0);
        assert_eq!([adapt(30, false), adapt(30, false)], [1.0; 2]);
        // TIMELY's 0.8·(1 − 500/2000).
        assert!((adapt(2000, false) - 0.4).abs() < 1e-9);
        assert_eq!(adapt(2000, true), 1.0);
        // Of that nothing is left when stamps go again.
        assert_eq!(adapt(30, false), 1.0);
        // Marks count as well.
        let marked = Seen {
            marked: 1.0,
            ..Seen::default()
        };
        assert!(fresh().adapt(at(0), &marked) < 1.0);
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
