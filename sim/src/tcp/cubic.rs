//! CUBIC congestion control (RFC 9438), Linux's default.

use crate::clock::Ps;

/// Initial window in segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Aggressiveness of the cubic function (RFC 9438, 5).
const C: f64 = 0.4;
/// Factor of a reduction (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// Growth per round trip that equals Reno's average window with [`BETA`] (RFC 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The congestion window, in segments.
pub(super) struct Cubic {
    window: f64,
    /// Slow start ends at this window.
    threshold: f64,
    /// The window at the last loss event; 0 after a timeout.
    w_max: f64,
    /// Congestion avoidance since the last loss event.
    epoch: Option<Epoch>,
}

/// A period of congestion avoidance.
#[derive(Clone, Copy)]
struct Epoch {
    start: Ps,
    /// Seconds from `start` to the window `plateau`.
    k: f64,
    plateau: f64,
    /// The window that Reno would have.
    reno: f64,
}

impl Epoch {
    fn window(&self, at: Ps) -> f64 {
        C * (at.since(self.start).as_secs() - self.k).powi(3) + self.plateau
    }
}

impl Cubic {
    pub(super) fn new() -> Self {
        Self {
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            w_max: 0.0,
            epoch: None,
        }
    }

    /// The window in whole segments, at least 1.
    pub(super) fn window(&self) -> usize {
        self.window as usize
    }

    /// Grows the window, up to `room`, for `acked` segments that were acknowledged while `in_flight` were in flight.
    /// A window that the sender does not use does not grow (RFC 9438, 4.2 and 5.8; limits as in Linux).
    pub(super) fn grow(&mut self, now: Ps, rtt: Ps, acked: f64, in_flight: usize, room: f64) {
        if self.window < self.threshold {
            if 2 * in_flight >= self.window() {
                self.window = (self.window + acked).min(self.threshold).min(room);
            }
            return;
        }
        if in_flight < self.window() {
            return;
        }
        let (window, w_max) = (self.window, self.w_max);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            start: now,
            k: ((w_max - window).max(0.0) / C).cbrt(),
            plateau: w_max.max(window),
            reno: window,
        });
        let alpha = if epoch.reno < w_max { ALPHA } else { 1.0 };
        epoch.reno += alpha * acked / window;
        let cubic = if epoch.window(now) < epoch.reno {
            epoch.reno
        } else {
            let target = epoch.window(now + rtt).clamp(window, 1.5 * window);
            window + (target - window) / window * acked
        };
        self.window = cubic.max(window).min(room);
    }

    /// Reduces the window after a loss event with `outstanding` segments (RFC 9438, 4.6 and 4.7).
    pub(super) fn reduce(&mut self, outstanding: usize) {
        self.w_max = match self.window < self.w_max {
            true => self.window * (1.0 + BETA) / 2.0,
            false => self.window,
        };
        self.threshold = (outstanding as f64 * BETA).max(2.0);
        self.window = self.threshold;
        self.epoch = None;
    }

    /// Starts again after a retransmission timeout, with one segment more than the `in_flight` ones.
    pub(super) fn restart(&mut self, in_flight: usize) {
        self.window = in_flight as f64 + 1.0;
        self.w_max = 0.0;
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Ps = Ps(1_000_000_000_000);
    const ROOM: f64 = 1e6;

    /// Acknowledges a whole window each round trip.
    fn rounds(cubic: &mut Cubic, from: Ps, rounds: u64) -> f64 {
        for round in 0..rounds {
            let (window, now) = (cubic.window(), Ps(from.0 + round * RTT.0));
            cubic.grow(now, RTT, window as f64, window, ROOM);
        }
        cubic.window
    }

    #[test]
    fn slow_start_doubles_up_to_the_threshold() {
        let mut cubic = Cubic::new();
        assert_eq!(rounds(&mut cubic, Ps::ZERO, 3), 80.0);
        cubic.reduce(80);
        cubic.restart(0);
        assert_eq!(rounds(&mut cubic, Ps::ZERO, 5), 32.0);
        assert_eq!(rounds(&mut cubic, Ps::ZERO, 1), 56.0);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut cubic = Cubic::new();
        cubic.grow(Ps::ZERO, RTT, 4.0, 4, ROOM);
        assert_eq!(cubic.window(), 10);
        cubic.grow(Ps::ZERO, RTT, 4.0, 5, ROOM);
        assert_eq!(cubic.window(), 14);
    }

    #[test]
    fn the_window_returns_to_the_plateau_after_k_seconds() {
        let mut cubic = Cubic::new();
        (cubic.window, cubic.threshold) = (1000.0, 1.0);
        cubic.reduce(1000);
        assert_eq!(cubic.window, 700.0);
        // K = (300 / 0.4)^(1/3) = 9.09 s (RFC 9438, 4.2); slow growth before it, faster growth after.
        let after = rounds(&mut cubic, Ps::ZERO, 9);
        assert!((999.9..1000.1).contains(&after), "{after}");
        // 0.4 · (12 − K)³ more after 12 s.
        let after = rounds(&mut cubic, Ps(9 * RTT.0), 3);
        assert!((1009.0..1011.0).contains(&after), "{after}");
    }

    #[test]
    fn short_round_trips_grow_as_fast_as_reno() {
        let mut cubic = Cubic::new();
        (cubic.window, cubic.threshold) = (20.0, 1.0);
        cubic.reduce(20);
        for _ in 0..10 {
            let window = cubic.window();
            cubic.grow(Ps::ZERO, Ps(1), window as f64, window, ROOM);
        }
        // 14 + 10 · 0.53.
        assert!((18.5..19.5).contains(&cubic.window), "{}", cubic.window);
    }
}
