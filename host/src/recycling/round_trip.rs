//! How long packets take from this rank to another and back, as requests for repair tell it.

use std::time::Duration;

use ultima_wire::Ticks;

use crate::time::Time;

/// Round trips by rank, without packets of their own: a request for repair echoes the time of the last packet that came
/// from the owner, plus how long ago that was, so that all that the owner finds missing of the time is the two ways.
pub(crate) struct RoundTrips {
    ranks: Vec<Rank>,
    /// A round trip longer than that is none.
    longest: Duration,
}

#[derive(Clone, Copy)]
struct Rank {
    /// The last packet that came: its sender's time, and ours.
    heard: Option<(Ticks, Time)>,
    measured: Duration,
}

impl RoundTrips {
    /// What is taken until one is measured, and for a shorter one: ours, the host's 20 µs on both sides that the simulator takes,
    /// and 10 µs of network. Too short, a repair is sent twice; too long, it comes later by as much.
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

    /// A packet of `source` came that it sent at `sent_at` by its clock.
    pub(crate) fn heard(&mut self, now: Time, source: u16, sent_at: Ticks) {
        if sent_at != Ticks(0) {
            self.ranks[usize::from(source)].heard = Some((sent_at, now));
        }
    }

    /// What a request to `owner` echoes; 0 where nothing was heard of it.
    pub(crate) fn echo(&self, now: Time, owner: u16) -> Ticks {
        let heard = self.ranks[usize::from(owner)].heard;
        heard.map_or(Ticks(0), |(sent_at, at)| {
            let held = Ticks::from(now.since(at));
            // Zero would say nothing.
            Ticks(sent_at.0.wrapping_add(held.0).max(1))
        })
    }

    /// A request of `source` echoed this.
    pub(crate) fn echoed(&mut self, now: Time, source: u16, echoed: Ticks) {
        let clock = Ticks::from_clock_ns(now.as_nanos());
        let round_trip = Duration::from(Ticks(clock.0.wrapping_sub(echoed.0)));
        if echoed != Ticks(0) && round_trip <= self.longest {
            self.ranks[usize::from(source)].measured = round_trip.max(Self::SHORTEST);
        }
    }

    /// The way to `rank` and back, as it was measured last.
    pub(crate) fn of(&self, rank: u16) -> Duration {
        self.ranks[usize::from(rank)].measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_is_not_on_the_way() {
        let at = |us: u64| Time::ZERO + Duration::from_micros(us);
        let longest = Duration::from_millis(10);
        let [mut owner, mut asks] = [(); 2].map(|()| RoundTrips::new(2, longest));
        // 300 us there, 5 ms at the one who asks, 400 us back.
        let sent = Ticks::from_clock_ns(at(1000).as_nanos());
        assert_eq!(asks.echo(at(0), 1), Ticks(0));
        asks.heard(at(1300), 1, sent);
        let echo = asks.echo(at(6300), 1);
        owner.echoed(at(6700), 0, echo);
        let measured = owner.of(0).as_micros();
        assert!((697..=703).contains(&measured), "{measured} us");
        // None, and one that cannot be.
        owner.echoed(at(9000), 0, Ticks(0));
        owner.echoed(at(90_000), 0, echo);
        assert_eq!(owner.of(0).as_micros(), measured);
        assert_eq!(owner.of(1), RoundTrips::SHORTEST);
    }
}
