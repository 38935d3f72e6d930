//! Decides whether an idle thread polls again or sleeps.
//!
//! Sleeping and waking on another CPU takes tens of microseconds, a few times as long as a packet. While recent pauses
//! between packets are shorter than that, polling costs less.

use crate::tm::Nanos;

/// Longest average pause during which the thread polls, in nanoseconds.
const AWAKE: Nanos = 30_000;
/// Upper bound of a pause in the average, so that a few short pauses after a long one suffice to poll again.
const LONGEST: Nanos = 4 * AWAKE;
/// A new pause has weight 2^-WEIGHT in the average.
const WEIGHT: u32 = 2;

/// The average of recent pauses.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// Moving average of pauses.
    pause: Nanos,
    /// Start of the current pause.
    since: Option<Nanos>,
}

impl Vigil {
    /// Starts without a recent packet, so the thread sleeps at once.
    pub(crate) fn new() -> Vigil {
        Vigil {
            pause: LONGEST,
            since: None,
        }
    }

    /// Records that there is nothing to do at this time. Returns true to poll again, false to sleep.
    pub(crate) fn idle(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        self.pause < AWAKE && now.saturating_sub(since) < AWAKE
    }

    /// Records that there was something to do.
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
