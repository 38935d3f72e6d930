//! Links that lose most of what is sent into them, while both of their ends say that they are up.
//!
//! They are found in what the ports at the ends have counted, frame by frame: what one end has sent in a while has to come in at the other
//! in that while and a little more, as far as the link's rate lets it. Where less than half does, the link is gone. With nothing sent into it any more nobody can see
//! whether it is mended: it is tried again after a while, which doubles each time that it fails soon. (Networks that look for such
//! failures from end to end, as Guo et al. do in "Pingmesh", SIGCOMM 2015, call them blackholes.)

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{Fabric, LinkEnd, MAX_MTU, SwitchId, SwitchPort, Trunk, TrunkId};

/// How often ports are to say what they have counted.
pub const SAMPLED_EVERY: Duration = Duration::from_millis(100);
/// What was sent in so long is looked for; in longer, where [fewer](FEWEST) were sent in that.
const WINDOW: Duration = Duration::from_millis(300);
/// What was sent so long ago has arrived, and the far end has said so, on a link without a delay: far longer than it takes.
const TRANSIT: Duration = Duration::from_millis(50);
/// Of fewer frames nothing is concluded.
const FEWEST: u64 = 32;
/// Samples that are kept of one counter, those of eight seconds: a link with so little on it that fewer are sent in that is not judged.
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
    /// What they carry, by [`TrunkId`].
    terms: Vec<Terms>,
    ports: BTreeMap<SwitchPort, Counters>,
    gone: BTreeMap<TrunkId, Gone>,
}

/// What a link says of itself in the fabric's file.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// What was sent so long ago has arrived.
    transit: Duration,
    /// Bits per second of its slower direction.
    rate: Option<u64>,
    /// Bytes of the longest packet.
    mtu: u16,
}

impl Terms {
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

/// A link that was found to be one, now or before.
#[derive(Clone, Copy, Debug)]
struct Gone {
    /// When it was last seen to lose most.
    seen: Instant,
    /// After so long with nothing sent into it it is tried again.
    retry: Duration,
    /// It was not tried again yet.
    is_gone: bool,
}

impl Blackholes {
    /// Nothing is known yet of a fabric's links.
    pub fn new(fabric: &Fabric) -> Self {
        let terms = |trunk: &Trunk| {
            let end = LinkEnd::Port(trunk.ends[0]);
            let link = fabric.links().iter().find(|link| link.ends.contains(&end));
            let delays = link.map(|link| link.wires.each_ref().map(|wire| wire.delay));
            let delay = delays.into_iter().flatten().max().unwrap_or_default();
            Terms {
                // The delay may vary.
                transit: TRANSIT + 2 * delay,
                rate: trunk.rate,
                mtu: link.map_or(MAX_MTU, |link| link.mtu),
            }
        };
        Blackholes {
            terms: fabric.trunks().iter().map(terms).collect(),
            ports: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Takes in what a port has counted by now. Returns the link there if there is news of it: whether it carries what is sent into it.
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
        let terms = self.terms[trunk.0];
        let carries = |from, to| self.carries(terms, from, to);
        let carries = match (carries(one, other), carries(other, one)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (None, None) => None,
            _ => Some(true),
        };
        self.conclude(trunk, carries, now)
            .map(|carries| (trunk, carries))
    }

    /// A switch counts anew, or does not say any more what it counts.
    pub fn forget(&mut self, switch: SwitchId) {
        self.ports.retain(|at, _| at.switch != switch);
    }

    fn carries(&self, terms: Terms, from: SwitchPort, to: SwitchPort) -> Option<bool> {
        let (from, to) = (self.ports.get(&from)?, self.ports.get(&to)?);
        carried(terms, &from.sent, &to.received)
    }

    /// What follows for a link from what is seen of it; nothing if that was known.
    fn conclude(&mut self, trunk: TrunkId, carries: Option<bool>, now: Instant) -> Option<bool> {
        let Some(gone) = self.gone.get_mut(&trunk) else {
            if carries != Some(false) {
                return None;
            }
            let retry = RETRY_FIRST;
            let first = Gone {
                seen: now,
                retry,
                is_gone: true,
            };
            self.gone.insert(trunk, first);
            return Some(false);
        };
        let passed = now.saturating_duration_since(gone.seen);
        match carries {
            Some(false) => {
                let was_gone = std::mem::replace(&mut gone.is_gone, true);
                if !was_gone {
                    gone.retry = (gone.retry * 2).min(RETRY_MOST);
                }
                gone.seen = now;
                (!was_gone).then_some(false)
            }
            // What is sent into it comes out; or nothing is sent, and it may be tried again.
            Some(true) if gone.is_gone => {
                gone.is_gone = false;
                Some(true)
            }
            None if gone.is_gone && passed >= gone.retry => {
                gone.is_gone = false;
                Some(true)
            }
            // It has held for as long as it was left alone, and longer.
            Some(true) if passed > gone.retry * 2 + RETRY_FIRST => {
                self.gone.remove(&trunk);
                None
            }
            _ => None,
        }
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
        let is_before = |(at, then): &&(Instant, u64)| *at + lasts <= end && *then + fewer <= count;
        self.0.iter().rev().find(is_before).copied()
    }
}

/// Whether at least half of what was sent in the latest window came; none where too little is known, or nothing new.
fn carried(terms: Terms, sent: &Series, received: &Series) -> Option<bool> {
    let (now, came_by_now) = *received.0.back()?;
    let end = sent.by(now.checked_sub(terms.transit)?)?;
    // What was found of frames of long ago was found then.
    sent.before(end, 0, WINDOW)
        .filter(|(_, before)| *before < end.1)?;
    let start = sent.before(end, FEWEST, WINDOW)?;
    // What came since a moment before: at least what was sent in the window, if nothing is lost.
    let (_, came_before) = received.by(start.0)?;
    let (sent, came) = (end.1 - start.1, came_by_now - came_before);
    // What the link has no time for waits before it, or is lost there: that is a jam.
    let most = terms.carries(end.0.duration_since(start.0));
    Some(came >= sent.min(most) / 2)
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
            }
        }

        fn ends(&self) -> [SwitchPort; 2] {
            self.fabric.trunk(TrunkId(0)).ends
        }

        /// So long the first end sends this many in each tenth of a second, of which this many come. Returns the news.
        fn go(&mut self, lasts: Duration, sent: u64, came: u64) -> Vec<bool> {
            let mut news = Vec::new();
            let until = self.now + lasts;
            while self.now < until {
                self.now += SAMPLED_EVERY;
                self.crossed[0].sent += sent;
                self.crossed[1].received += came;
                for (at, crossed) in self.ends().into_iter().zip(self.crossed) {
                    // The second end says so a little later.
                    self.now += Duration::from_millis(1);
                    let told = self.holes.count(&self.fabric, at, crossed, self.now);
                    news.extend(told.map(|(trunk, carries)| {
                        assert_eq!(trunk, TrunkId(0));
                        carries
                    }));
                }
            }
            news
        }
    }

    const NOTHING: [bool; 0] = [];
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_link_that_swallows_everything_is_gone_in_less_than_half_a_second() {
        let mut bed = Bed::new();
        assert_eq!(bed.go(2 * SECOND, 100, 100), NOTHING);
        assert_eq!(bed.go(SECOND / 2, 100, 0), [false]);
        // Nobody sends into it: it is tried again, and that goes well.
        assert_eq!(bed.go(RETRY_FIRST - SECOND, 0, 0), NOTHING);
        assert_eq!(bed.go(2 * SECOND, 0, 0), [true]);
        assert_eq!(bed.go(60 * SECOND, 100, 100), NOTHING);
        assert!(bed.holes.gone.is_empty(), "it has held for long");
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
            seen.extend(bed.go(SECOND / 10, 0, 0));
            seen.extend(bed.go(SECOND / 10, 0, 200));
            seen.extend(bed.go(SECOND, 0, 0));
            assert_eq!(seen, news, "{delay}");
        }
    }

    #[test]
    fn bursts_and_late_samples_are_no_failures() {
        let mut bed = Bed::new();
        for _ in 0..20 {
            bed.go(SECOND / 10, 1000, 1000);
            assert_eq!(bed.go(SECOND, 0, 0), NOTHING);
        }
        // A while in which neither end says anything, then all of it at once.
        bed.now += 3 * SECOND;
        assert_eq!(bed.go(SECOND / 10, 5000, 5000), NOTHING);
        // One end has begun to count anew.
        bed.crossed[1].received = 0;
        assert_eq!(bed.go(SECOND, 100, 100), NOTHING);
        let [one, _] = bed.ends();
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
