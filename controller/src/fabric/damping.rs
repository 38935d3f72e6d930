//! When a part that comes and goes counts as up: a flap storm moves nothing.
//!
//! A part that is gone counts as down after a grace, so that what is back at once moves nobody. What is back counts as up only after it
//! has stayed for a while, which doubles with each failure up to a cap and halves with the quiet time in which it was there. Short absences
//! with no calm between them add up. So a part that flaps, however fast, is moved off and back at most once for each hold, and the holds
//! soon are [`HOLD_MOST`] long. (Routers damp routes alike: RFC 2439.)

use std::time::{Duration, Instant};

/// How long something may be gone before it counts as down. A switch's process that is started again takes longer; a connection that breaks
/// and is made again does not.
pub const GRACE: Duration = Duration::from_millis(300);
/// For how long what has failed once must stay before it counts as up.
pub const HOLD_FIRST: Duration = Duration::from_secs(1);
/// The longest that anything must stay.
pub const HOLD_MOST: Duration = Duration::from_secs(64);
/// The time without a failure after which a hold is half as long.
pub const QUIET: Duration = Duration::from_secs(60);

/// How patient one is with what fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Gone for so long is down.
    pub grace: Duration,
    /// Back for so long is up, after the first failure.
    pub hold_first: Duration,
    /// The same after very many.
    pub hold_most: Duration,
    /// A hold is half as long after each such time without failure.
    pub quiet: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            grace: GRACE,
            hold_first: HOLD_FIRST,
            hold_most: HOLD_MOST,
            quiet: QUIET,
        }
    }
}

/// How a part stands that has failed at least once.
#[derive(Clone, Copy, Debug)]
pub struct Damping {
    terms: Terms,
    /// What was last seen of it, and when that began.
    is_there: bool,
    since: Instant,
    /// For how long it was there before it went.
    stayed: Duration,
    /// For how long it has been gone in absences that were each too short to count, with no calm between them.
    gone: Duration,
    is_down: bool,
    hold: Duration,
    has_failed: bool,
}

impl Damping {
    /// Of a part that was there and is gone.
    pub fn gone(terms: Terms, now: Instant) -> Self {
        Damping {
            terms,
            is_there: false,
            since: now,
            stayed: Duration::ZERO,
            gone: Duration::ZERO,
            is_down: false,
            hold: terms.hold_first.min(terms.hold_most),
            has_failed: false,
        }
    }

    /// Of a part that is gone and counts as down, whatever the grace: nobody has seen it.
    pub fn down(terms: Terms, now: Instant) -> Self {
        Damping {
            is_down: true,
            has_failed: true,
            ..Damping::gone(terms, now)
        }
    }

    /// It is seen, there or gone; whether it was seen otherwise before.
    pub fn see(&mut self, is_there: bool, now: Instant) -> bool {
        self.pass(now);
        if is_there == self.is_there {
            return false;
        }
        let lasted = now.saturating_duration_since(self.since);
        (self.is_there, self.since) = (is_there, now);
        if is_there {
            self.gone += lasted;
            return true;
        }
        self.stayed = lasted;
        if lasted >= self.terms.hold_first {
            self.gone = Duration::ZERO;
        }
        // Of what counts as up a short absence is none; what is watched must not fail again.
        if self.is_down {
            self.fail();
        }
        true
    }

    /// It is gone, and has been watched for long enough: it counts as down at once.
    pub fn lose(&mut self, now: Instant) {
        self.see(false, now);
        if !self.is_down {
            self.is_down = true;
            self.gone = Duration::ZERO;
            self.fail();
        }
    }

    /// Time goes by; whether it counts as down then.
    pub fn pass(&mut self, now: Instant) -> bool {
        if self.due().is_some_and(|due| due <= now) {
            self.is_down = !self.is_down;
            self.gone = Duration::ZERO;
            if self.is_down {
                self.fail();
            }
        }
        self.is_down
    }

    /// When it counts as something else than now, if it stays as it is seen.
    pub fn due(&self) -> Option<Instant> {
        match (self.is_there, self.is_down) {
            (false, false) => Some(self.since + self.terms.grace.saturating_sub(self.gone)),
            (true, true) => Some(self.since + self.hold),
            _ => None,
        }
    }

    /// When it counts as down if it stays away, or as much later as `notice` takes from when it went; none where it is there, or down already.
    pub fn falls(&self, notice: Duration) -> Option<Instant> {
        let is_going = !self.is_there && !self.is_down;
        let due = self.due().filter(|_| is_going);
        due.map(|due| due.max(self.since + notice))
    }

    /// Whether nothing of it is worth remembering.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        let calm = match self.has_failed {
            true => self.terms.quiet.saturating_mul(u32::BITS),
            false => self.terms.hold_first,
        };
        self.is_there && !self.is_down && now.saturating_duration_since(self.since) >= calm
    }

    /// It has failed, after it had stayed for a while.
    fn fail(&mut self) {
        if self.has_failed {
            let quiet = self.stayed.as_nanos() / self.terms.quiet.as_nanos().max(1);
            let halves = u32::try_from(quiet).unwrap_or(u32::MAX).min(u32::BITS - 1);
            let hold = self.hold.saturating_mul(2) / (1 << halves);
            self.hold = hold.max(self.terms.hold_first).min(self.terms.hold_most);
        }
        self.has_failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        grace: Duration::from_millis(300),
        hold_first: Duration::from_secs(1),
        hold_most: Duration::from_secs(8),
        quiet: Duration::from_secs(60),
    };

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn what_is_back_at_once_was_never_away() {
        let start = Instant::now();
        let mut part = Damping::gone(TERMS, start);
        for blip in 0..100 {
            let at = start + ms(1299 * blip);
            part.see(false, at);
            assert!(!part.pass(at + ms(299)));
            part.see(true, at + ms(299));
            assert_eq!(part.due(), None);
            assert!(!part.is_forgotten(at + ms(1298)));
        }
        assert!(part.is_forgotten(start + ms(1299 * 100)));
    }

    /// Absences with no calm between them are one.
    #[test]
    fn what_is_away_again_and_again_is_down() {
        let start = Instant::now();
        let mut part = Damping::gone(TERMS, start);
        for blip in 0..2 {
            let at = start + ms(1000 * blip);
            part.see(false, at);
            part.see(true, at + ms(100));
        }
        assert_eq!(part.falls(ms(0)), None);
        part.see(false, start + ms(2000));
        assert_eq!(part.due(), Some(start + ms(2100)));
        assert_eq!(part.falls(ms(99)), Some(start + ms(2100)));
        assert_eq!(part.falls(ms(250)), Some(start + ms(2250)));
        assert!(part.pass(start + ms(2100)));
        assert_eq!(part.falls(ms(250)), None);
        part.see(true, start + ms(2100));
        assert!(part.due().is_some() && part.falls(ms(250)).is_none());
    }

    #[test]
    fn what_is_lost_is_down_at_once_and_held_longer_each_time() {
        let start = Instant::now();
        let mut part = Damping::down(TERMS, start);
        for (lost, hold) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            let at = start + ms(100_000 * lost as u64);
            part.lose(at);
            assert!(part.pass(at) && part.due().is_none());
            part.see(true, at + ms(10));
            assert_eq!(part.due(), Some(at + ms(10 + 1000 * hold)));
            assert!(!part.pass(at + ms(10 + 1000 * hold)));
            // Not for so long that it is forgiven.
            part.see(false, at + ms(40_000));
            part.see(true, at + ms(40_001));
        }
    }

    /// Time in which it is down is not quiet, and no terms are too strange.
    #[test]
    fn being_down_for_long_earns_nothing() {
        for (terms, hold) in [
            (TERMS, 2),
            (
                Terms {
                    hold_most: ms(500),
                    ..TERMS
                },
                0,
            ),
        ] {
            let start = Instant::now();
            let mut part = Damping::down(terms, start);
            part.see(true, start + ms(3_600_000));
            part.see(false, start + ms(3_600_010));
            part.see(true, start + ms(7_200_000));
            let held = part.due().unwrap() - (start + ms(7_200_000));
            assert_eq!(held.as_secs(), hold);
        }
    }

    #[test]
    fn holds_double_up_to_a_cap_and_halve_with_quiet_time() {
        let start = Instant::now();
        let mut part = Damping::gone(TERMS, start);
        part.see(true, start);
        let mut now = start;
        let mut cycle = |part: &mut Damping, pause: Duration| {
            now += pause;
            part.see(false, now);
            assert!(!part.pass(now + ms(299)) && part.pass(now + ms(300)));
            now += ms(300);
            part.see(true, now);
            let hold = part.due().unwrap() - now;
            assert!(part.pass(now + hold - ms(1)) && !part.pass(now + hold));
            now += hold;
            hold
        };
        let holds: Vec<u64> = (0..5).map(|_| cycle(&mut part, ms(1)).as_secs()).collect();
        assert_eq!(holds, [1, 2, 4, 8, 8]);
        // Two quiet minutes: a quarter, and twice that for the failure.
        assert_eq!(cycle(&mut part, ms(115_000)).as_secs(), 4);
        assert_eq!(cycle(&mut part, ms(3_600_000)).as_secs(), 1);
    }

    #[test]
    fn one_that_fails_while_it_is_watched_is_watched_longer() {
        let start = Instant::now();
        let mut part = Damping::gone(TERMS, start);
        assert!(part.pass(start + ms(300)));
        let mut now = start + ms(400);
        for hold in [1, 2, 4, 8, 8] {
            part.see(true, now);
            assert_eq!(part.due(), Some(now + ms(1000 * hold)));
            now += ms(10);
            part.see(false, now);
            assert_eq!((part.due(), part.pass(now)), (None, true));
            now += ms(10);
        }
    }

    /// However fast it flaps, it counts as something else at most so often.
    #[test]
    fn a_storm_changes_little() {
        for period in [1, 7, 100, 299, 301, 350, 1100, 5000] {
            let start = Instant::now();
            let mut part = Damping::gone(TERMS, start);
            let (mut was, mut changes) = (false, 0);
            for at in (0..60_000).step_by(1) {
                let now = start + ms(at);
                if at % period == 0 {
                    part.see((at / period) % 2 == 1, now);
                }
                let is = part.pass(now);
                changes += u32::from(is != was);
                was = is;
            }
            assert!(changes <= 18, "{changes} with a period of {period} ms");
        }
    }
}
