//! Damping of elements that flap: decides when an element counts as up or down.
//!
//! A failed element counts as down after a grace period, so that a short absence reroutes no job. A
//! recovered element counts as up only after a hold time, which doubles with each failure up to a
//! cap and halves with each quiet period in which it was up. Short absences without a quiet time
//! between them add up. So a flapping element is rerouted at most once per hold, and holds soon
//! reach [`HOLD_MOST`]. (Routers damp routes in the same way: RFC 2439.)

use std::time::{Duration, Instant};

/// Grace period before an element counts as down. Restarting a switch's process takes longer;
/// reconnecting at the first attempt does not. Shorter than most deadlines of operations: the next one uses the new paths.
pub const GRACE: Duration = Duration::from_millis(50);
/// Hold time after the first failure.
pub const HOLD_FIRST: Duration = Duration::from_secs(1);
/// The longest hold time.
pub const HOLD_MOST: Duration = Duration::from_secs(64);
/// Time without a failure after which the hold time halves.
pub const QUIET: Duration = Duration::from_secs(60);

/// The configuration of damping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DampingConfig {
    /// Grace period before an element counts as down.
    pub grace: Duration,
    /// Hold time before an element counts as up, after its first failure.
    pub hold_first: Duration,
    /// The longest hold time.
    pub hold_most: Duration,
    /// Time without a failure after which the hold time halves.
    pub quiet: Duration,
}

impl Default for DampingConfig {
    fn default() -> Self {
        DampingConfig {
            grace: GRACE,
            hold_first: HOLD_FIRST,
            hold_most: HOLD_MOST,
            quiet: QUIET,
        }
    }
}

/// The state of an element that has failed at least once.
#[derive(Clone, Copy, Debug)]
pub struct Damping {
    config: DampingConfig,
    /// The last observation, and when it began.
    is_up: bool,
    since: Instant,
    /// Time that the element was up before it failed.
    up_for: Duration,
    /// Total length of absences that were each within the grace period, without a quiet time
    /// between them.
    absent: Duration,
    is_down: bool,
    hold: Duration,
    has_failed: bool,
}

impl Damping {
    /// The state of an element that just failed.
    pub fn failed(config: DampingConfig, now: Instant) -> Self {
        Damping {
            config,
            is_up: false,
            since: now,
            up_for: Duration::ZERO,
            absent: Duration::ZERO,
            is_down: false,
            hold: config.hold_first.min(config.hold_most),
            has_failed: false,
        }
    }

    /// The state of an element that counts as down without a grace period because it was never
    /// seen.
    pub fn down(config: DampingConfig, now: Instant) -> Self {
        Damping {
            is_down: true,
            has_failed: true,
            ..Damping::failed(config, now)
        }
    }

    /// Records an observation. Returns true if it differs from the last one.
    pub fn observe(&mut self, is_up: bool, now: Instant) -> bool {
        self.advance(now);
        if is_up == self.is_up {
            return false;
        }
        let lasted = now.saturating_duration_since(self.since);
        (self.is_up, self.since) = (is_up, now);
        if is_up {
            self.absent += lasted;
            return true;
        }
        self.up_for = lasted;
        if lasted >= self.config.hold_first {
            self.absent = Duration::ZERO;
        }
        // A short absence of an element that counts as up is not a failure; an element on hold must
        // not fail again.
        if self.is_down {
            self.fail();
        }
        true
    }

    /// Records a failure that was already observed long enough: the element counts as down at once.
    pub fn mark_down(&mut self, now: Instant) {
        self.observe(false, now);
        if !self.is_down {
            self.is_down = true;
            self.absent = Duration::ZERO;
            self.fail();
        }
    }

    /// Advances to `now`. Returns true if the element counts as down then.
    pub fn advance(&mut self, now: Instant) -> bool {
        if self.due().is_some_and(|due| due <= now) {
            self.is_down = !self.is_down;
            self.absent = Duration::ZERO;
            if self.is_down {
                self.fail();
            }
        }
        self.is_down
    }

    /// When the element's status changes if the observation stays as it is.
    pub fn due(&self) -> Option<Instant> {
        match (self.is_up, self.is_down) {
            (false, false) => Some(self.since + self.config.grace.saturating_sub(self.absent)),
            (true, true) => Some(self.since + self.hold),
            _ => None,
        }
    }

    /// True if the state needs no longer be kept.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        let calm = match self.has_failed {
            true => self.config.quiet.saturating_mul(u32::BITS),
            false => self.config.hold_first,
        };
        self.is_up && !self.is_down && now.saturating_duration_since(self.since) >= calm
    }

    /// Records a failure of an element that was up for a while.
    fn fail(&mut self) {
        if self.has_failed {
            let quiet = self.up_for.as_nanos() / self.config.quiet.as_nanos().max(1);
            let halves = u32::try_from(quiet).unwrap_or(u32::MAX).min(u32::BITS - 1);
            let hold = self.hold.saturating_mul(2) / (1 << halves);
            self.hold = hold.max(self.config.hold_first).min(self.config.hold_most);
        }
        self.has_failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: DampingConfig = DampingConfig {
        grace: Duration::from_millis(300),
        hold_first: Duration::from_secs(1),
        hold_most: Duration::from_secs(8),
        quiet: Duration::from_secs(60),
    };

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn short_absences_do_not_count() {
        let start = Instant::now();
        let mut part = Damping::failed(TERMS, start);
        for blip in 0..100 {
            let at = start + ms(1299 * blip);
            part.observe(false, at);
            assert!(!part.advance(at + ms(299)));
            part.observe(true, at + ms(299));
            assert_eq!(part.due(), None);
            assert!(!part.is_forgotten(at + ms(1298)));
        }
        assert!(part.is_forgotten(start + ms(1299 * 100)));
    }

    /// Absences without a quiet time between them add up.
    #[test]
    fn repeated_short_absences_count_as_down() {
        let start = Instant::now();
        let mut part = Damping::failed(TERMS, start);
        for blip in 0..2 {
            let at = start + ms(1000 * blip);
            part.observe(false, at);
            part.observe(true, at + ms(100));
        }
        part.observe(false, start + ms(2000));
        assert_eq!(part.due(), Some(start + ms(2100)));
        assert!(part.advance(start + ms(2100)));
        part.observe(true, start + ms(2100));
        assert!(part.due().is_some());
    }

    #[test]
    fn lost_elements_are_down_at_once_with_growing_holds() {
        let start = Instant::now();
        let mut part = Damping::down(TERMS, start);
        for (lost, hold) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            let at = start + ms(100_000 * lost as u64);
            part.mark_down(at);
            assert!(part.advance(at) && part.due().is_none());
            part.observe(true, at + ms(10));
            assert_eq!(part.due(), Some(at + ms(10 + 1000 * hold)));
            assert!(!part.advance(at + ms(10 + 1000 * hold)));
            // Too short a time for the hold to halve.
            part.observe(false, at + ms(40_000));
            part.observe(true, at + ms(40_001));
        }
    }

    /// Time while down is not quiet time, and extreme configurations do not overflow.
    #[test]
    fn time_while_down_does_not_shorten_the_hold() {
        for (config, hold) in [
            (TERMS, 2),
            (
                DampingConfig {
                    hold_most: ms(500),
                    ..TERMS
                },
                0,
            ),
        ] {
            let start = Instant::now();
            let mut part = Damping::down(config, start);
            part.observe(true, start + ms(3_600_000));
            part.observe(false, start + ms(3_600_010));
            part.observe(true, start + ms(7_200_000));
            let held = part.due().unwrap() - (start + ms(7_200_000));
            assert_eq!(held.as_secs(), hold);
        }
    }

    #[test]
    fn holds_double_up_to_a_cap_and_halve_with_quiet_time() {
        let start = Instant::now();
        let mut part = Damping::failed(TERMS, start);
        part.observe(true, start);
        let mut now = start;
        let mut cycle = |part: &mut Damping, pause: Duration| {
            now += pause;
            part.observe(false, now);
            assert!(!part.advance(now + ms(299)) && part.advance(now + ms(300)));
            now += ms(300);
            part.observe(true, now);
            let hold = part.due().unwrap() - now;
            assert!(part.advance(now + hold - ms(1)) && !part.advance(now + hold));
            now += hold;
            hold
        };
        let holds: Vec<u64> = (0..5).map(|_| cycle(&mut part, ms(1)).as_secs()).collect();
        assert_eq!(holds, [1, 2, 4, 8, 8]);
        // Two quiet periods quarter the hold, and the failure doubles it.
        assert_eq!(cycle(&mut part, ms(115_000)).as_secs(), 4);
        assert_eq!(cycle(&mut part, ms(3_600_000)).as_secs(), 1);
    }

    #[test]
    fn a_failure_during_the_hold_extends_it() {
        let start = Instant::now();
        let mut part = Damping::failed(TERMS, start);
        assert!(part.advance(start + ms(300)));
        let mut now = start + ms(400);
        for hold in [1, 2, 4, 8, 8] {
            part.observe(true, now);
            assert_eq!(part.due(), Some(now + ms(1000 * hold)));
            now += ms(10);
            part.observe(false, now);
            assert_eq!((part.due(), part.advance(now)), (None, true));
            now += ms(10);
        }
    }

    /// The number of status changes is bounded at any flap rate.
    #[test]
    fn flap_storms_change_the_status_rarely() {
        for period in [1, 7, 100, 299, 301, 350, 1100, 5000] {
            let start = Instant::now();
            let mut part = Damping::failed(TERMS, start);
            let (mut was, mut changes) = (false, 0);
            for at in (0..60_000).step_by(1) {
                let now = start + ms(at);
                if at % period == 0 {
                    part.observe((at / period) % 2 == 1, now);
                }
                let is = part.advance(now);
                changes += u32::from(is != was);
                was = is;
            }
            assert!(changes <= 18, "{changes} with a period of {period} ms");
        }
    }
}
