//! Links that lose most of what is sent into them, while both of their ends say that they are up.
//!
//! They are found in what the ports at the ends have counted. Of the frames that one end has sent in a window at least half must come in
//! at the other by a short time after it, no more than the link's rate allows. Where they don't, twice in a row, the link is gone. With
//! nothing sent into it any more nobody can see whether it is mended: it is tried again after a while, which doubles each
//! time that it fails soon. (Networks that look for such failures from end to end, as Guo et al. do in "Pingmesh", SIGCOMM 2015,
//! call them blackholes.)

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{Fabric, LinkEnd, MAX_MTU, SwitchId, SwitchPort, Trunk, TrunkId};

/// How often ports are to say what they have counted.
pub const SAMPLED_EVERY: Duration = Duration::from_millis(100);
/// What was sent in so long is looked for; in longer, where [fewer](FEWEST) were sent in that.
const WINDOW: Duration = Duration::from_millis(300);
/// By so much the samples of the two ends may be apart from each other: each is known when it comes, on a stream of its own. Any
/// way through a link without a delay takes far less.
const SKEW: Duration = Duration::from_millis(50);
/// Of fewer frames nothing is concluded.
const FEWEST: u64 = 32;
/// Samples that are kept of a counter: eight seconds. A link into which fewer than [`FEWEST`] frames are sent in that is not judged.
const SAMPLES: usize = 80;
/// A link that nothing is sent into is tried again after this.
const RETRY_FIRST: Duration = Duration::from_secs(30);
/// The longest that it takes until it is tried again.
const RETRY_MOST: Duration = Duration::from_secs(600);

/// What one port has counted, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossed {
    /// That came in, whether or not the switch then had time or room for them.
    pub received: u64,
    /// That were sent.
    pub sent: u64,
}

/// All links between switches, and what is known of what they lose.
#[derive(Clone, Debug)]
pub struct Blackholes {
    /// By [`TrunkId`].
    spans: Vec<Span>,
    ports: BTreeMap<SwitchPort, Counters>,
    /// Directions of links that have lost most, now or before, by where they begin.
    seen: BTreeMap<SwitchPort, Seen>,
}

/// What a link says of itself in the fabric's file.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// What was sent so long ago has arrived, and the far end has said so.
    transit: Duration,
    /// Bits per second of its slower direction.
    rate: Option<u64>,
    /// Bytes of the longest packet.
    mtu: u16,
}

impl Span {
    /// How many of the longest frames it carries in a time.
    fn carries(&self, time: Duration) -> u64 {
        let Some(rate) = self.rate else {
            return u64::MAX;
        };
        let bits = u128::from(rate) * time.as_micros() / 1_000_000;
        let frames = bits / (8 * (u128::from(self.mtu) + ETHERNET));
        u64::try_from(frames).unwrap_or(u64::MAX)
    }
}

/// Bytes of Ethernet's header.
const ETHERNET: u128 = 14;

#[derive(Clone, Debug, Default)]
struct Counters {
    received: Series,
    sent: Series,
}

/// How a direction stands that has lost most at least once.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// By one sample of its far end only, which may have come late.
    Doubted {
        by: Instant,
        /// How long it is left alone if it is gone.
        retry: Duration,
    },
    /// It is one, and did lose most at this moment; with nothing sent into it it is tried again after so long.
    Gone { last: Instant, retry: Duration },
    /// It was one, and is tried again since.
    Tried { since: Instant, retry: Duration },
}

/// What the counters of both ends say of a direction.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// The far end's sample that says it.
    by: Instant,
    carries: bool,
}

impl Seen {
    fn is_gone(self) -> bool {
        matches!(self, Seen::Gone { .. })
    }

    /// What follows where it is seen to carry what is sent into it, or not, or nothing can be seen. None: nothing is left to remember.
    fn next(this: Option<Self>, verdict: Option<Verdict>, now: Instant) -> Option<Self> {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let by = verdict.map_or(now, |verdict| verdict.by);
        let doubted = |retry| Seen::Doubted { by, retry };
        match (this, verdict.map(|verdict| verdict.carries)) {
            (None, Some(false)) => Some(doubted(RETRY_FIRST)),
            (None, _) => None,
            // The far end has to say it twice.
            (Some(Seen::Doubted { by: first, retry }), Some(false)) => match by >= first + SKEW {
                true => Some(Seen::Gone { last: now, retry }),
                false => this,
            },
            (Some(Seen::Doubted { retry, .. }), _) => match retry > RETRY_FIRST {
                true => Some(Seen::Tried {
                    since: now,
                    retry: retry / 2,
                }),
                false => None,
            },
            (Some(Seen::Gone { retry, .. }), Some(false)) => Some(Seen::Gone { last: now, retry }),
            (Some(Seen::Gone { retry, .. }), Some(true)) => Some(Seen::Tried { since: now, retry }),
            (Some(Seen::Gone { last, retry }), None) => match passed(last) >= retry {
                true => Some(Seen::Tried { since: now, retry }),
                false => this,
            },
            (Some(Seen::Tried { retry, .. }), Some(false)) => {
                Some(doubted((retry * 2).min(RETRY_MOST)))
            }
            // It has held for longer than it was left alone.
            (Some(Seen::Tried { since, retry }), Some(true)) if passed(since) > retry * 2 => None,
            (Some(Seen::Tried { .. }), _) => this,
        }
    }
}

impl Blackholes {
    /// Nothing is known yet of a fabric's links.
    pub fn new(fabric: &Fabric) -> Self {
        let span = |trunk: &Trunk| {
            let end = LinkEnd::Port(trunk.ends[0]);
            let link = fabric.links().iter().find(|link| link.ends.contains(&end));
            let delays = link.map(|link| link.wires.each_ref().map(|wire| wire.delay));
            let delay = delays.into_iter().flatten().max().unwrap_or_default();
            Span {
                // The delay may vary.
                transit: SKEW + 2 * delay,
                rate: trunk.rate,
                mtu: link.map_or(MAX_MTU, |link| link.mtu),
            }
        };
        Blackholes {
            spans: fabric.trunks().iter().map(span).collect(),
            ports: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    /// Takes in what a port has counted by now. Returns the link there if there is news of it: whether it carries what is sent into it, or may
    /// be tried again.
    pub fn count(
        &mut self,
        fabric: &Fabric,
        at: SwitchPort,
        crossed: Crossed,
        now: Instant,
    ) -> Option<(TrunkId, bool)> {
        let trunk = fabric.trunk_at(at)?;
        let counters = self.ports.entry(at).or_default();
        counters.received.add(now, crossed.received);
        counters.sent.add(now, crossed.sent);
        let [one, other] = fabric.trunk(trunk).ends;
        let was_gone = self.is_gone([one, other]);
        for (from, to) in [(one, other), (other, one)] {
            let verdict = self.verdict(self.spans[trunk.0], from, to);
            let seen = Seen::next(self.seen.get(&from).copied(), verdict, now);
            match seen {
                Some(seen) => drop(self.seen.insert(from, seen)),
                None => drop(self.seen.remove(&from)),
            }
        }
        let is_gone = self.is_gone([one, other]);
        (is_gone != was_gone).then_some((trunk, !is_gone))
    }

    /// A switch counts anew.
    pub fn forget(&mut self, switch: SwitchId) {
        self.ports.retain(|at, _| at.switch != switch);
    }

    /// A switch does not say any more what it counts: nothing is held against its links. Returns those that were gone.
    pub fn give_up(&mut self, fabric: &Fabric, switch: SwitchId) -> Vec<TrunkId> {
        self.forget(switch);
        let trunks = fabric.trunks_of(switch).iter().map(|end| end.trunk);
        let gone: Vec<TrunkId> = trunks
            .filter(|trunk| self.is_gone(fabric.trunk(*trunk).ends))
            .collect();
        for end in gone.iter().flat_map(|trunk| fabric.trunk(*trunk).ends) {
            self.seen.remove(&end);
        }
        gone
    }

    fn is_gone(&self, ends: [SwitchPort; 2]) -> bool {
        let gone = |from| self.seen.get(&from).is_some_and(|seen| seen.is_gone());
        ends.into_iter().any(gone)
    }

    fn verdict(&self, span: Span, from: SwitchPort, to: SwitchPort) -> Option<Verdict> {
        let (from, to) = (self.ports.get(&from)?, self.ports.get(&to)?);
        verdict(span, &from.sent, &to.received)
    }
}

/// What a counter was at some moments, the latest last.
#[derive(Clone, Debug, Default)]
struct Series(VecDeque<(Instant, u64)>);

impl Series {
    fn add(&mut self, now: Instant, count: u64) {
        if self.0.back().is_some_and(|(_, last)| *last > count) {
            // It was set back.
            self.0.clear();
        }
        // Samples that come faster than they should, as after a pause of the stream, are one.
        if let Some(before) = self.0.len().checked_sub(2)
            && now.saturating_duration_since(self.0[before].0) < SAMPLED_EVERY
        {
            self.0.pop_back();
        }
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back((now, count));
    }

    /// The latest that is not later.
    fn by(&self, moment: Instant) -> Option<(Instant, u64)> {
        self.0.iter().rev().find(|(at, _)| *at <= moment).copied()
    }

    /// The latest with so many fewer, and so long before.
    fn before(
        &self,
        (end, count): (Instant, u64),
        fewer: u64,
        lasts: Duration,
    ) -> Option<(Instant, u64)> {
        let is_before = |(at, then): &&(Instant, u64)| {
            *at + lasts <= end && then.saturating_add(fewer) <= count
        };
        self.0.iter().rev().find(is_before).copied()
    }
}

/// Whether at least half of what was sent in the latest window came; none where too little is known, or nothing new.
fn verdict(span: Span, sent: &Series, received: &Series) -> Option<Verdict> {
    let (by, came_by_now) = *received.0.back()?;
    let end = sent.by(by.checked_sub(span.transit)?)?;
    // What was found of frames of long ago was found then.
    sent.before(end, 0, WINDOW)
        .filter(|(_, before)| *before < end.1)?;
    let start = sent.before(end, FEWEST, WINDOW)?;
    // What came since a moment before: at least what was sent in the window, if nothing is lost.
    let (_, came_before) = received.by(start.0.checked_sub(SKEW)?)?;
    let (sent, came) = (end.1 - start.1, came_by_now - came_before);
    // What the link has no time for waits before it, or is lost there: that is a jam.
    let most = span.carries(end.0.duration_since(start.0));
    let carries = came >= sent.min(most) / 2;
    Some(Verdict { by, carries })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fabric of two switches with one link, and time.
    struct Bed {
        fabric: Fabric,
        holes: Blackholes,
        now: Instant,
        crossed: [Crossed; 2],
        /// How much later than it was counted each end's sample is known.
        late: [Duration; 2],
    }

    impl Bed {
        fn new() -> Self {
            Bed::with("")
        }

        /// With these settings of the link.
        fn with(settings: &str) -> Self {
            let text = include_str!("../../../topologies/two-switches.yaml");
            let link = "{ ends: [s1/9, s2/9]";
            assert!(text.contains(link));
            let text = text.replace(link, &format!("{link}{settings}"));
            let fabric = crate::fabric::parse(&text, "two.yaml").unwrap();
            Bed {
                holes: Blackholes::new(&fabric),
                fabric,
                now: Instant::now(),
                crossed: [Crossed {
                    received: 0,
                    sent: 0,
                }; 2],
                late: [Duration::ZERO, Duration::from_millis(1)],
            }
        }

        fn ends(&self) -> [SwitchPort; 2] {
            self.fabric.trunk(TrunkId(0)).ends
        }

        /// So long the first end sends this many in each tenth of a second, of which this many come, and the other end that many, which all
        /// come. Returns the news.
        fn both(&mut self, lasts: Duration, (sent, came): (u64, u64), back: u64) -> Vec<bool> {
            let mut news = Vec::new();
            let until = self.now + lasts;
            while self.now < until {
                self.now += SAMPLED_EVERY;
                self.crossed[0].sent += sent;
                self.crossed[1].received += came;
                self.crossed[1].sent += back;
                self.crossed[0].received += back;
                let mut order = [0, 1];
                order.sort_by_key(|end| self.late[*end]);
                for end in order {
                    let (at, known) = (self.ends()[end], self.now + self.late[end]);
                    let crossed = self.crossed[end];
                    let told = self.holes.count(&self.fabric, at, crossed, known);
                    news.extend(told.map(|(trunk, carries)| {
                        assert_eq!(trunk, TrunkId(0));
                        carries
                    }));
                }
            }
            news
        }

        fn go(&mut self, lasts: Duration, sent: u64, came: u64) -> Vec<bool> {
            self.both(lasts, (sent, came), 0)
        }
    }

    const NOTHING: [bool; 0] = [];
    const SECOND: Duration = Duration::from_secs(1);

    /// Counts are what a switch says: one that ends at the last number there is overflows nothing.
    #[test]
    fn counts_may_be_as_high_as_numbers_go() {
        let mut bed = Bed::new();
        let second = 10 * 100;
        bed.crossed[0].sent = u64::MAX - 2 * second;
        assert_eq!(bed.go(SECOND, 100, 100), NOTHING);
        assert_eq!(bed.go(SECOND, 100, 0), [false]);
    }

    #[test]
    fn a_link_that_swallows_everything_is_gone_in_less_than_half_a_second() {
        let mut bed = Bed::new();
        assert_eq!(bed.go(2 * SECOND, 100, 100), NOTHING);
        assert_eq!(bed.go(SECOND / 2, 100, 0), [false]);
        // Nobody sends into it: it is tried again, and that goes well.
        assert_eq!(bed.go(RETRY_FIRST - SECOND, 0, 0), NOTHING);
        assert_eq!(bed.go(2 * SECOND, 0, 0), [true]);
        assert_eq!(bed.go(3 * RETRY_FIRST, 100, 100), NOTHING);
        assert!(bed.holes.seen.is_empty(), "it has held for long");
    }

    #[test]
    fn a_link_that_is_still_one_is_tried_less_and_less_often() {
        let mut bed = Bed::new();
        let mut retry = RETRY_FIRST;
        for _ in 0..12 {
            assert_eq!(bed.go(SECOND, 100, 3), [false]);
            assert_eq!(bed.go(retry - SECOND, 0, 0), NOTHING, "{retry:?}");
            assert_eq!(bed.go(2 * SECOND, 0, 0), [true], "{retry:?}");
            retry = (retry * 2).min(RETRY_MOST);
        }
    }

    #[test]
    fn a_link_that_is_used_all_the_same_is_back_when_it_carries_again() {
        let mut bed = Bed::new();
        assert_eq!(bed.go(60 * SECOND, 100, 20), [false]);
        assert_eq!(bed.go(SECOND, 100, 100), [true]);
    }

    #[test]
    fn that_the_other_direction_carries_is_no_reason_to_take_it_back() {
        let mut bed = Bed::new();
        assert_eq!(bed.both(SECOND, (100, 0), 100), [false]);
        assert_eq!(bed.both(RETRY_FIRST - SECOND, (0, 0), 100), NOTHING);
        assert_eq!(bed.both(2 * SECOND, (0, 0), 100), [true]);
        assert_eq!(bed.both(SECOND, (100, 0), 100), [false]);
        assert_eq!(bed.both(SECOND, (100, 100), 100), [true]);
    }

    #[test]
    fn a_switch_that_says_nothing_more_takes_its_links_with_it() {
        let mut bed = Bed::new();
        assert_eq!(bed.go(SECOND, 100, 0), [false]);
        let [one, other] = bed.ends();
        assert_eq!(bed.holes.give_up(&bed.fabric, one.switch), [TrunkId(0)]);
        assert_eq!(bed.holes.give_up(&bed.fabric, other.switch), []);
        // One end alone shows nothing.
        for _ in 0..100 {
            bed.now += SAMPLED_EVERY;
            bed.crossed[0].sent += 100;
            let (crossed, now) = (bed.crossed[0], bed.now);
            assert_eq!(bed.holes.count(&bed.fabric, one, crossed, now), None);
        }
    }

    #[test]
    fn some_loss_and_little_traffic_are_no_failures() {
        let mut bed = Bed::new();
        assert_eq!(bed.go(5 * SECOND, 100, 60), NOTHING);
        // So little that eight seconds are not enough.
        let mut bed = Bed::new();
        assert_eq!(bed.go(3 * SECOND, 5, 5), NOTHING);
        assert_eq!(bed.go(10 * SECOND, 0, 0), NOTHING);
        assert_eq!(bed.go(SECOND / 2, 5, 0), NOTHING);
        // A little is enough in the end.
        assert_eq!(bed.go(SECOND, 5, 0), [false]);
    }

    #[test]
    fn jams_and_long_ways_are_no_failures() {
        // Ten megabits are 83 frames of 1,514 bytes in a tenth of a second, and nearly thrice as many in what is looked at.
        let mut bed = Bed::with(", rate: 10M");
        assert_eq!(bed.go(5 * SECOND, 1000, 80), NOTHING);
        assert_eq!(bed.go(SECOND, 1000, 5), [false]);
        // What is on its way for long is not lost.
        for (delay, news) in [("", &[false, true][..]), (", delay: 200ms", &[])] {
            let mut bed = Bed::with(delay);
            bed.go(SECOND, 100, 100);
            bed.go(SECOND, 0, 0);
            let mut seen = bed.go(SECOND / 10, 200, 0);
            seen.extend(bed.go(SECOND / 5, 0, 0));
            seen.extend(bed.go(SECOND / 10, 0, 200));
            seen.extend(bed.go(SECOND, 0, 0));
            assert_eq!(seen, news, "{delay}");
        }
    }

    #[test]
    fn bursts_and_late_samples_are_no_failures() {
        for (one, other) in [(0, 1), (1, 0), (0, 49), (49, 0)] {
            let mut bed = Bed::new();
            bed.late = [one, other].map(Duration::from_millis);
            for _ in 0..20 {
                assert_eq!(bed.go(SECOND / 10, 1000, 1000), NOTHING);
                assert_eq!(bed.go(SECOND, 0, 0), NOTHING);
            }
        }
        let mut bed = Bed::new();
        assert_eq!(bed.go(SECOND, 100, 100), NOTHING);
        // One sample of the far end is an old one.
        let [one, other] = bed.ends();
        bed.now += 3 * SECOND;
        let old = bed.crossed[1];
        bed.crossed[0].sent += 3000;
        bed.crossed[1].received += 3000;
        for (at, crossed, later) in [(one, bed.crossed[0], 0), (other, old, 60)] {
            let now = bed.now + Duration::from_millis(later);
            assert_eq!(bed.holes.count(&bed.fabric, at, crossed, now), None);
        }
        assert_eq!(bed.go(SECOND, 100, 100), NOTHING);
        // A while in which neither end says anything, then all of it at once.
        bed.now += 3 * SECOND;
        assert_eq!(bed.go(SECOND / 10, 5000, 5000), NOTHING);
        // One end has begun to count anew.
        bed.crossed[1].received = 0;
        assert_eq!(bed.go(SECOND, 100, 100), NOTHING);
        bed.holes.forget(one.switch);
        assert_eq!(bed.go(SECOND, 100, 100), NOTHING);
        // A port of a host has no far end that counts.
        let host = bed.fabric.hosts()[0].attached;
        let crossed = Crossed {
            received: 9,
            sent: 9,
        };
        assert_eq!(bed.holes.count(&bed.fabric, host, crossed, bed.now), None);
    }
}
