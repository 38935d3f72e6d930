//! Round-trip times to other ranks, measured by repair requests.

use std::time::Duration;

use ultima_wire::Ticks;

use crate::time::Time;

/// Round trips by rank, without packets of their own. A repair request echoes the time of the owner's last
/// packet plus the time since its arrival, so the difference from the owner's clock is the round trip.
pub(crate) struct RoundTrips {
    ranks: Vec<Rank>,
    /// Longer measurements are ignored.
    longest: Duration,
}

#[derive(Clone, Copy)]
struct Rank {
    /// The last packet: its sender's time, and its arrival time.
    heard: Option<(Ticks, Time)>,
    measured: Duration,
}

impl RoundTrips {
    /// The default, and the minimum. Our choice: 20 µs per host, as in the simulator, and 10 µs of network.
    /// If it is too short, a repair is sent twice; if it is too long, the repair is late by the difference.
    const SHORTEST: Duration = Duration::from_micros(50);

    pub(crate) fn new(ranks: u16, longest: Duration) -> Self {
        let rank = Rank {
            heard: None,
            measured: Self::SHORTEST,
        };
        Self {
            ranks: vec![rank; ranks.into()],
            longest,
        }
    }

    /// Notes a packet of `source`, sent at `sent_at` by its clock.
    pub(crate) fn heard(&mut self, now: Time, source: u16, sent_at: Ticks) {
        if sent_at != Ticks(0) {
            self.ranks[usize::from(source)].heard = Some((sent_at, now));
        }
    }

    /// The echo of a request to `owner`; 0 without a packet from it.
    pub(crate) fn echo(&self, now: Time, owner: u16) -> Ticks {
        let heard = self.ranks[usize::from(owner)].heard;
        heard.map_or(Ticks(0), |(sent_at, at)| {
            let held = Ticks::from(now.since(at));
            // Zero means "no echo".
            Ticks(sent_at.0.wrapping_add(held.0).max(1))
        })
    }

    /// Notes the echo in a request of `source`.
    pub(crate) fn echoed(&mut self, now: Time, source: u16, echoed: Ticks) {
        let clock = Ticks::from_clock_ns(now.as_nanos());
        let round_trip = Duration::from(Ticks(clock.0.wrapping_sub(echoed.0)));
        if echoed != Ticks(0) && round_trip <= self.longest {
            self.ranks[usize::from(source)].measured = round_trip.max(Self::SHORTEST);
        }
    }

    /// The last measured round trip to `rank`.
    pub(crate) fn of(&self, rank: u16) -> Duration {
        self.ranks[usize::from(rank)].measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_at_the_requester_is_not_part_of_the_round_trip() {
        let at = |us: u64| Time::ZERO + Duration::from_micros(us);
        let longest = Duration::from_millis(10);
        let [mut owner, mut asks] = [(); 2].map(|()| RoundTrips::new(2, longest));
        // 300 us there, 5 ms at the requester, 400 us back.
        let sent = Ticks::from_clock_ns(at(1000).as_nanos());
        assert_eq!(asks.echo(at(0), 1), Ticks(0));
        asks.heard(at(1300), 1, sent);
        let echo = asks.echo(at(6300), 1);
        owner.echoed(at(6700), 0, echo);
        let measured = owner.of(0).as_micros();
        assert!((697..=703).contains(&measured), "{measured} us");
        // No echo, and an impossible one.
        owner.echoed(at(9000), 0, Ticks(0));
        owner.echoed(at(90_000), 0, echo);
        assert_eq!(owner.of(0).as_micros(), measured);
        assert_eq!(owner.of(1), RoundTrips::SHORTEST);
    }
}
