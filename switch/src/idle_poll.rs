//! Decides whether an idle thread polls again or sleeps.
//!
//! Sleeping and waking on another CPU takes tens of microseconds, a few times as long as a packet. While recent pauses
//! between packets are shorter than that, polling costs less. It costs other threads their CPU, though: while controllers send
//! requests, the thread sleeps, because decoding a request takes longer than running it.

use std::time::Duration;

use crate::clock::nanos;
use crate::tm::Nanos;

/// Upper bound of a pause in the average, as a multiple of the longest one that the thread polls through, so that a few short
/// pauses after a long one suffice to poll again.
const LONGEST: Nanos = 4;
/// How long the thread does not poll after commands that follow each other: longer than a batch of a thousand updates takes.
const AFTER_COMMAND: Nanos = 20_000_000;
/// A new pause has weight 2^-WEIGHT in the average.
const WEIGHT: u32 = 2;

#[derive(Debug)]
pub(crate) struct IdlePoll {
    /// The longest average pause during which the thread polls.
    longest: Nanos,
    /// The average pause.
    pause: Nanos,
    since: Option<Nanos>,
    last_command: Option<Nanos>,
    not_before: Nanos,
}

impl IdlePoll {
    /// Polls through pauses of `longest` on average. Starts without a recent packet, so the thread sleeps at once.
    pub(crate) fn new(longest: Duration) -> IdlePoll {
        let longest = nanos(longest);
        IdlePoll {
            longest,
            pause: longest.saturating_mul(LONGEST),
            since: None,
            last_command: None,
            not_before: 0,
        }
    }

    /// Records that the thread runs commands at this time. A single command does not end polling.
    pub(crate) fn commanded(&mut self, now: Nanos) {
        let last = self.last_command.replace(now);
        if last.is_some_and(|last| now < last + AFTER_COMMAND) {
            self.not_before = now + AFTER_COMMAND;
        }
    }

    /// Records that there is nothing to do at this time. Returns true to poll again, false to sleep.
    pub(crate) fn idle(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        now >= self.not_before
            && self.pause < self.longest
            && now.saturating_sub(since) < self.longest
    }

    /// Records that there was something to do.
    pub(crate) fn busy(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            let pause = now
                .saturating_sub(since)
                .min(self.longest.saturating_mul(LONGEST));
            self.pause = self.pause - (self.pause >> WEIGHT) + (pause >> WEIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAKE: Nanos = 30_000;

    fn idle_poll() -> IdlePoll {
        IdlePoll::new(Duration::from_nanos(AWAKE))
    }

    /// Pauses of this length, one after the other; how many of them it began awake.
    fn awake(idle_poll: &mut IdlePoll, count: u64, pause: Nanos) -> u64 {
        let mut now = 0;
        let mut awake = 0;
        for _ in 0..count {
            awake += u64::from(idle_poll.idle(now));
            now += pause;
            idle_poll.busy(now);
        }
        awake
    }

    #[test]
    fn short_pauses_are_spent_awake_and_long_ones_asleep() {
        let mut idle_poll = idle_poll();
        assert_eq!(awake(&mut idle_poll, 100, AWAKE * 2), 0);
        let stayed = awake(&mut idle_poll, 100, AWAKE / 10);
        assert!((90..100).contains(&stayed), "{stayed}");
        let stayed = awake(&mut idle_poll, 100, AWAKE * 400);
        assert!((1..5).contains(&stayed), "{stayed}");
    }

    #[test]
    fn a_longer_limit_polls_through_longer_pauses_and_none_never() {
        let mut long = IdlePoll::new(Duration::from_millis(2));
        let stayed = awake(&mut long, 100, 1_000_000);
        assert!((90..100).contains(&stayed), "{stayed}");
        let mut never = IdlePoll::new(Duration::ZERO);
        assert_eq!(awake(&mut never, 100, 0), 0);
    }

    #[test]
    fn the_thread_sleeps_while_commands_arrive() {
        let mut idle_poll = idle_poll();
        awake(&mut idle_poll, 100, 0);
        idle_poll.commanded(4);
        assert!(idle_poll.idle(4), "a single command");
        idle_poll.commanded(5);
        assert!(!idle_poll.idle(5));
        idle_poll.busy(6);
        assert!(!idle_poll.idle(5 + AFTER_COMMAND - 1));
        idle_poll.busy(5 + AFTER_COMMAND);
        awake(&mut idle_poll, 100, 0);
        assert!(idle_poll.idle(5 + AFTER_COMMAND));
    }

    #[test]
    fn a_pause_that_turns_out_long_ends_asleep() {
        let mut idle_poll = idle_poll();
        awake(&mut idle_poll, 100, 0);
        assert!(idle_poll.idle(5));
        assert!(idle_poll.idle(5 + AWAKE - 1));
        assert!(!idle_poll.idle(5 + AWAKE));
    }
}
