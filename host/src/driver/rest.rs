//! Rests: sleeping for several packets' time where packets arrive slowly.
//!
//! On a network much slower than the host, each packet wakes the data thread, and waking costs more than the packet. So
//! the thread rests between packets: they wait in the socket, and leave within the burst that pacing allows. It does not rest
//! near the end of an operation, which the last packets would then delay, nor where packets arrive faster than a thread
//! wakes: there each wake-up finds several.

use std::time::Duration;

use crate::config::Config;
use crate::time::Time;

/// The longest rest: a share of an operation's time on a network on which rests pay.
const LONGEST: Duration = Duration::from_micros(500);
/// The shortest rest. Where packets are faster, CPUs limit the ranks, and several packets arrive while one is handled.
const SHORTEST: Duration = Duration::from_micros(250);
/// Packets that may arrive in a rest.
const PACKETS: u32 = 8;
/// The share of the receive buffer that they may fill.
const BUFFER_SHARE: u32 = 8;
/// Slots that operations wait for at least.
const AWAITED: u32 = 16;
/// The time over which arrivals are averaged: a few operations.
const WINDOW: Duration = Duration::from_millis(100);
/// The least time that shows how fast packets arrive.
const LEAST: Duration = Duration::from_millis(10);

/// Decides when the data thread rests.
pub(super) struct Rest {
    /// Packets that may arrive in a rest; zero for no rests.
    packets: u32,
    /// The last wait's time.
    since: Time,
    /// Packets received since then.
    received: u32,
    /// True if operations waited for many slots then.
    was_busy: bool,
    /// Recent time in which they did, and packets received in it.
    busy: Duration,
    arrived: u32,
}

impl Rest {
    pub(super) fn new(config: &Config) -> Self {
        let room = config.receive_buffer.map_or(0, |buffer| buffer.packets);
        Self {
            packets: (room / BUFFER_SHARE).min(PACKETS),
            since: Time::ZERO,
            received: 0,
            was_busy: false,
            busy: Duration::ZERO,
            arrived: 0,
        }
    }

    /// Notes a packet.
    pub(super) fn received(&mut self) {
        self.received += 1;
    }

    /// The rest at this time, when there is nothing to do and operations wait for `awaited` slots.
    pub(super) fn at(&mut self, now: Time, awaited: u32) -> Option<Duration> {
        let time = now.since(std::mem::replace(&mut self.since, now));
        let received = std::mem::take(&mut self.received);
        let is_busy = awaited >= AWAITED;
        if std::mem::replace(&mut self.was_busy, is_busy) {
            self.busy += time;
            self.arrived += received;
        }
        if self.busy > WINDOW {
            self.busy /= 2;
            self.arrived /= 2;
        }
        // After a rest without packets the thread waits for one.
        if !is_busy || received == 0 || self.busy < LEAST {
            return None;
        }
        // The first packets after a pause show nothing, but faster ones end the rests at once.
        let gap = (self.busy / self.arrived.max(1)).min(time / received);
        let rest = (gap * self.packets).min(LONGEST);
        (rest >= SHORTEST).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReceiveBuffer;

    const US: Duration = Duration::from_micros(1);

    fn rest(room: u32) -> Rest {
        Rest::new(&Config {
            receive_buffer: Some(ReceiveBuffer { packets: room }),
            ..Config::new(1, 1, 0, 4, 7, Duration::from_secs(1))
        })
    }

    /// The rest after packets that arrive `gap` apart, with the time at which it begins.
    fn after(rest: &mut Rest, gap: Duration) -> (Time, Option<Duration>) {
        let mut now = rest.since;
        let mut last = None;
        for _ in 0..2000 {
            now = now + gap;
            rest.received();
            last = rest.at(now, 100);
        }
        (now, last)
    }

    #[test]
    fn slow_packets_are_received_together() {
        for (gap, expected) in [
            (2, None),
            (12, None),
            (30, None),
            (40, Some(320)),
            (120, Some(500)),
        ] {
            let (_, found) = after(&mut rest(600), gap * US);
            assert_eq!(found, expected.map(|us: u32| us * US), "{gap} µs apart");
        }
    }

    #[test]
    fn nothing_rests_at_the_end_of_an_operation_or_without_packets() {
        let mut rest = rest(600);
        let (now, _) = after(&mut rest, 120 * US);
        rest.received();
        assert_eq!(rest.at(now + 120 * US, 15), None);
        assert_eq!(rest.at(now + 240 * US, 100), None);
    }

    #[test]
    fn faster_packets_end_the_rests_at_once() {
        let mut rest = rest(600);
        let (now, _) = after(&mut rest, 120 * US);
        (0..100).for_each(|_| rest.received());
        assert_eq!(rest.at(now + 500 * US, 100), None);
    }

    #[test]
    fn a_pause_does_not_make_packets_slow() {
        let mut rest = rest(600);
        let (now, _) = after(&mut rest, 5 * US);
        assert_eq!(rest.at(now, 0), None);
        rest.received();
        assert_eq!(rest.at(now + 100_000 * US, 100), None);
    }

    #[test]
    fn a_rest_fills_a_part_of_the_buffer_only() {
        assert_eq!(after(&mut rest(32), 120 * US).1, Some(480 * US));
        assert_eq!(after(&mut rest(7), 120 * US).1, None);
    }
}
