//! TIMELY: rate control by the gradient of round-trip times.
//!
//! R. Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015, algorithm 1.
//! Its samples are completions of 64 KB segments of one flow. Here, once per interval, the sample is the
//! stated quantile of the echoes over the receivers.

use std::time::Duration;

use crate::time::Time;

use super::{LEAST_SHARE, RateControl, Scale, Seen};

/// Below it the rate increases whatever the gradient (§4.3).
const T_LOW: Duration = Duration::from_micros(50);
/// Above it the rate decreases whatever the gradient (§4.3).
const T_HIGH: Duration = Duration::from_micros(500);
/// Factor of a decrease (§4.3: 0.8).
const BETA: f64 = 0.8;
/// Weight of the newest difference in the average (§4.3: 0.875).
const ALPHA: f64 = 0.875;
/// Smallest base of gradients, the paper's (§4.3: 20 µs): on a shorter path a few packets of other flows
/// would make a gradient of one.
const LEAST: Duration = Duration::from_micros(20);
/// Largest decrease by one sample. Our choice: samples are less frequent than the paper's, and from many
/// paths.
const MOST_CUT: f64 = 0.5;
/// Increase of one flow: 10 Mb/s of 10 Gb/s (§4.3), as a share. A rank's rate is the sum of its flows to all
/// others.
const DELTA: f64 = 1e-3;
/// Largest increase of a rank's rate, as in-band, however many flows there are.
const MOST_DELTA: f64 = 1.0 / 64.0;
/// After this many samples without a positive gradient it increases by as many steps at once (§4.3, HAI: 5).
const HYPERACTIVE: u32 = 5;
/// After this many consecutive intervals without an answer it increases anyway. Our choice: otherwise the
/// last answers' share would stay. 64 of 50 µs exceed the time to drain a port's buffer at 100 Gb/s, 2.7 ms,
/// so a rank without answers for longer has no queue.
const UNANSWERED: u32 = 64;

/// The state of TIMELY, in shares instead of bits per second.
pub(super) struct Timely {
    share: f64,
    /// The increase.
    delta: f64,
    previous: Option<Duration>,
    /// Moving average of differences, in seconds.
    difference: f64,
    /// The smallest round trip so far, the base of gradients.
    least: Duration,
    /// Consecutive samples without a positive gradient.
    falling: u32,
    /// Intervals since the last sample.
    unanswered: u32,
}

impl Timely {
    pub(super) fn new(scale: &Scale) -> Self {
        Self {
            share: 1.0,
            delta: (DELTA * f64::from(scale.others)).min(MOST_DELTA),
            previous: None,
            difference: 0.0,
            least: Duration::MAX,
            falling: 0,
            unanswered: 0,
        }
    }

    fn sample(&mut self, round_trip: Duration) {
        self.least = self.least.min(round_trip.max(LEAST));
        let previous = self.previous.replace(round_trip).unwrap_or(round_trip);
        let difference = round_trip.as_secs_f64() - previous.as_secs_f64();
        self.difference = (1.0 - ALPHA) * self.difference + ALPHA * difference;
        let gradient = self.difference / self.least.as_secs_f64();
        if gradient <= 0.0 {
            self.falling = self.falling.saturating_add(1);
        } else {
            self.falling = 0;
        }
        if round_trip < T_LOW {
            self.share += self.delta;
        } else if round_trip > T_HIGH {
            let over = 1.0 - T_HIGH.as_secs_f64() / round_trip.as_secs_f64();
            self.share *= 1.0 - BETA * over;
        } else if gradient <= 0.0 {
            let steps = if self.falling >= HYPERACTIVE {
                HYPERACTIVE
            } else {
                1
            };
            self.share += f64::from(steps) * self.delta;
        } else {
            self.share *= (1.0 - BETA * gradient).max(1.0 - MOST_CUT);
        }
        self.share = self.share.clamp(LEAST_SHARE, 1.0);
    }
}

impl RateControl for Timely {
    fn adapt(&mut self, _: Time, seen: &Seen) -> f64 {
        match seen.round_trip {
            Some(round_trip) => {
                self.unanswered = 0;
                self.sample(round_trip);
            }
            None => {
                self.unanswered = self.unanswered.saturating_add(1);
                if self.unanswered > UNANSWERED {
                    self.share = (self.share + self.delta).min(1.0);
                }
            }
        }
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::scale;
    use super::*;

    /// Seven others.
    const STEP: f64 = 7.0 * DELTA;

    fn seen(us: u64) -> Seen {
        Seen {
            round_trip: Some(Duration::from_micros(us)),
            ..Seen::default()
        }
    }

    fn after(samples: &[u64]) -> f64 {
        let mut timely = Timely {
            share: 0.5,
            ..Timely::new(&scale())
        };
        for us in samples {
            timely.adapt(Time::ZERO, &seen(*us));
        }
        timely.share
    }

    #[test]
    fn thresholds_go_before_the_gradient() {
        // Rising, but low; falling, but high.
        assert_eq!(after(&[20, 40]), 0.5 + 2.0 * STEP);
        assert!(after(&[2000, 1000]) < 0.5 * 0.6);
    }

    #[test]
    fn between_them_the_gradient_decides() {
        assert!(after(&[100, 110, 120]) < 0.5);
        assert!(after(&[120, 110, 100]) > 0.5);
        // From the fifth sample without a rise on it grows five times as fast.
        assert_eq!(after(&[100; 4]), after(&[100; 3]) + STEP);
        assert!((after(&[100; 5]) - after(&[100; 4]) - 5.0 * STEP).abs() < 1e-12);
    }

    #[test]
    fn without_answers_the_rate_stays_and_then_rises() {
        let mut timely = Timely::new(&scale());
        timely.adapt(Time::ZERO, &seen(5000));
        let share = timely.share;
        assert!(share < 0.5);
        let mut unanswered = || timely.adapt(Time::ZERO, &Seen::default());
        for _ in 0..UNANSWERED {
            assert_eq!(unanswered(), share);
        }
        assert_eq!(unanswered(), share + STEP);
        assert_eq!((0..200).map(|_| unanswered()).last(), Some(1.0));
    }
}
