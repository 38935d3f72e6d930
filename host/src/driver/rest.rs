//! Rests: sleeping for several packets' time where packets arrive slowly.
//!
//! On a network much slower than the host, each packet wakes the data thread, and waking costs more than the packet. So the
//! thread rests between packets: they wait in the socket, and leave within the burst that pacing allows. It does not rest near
//! the end of an operation, because a rest would delay the last packets. Nor does it where packets arrive faster than a thread
//! wakes: there each wake-up finds several.
//!
//! Packets may also be slow because their senders wait for this rank's answers, for credit or within a small window. Then rests
//! make them slower still. So the thread takes turns: it rests, and it does not, and compares the times between packets.

use std::time::Duration;

use crate::config::Config;
use crate::core::window;
use crate::rate::choice::RatePolicy;
use crate::time::Time;

/// The longest rest: a small part of an operation's time on a network on which rests pay.
const LONGEST: Duration = Duration::from_micros(500);
/// The shortest rest. Where packets are faster, CPUs limit the ranks, and several packets arrive while one is handled.
const SHORTEST: Duration = Duration::from_micros(250);
/// Packets that may arrive in a rest.
const PACKETS: u32 = 8;
/// The share of the receive buffer that they may fill.
const BUFFER_SHARE: u32 = 8;
/// The share of a sender's window that they may be.
const WINDOW_SHARE: u32 = 2;
/// Slots that operations wait for at least.
const AWAITED: u32 = 16;
/// A turn with rests, and one without.
const RESTING: Duration = Duration::from_millis(8);
const WITHOUT: Duration = Duration::from_millis(1);
/// The turn without rests after a comparison that spoke against them.
const LONG_WITHOUT: Duration = Duration::from_secs(1);
/// The least time without rests that shows how fast packets arrive.
const LEAST: Duration = Duration::from_millis(5);
/// The least number of packets to compare.
const LEAST_PACKETS: u32 = 32;
/// The time over which arrivals are averaged.
const AVERAGED: Duration = Duration::from_millis(100);

/// Recent arrivals.
#[derive(Default)]
struct Arrivals {
    time: Duration,
    packets: u32,
}

impl Arrivals {
    fn add(&mut self, time: Duration, packets: u32) {
        self.time += time;
        self.packets = self.packets.saturating_add(packets);
        if self.time > AVERAGED {
            self.time /= 2;
            self.packets /= 2;
        }
    }

    /// The mean time between two packets.
    fn gap(&self) -> Duration {
        self.time / self.packets.max(1)
    }
}

/// Decides when the data thread rests.
pub(super) struct Rest {
    /// Packets that may arrive in a rest.
    packets: u32,
    /// The last wait's time.
    since: Time,
    /// Packets received since then.
    received: u32,
    /// True if operations waited for many slots then.
    was_busy: bool,
    /// True in a turn with rests.
    is_resting: bool,
    turn_ends: Time,
    /// Arrivals in turns with rests.
    with: Arrivals,
    without: Arrivals,
}

impl Rest {
    /// None for a configuration with which the thread does not rest.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let room = config.receive_buffer.map_or(0, |buffer| buffer.packets);
        let window = u32::from(window(config));
        let packets = (room / BUFFER_SHARE).min(window / WINDOW_SHARE);
        // TIMELY takes a rest for a queue.
        let is_timed = (config.pacing).is_some_and(|pacing| pacing.policy == RatePolicy::Timely);
        (packets > 1 && !is_timed).then(|| Self {
            packets: packets.min(PACKETS),
            since: Time::ZERO,
            received: 0,
            was_busy: false,
            is_resting: false,
            turn_ends: Time::ZERO,
            with: Arrivals::default(),
            without: Arrivals::default(),
        })
    }

    /// Notes a packet.
    pub(super) fn received(&mut self) {
        self.received = self.received.saturating_add(1);
    }

    /// The rest at this time, when there is nothing to do and operations wait for `awaited` slots.
    pub(super) fn at(&mut self, now: Time, awaited: u32) -> Option<Duration> {
        let time = now.since(std::mem::replace(&mut self.since, now));
        let received = std::mem::take(&mut self.received);
        let is_busy = awaited >= AWAITED;
        let was_busy = std::mem::replace(&mut self.was_busy, is_busy);
        // After a rest without packets the thread waits for one.
        if received == 0 {
            return None;
        }
        if was_busy {
            let arrivals = match self.is_resting {
                true => &mut self.with,
                false => &mut self.without,
            };
            // A long wait, as for a rank that starts late, is none between packets.
            arrivals.add(time.min(LONGEST), received);
        }
        if !is_busy {
            return None;
        }
        if now >= self.turn_ends {
            self.take_turns(now);
        }
        if !self.is_resting {
            return None;
        }
        let rest = (self.without.gap().min(time / received) * self.packets).min(LONGEST);
        (rest >= SHORTEST).then_some(rest)
    }

    fn take_turns(&mut self, now: Time) {
        let slows = self.with.packets >= LEAST_PACKETS
            && self.with.gap() > self.without.gap() + self.without.gap() / 4;
        if slows {
            self.with = Arrivals::default();
        }
        self.is_resting = !self.is_resting && !slows && self.without.time >= LEAST;
        let turn = match (self.is_resting, slows) {
            (true, _) => RESTING,
            (false, true) => LONG_WITHOUT,
            (false, false) => WITHOUT,
        };
        self.turn_ends = now + turn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Pacing, ReceiveBuffer};

    const US: Duration = Duration::from_micros(1);
    const MS: Duration = Duration::from_millis(1);

    fn rest(room: u32) -> Option<Rest> {
        Rest::new(&Config {
            receive_buffer: Some(ReceiveBuffer { packets: room }),
            ..Config::new(1, 1, 0, 4, 7, Duration::from_secs(1))
        })
    }

    /// A rank that waits for packets, or rests.
    struct Rank {
        rest: Rest,
        now: Time,
        rested: Duration,
    }

    impl Rank {
        fn new(room: u32) -> Self {
            let rest = rest(room).expect("room for packets");
            Self {
                rest,
                now: Time::ZERO,
                rested: Duration::ZERO,
            }
        }

        /// Waits for a packet that comes after `gap`, and then rests. Packets come `gap` apart in a rest, or as `answers` says: at
        /// most so many until the thread has handled them.
        fn wait(&mut self, gap: Duration, answers: u32) -> Option<Duration> {
            self.now = self.now + gap;
            self.rest.received();
            let mut last = None;
            while let Some(rest) = self.rest.at(self.now, 100) {
                last = Some(rest);
                self.now = self.now + rest;
                self.rested += rest;
                let packets = (rest.as_nanos() / gap.as_nanos()) as u32;
                (0..packets.min(answers)).for_each(|_| self.rest.received());
            }
            last
        }

        /// The share of `time` in which it rests.
        fn share(&mut self, time: Duration, gap: Duration, answers: u32) -> f64 {
            let (start, before) = (self.now, self.rested);
            while self.now.since(start) < time {
                self.wait(gap, answers);
            }
            (self.rested - before).as_secs_f64() / self.now.since(start).as_secs_f64()
        }
    }

    #[test]
    fn slow_packets_are_received_together() {
        for (gap, rests) in [
            (2, false),
            (12, false),
            (30, false),
            (40, true),
            (120, true),
        ] {
            let share = Rank::new(600).share(1000 * MS, gap * US, u32::MAX);
            assert_eq!(share > 0.6, rests, "{gap} µs apart: {share}");
            assert_eq!(share > 0.0, rests, "{gap} µs apart: {share}");
        }
    }

    #[test]
    fn senders_that_wait_for_answers_end_the_rests() {
        // Two packets come 50 µs apart, then none until this rank answers: rests make them five times as slow.
        let share = Rank::new(600).share(4000 * MS, 50 * US, 2);
        assert!(share < 0.05, "{share}");
    }

    #[test]
    fn nothing_rests_near_the_end_of_an_operation() {
        let mut rank = Rank::new(600);
        rank.share(100 * MS, 120 * US, u32::MAX);
        for _ in 0..100 {
            rank.now = rank.now + 120 * US;
            rank.rest.received();
            assert_eq!(rank.rest.at(rank.now, 15), None);
        }
    }

    #[test]
    fn a_pause_does_not_make_packets_slow() {
        let mut rank = Rank::new(600);
        rank.share(100 * MS, 5 * US, u32::MAX);
        for _ in 0..20 {
            // A rank starts late.
            assert_eq!(rank.wait(100 * MS, u32::MAX), None);
            assert_eq!(rank.share(5 * MS, 5 * US, u32::MAX), 0.0);
        }
    }

    #[test]
    fn a_rest_fills_a_part_of_the_buffer_and_of_a_window_only() {
        let longest = |room| {
            let mut rank = Rank::new(room);
            (0..1000).filter_map(|_| rank.wait(60 * US, u32::MAX)).max()
        };
        assert_eq!(longest(600), Some(480 * US));
        assert_eq!(longest(40), Some(300 * US));
        assert!(rest(15).is_none());
    }

    #[test]
    fn timely_does_not_see_rests() {
        let pacing = |policy| Pacing {
            bits_per_second: 100_000_000,
            burst: 15_000,
            policy,
        };
        for (policy, rests) in [(RatePolicy::Fixed, true), (RatePolicy::Timely, false)] {
            let config = Config {
                receive_buffer: Some(ReceiveBuffer { packets: 600 }),
                pacing: Some(pacing(policy)),
                ..Config::new(1, 1, 0, 4, 7, Duration::from_secs(1))
            };
            assert_eq!(Rest::new(&config).is_some(), rests, "{policy:?}");
        }
    }
}
