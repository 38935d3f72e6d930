//! When a part that comes and goes counts as up: a flap storm moves nothing.
//!
//! A part that is gone counts as down after a grace, so that what is back at once moves nobody. What is back counts as up only after it
//! has stayed for a while, which doubles with each failure up to a cap and halves with quiet time. So a part that flaps, however fast,
//! is moved off and back at most once for each hold, and the holds soon are [`HOLD_MOST`] long. (Routers damp routes
//! alike: RFC 2439.)

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
    is_down: bool,
    hold: Duration,
    /// When it last failed, if it has.
    failed: Option<Instant>,
}

impl Damping {
    /// Of a part that was there and is gone.
    pub fn gone(terms: Terms, now: Instant) -> Self {
        Damping {
            terms,
            is_there: false,
            since: now,
            is_down: false,
            hold: terms.hold_first,
            failed: None,
        }
    }

    /// It is seen, there or gone.
    pub fn see(&mut self, is_there: bool, now: Instant) {
        self.pass(now);
        if is_there == self.is_there {
            return;
        }
        (self.is_there, self.since) = (is_there, now);
        // Of what counts as up a short absence is none; what is watched must not fail again.
        if !is_there && self.is_down {
            self.fail(now);
        }
    }

    /// Time goes by; whether it counts as down then.
    pub fn pass(&mut self, now: Instant) -> bool {
        if self.due().is_some_and(|due| due <= now) {
            self.is_down = !self.is_down;
            if self.is_down {
                self.fail(self.since + self.terms.grace);
            }
        }
        self.is_down
    }

    /// When it counts as something else than now, if it stays as it is seen.
    pub fn due(&self) -> Option<Instant> {
        match (self.is_there, self.is_down) {
            (false, false) => Some(self.since + self.terms.grace),
            (true, true) => Some(self.since + self.hold),
            _ => None,
        }
    }

    /// Whether nothing of it is worth remembering.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        let quiet = |failed: Instant| self.halvings(failed, now) >= u32::BITS;
        self.is_there && !self.is_down && self.failed.is_none_or(quiet)
    }

    fn halvings(&self, failed: Instant, now: Instant) -> u32 {
        let quiet =
            now.saturating_duration_since(failed).as_nanos() / self.terms.quiet.as_nanos().max(1);
        u32::try_from(quiet).unwrap_or(u32::MAX)
    }

    fn fail(&mut self, now: Instant) {
        if let Some(before) = self.failed.replace(now) {
            let halves = self.halvings(before, now).min(u32::BITS - 1);
            let hold = self.hold.saturating_mul(2) / (1 << halves);
            self.hold = hold.clamp(self.terms.hold_first, self.terms.hold_most);
        }
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
            let at = start + ms(400 * blip);
            part.see(false, at);
            assert!(!part.pass(at + ms(299)));
            part.see(true, at + ms(299));
            assert_eq!(part.due(), None);
        }
        assert!(part.is_forgotten(start + ms(40_000)));
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
