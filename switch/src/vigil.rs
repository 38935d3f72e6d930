//! How long an idle thread keeps looking before it sleeps.
//!
//! To sleep and be woken on another CPU takes tens of microseconds, a few times what a packet takes. While
//! the pauses between packets have been shorter than that, looking again costs less than sleeping.

use crate::tm::Nanos;

/// Longest pause that is waited for awake.
const AWAKE: Nanos = 30_000;
/// What a longer pause counts as: after a long one a few short ones are enough to stay awake again.
const LONGEST: Nanos = 4 * AWAKE;
/// A new pause's weight in the average is one in 2 to the power of this.
const WEIGHT: u32 = 2;

/// Remembers recent pauses.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// Moving average of pauses.
    pause: Nanos,
    /// When the current pause began.
    since: Option<Nanos>,
}

impl Vigil {
    /// One that sleeps at once.
    pub(crate) fn new() -> Vigil {
        Vigil {
            pause: LONGEST,
            since: None,
        }
    }

    /// There is nothing to do at this time. True to look again at once, false to sleep.
    pub(crate) fn idle(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        self.pause < AWAKE && now.saturating_sub(since) < AWAKE
    }

    /// There was something to do.
    pub(crate) fn busy(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            let pause = now.saturating_sub(since).min(LONGEST);
            self.pause = self.pause - (self.pause >> WEIGHT) + (pause >> WEIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses of this length, one after the other; how many of them it began awake.
    fn awake(vigil: &mut Vigil, count: u64, pause: Nanos) -> u64 {
        let mut now = 0;
        let mut awake = 0;
        for _ in 0..count {
            awake += u64::from(vigil.idle(now));
            now += pause;
            vigil.busy(now);
        }
        awake
    }

    #[test]
    fn short_pauses_are_spent_awake_and_long_ones_asleep() {
        let mut vigil = Vigil::new();
        assert_eq!(awake(&mut vigil, 100, AWAKE * 2), 0);
        let stayed = awake(&mut vigil, 100, AWAKE / 10);
        assert!((90..100).contains(&stayed), "{stayed}");
        let stayed = awake(&mut vigil, 100, LONGEST * 100);
        assert!((1..5).contains(&stayed), "{stayed}");
    }

    #[test]
    fn a_pause_that_turns_out_long_ends_asleep() {
        let mut vigil = Vigil::new();
        awake(&mut vigil, 100, 0);
        assert!(vigil.idle(5));
        assert!(vigil.idle(5 + AWAKE - 1));
        assert!(!vigil.idle(5 + AWAKE));
    }
}
