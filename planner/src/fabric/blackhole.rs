//! Blackholes: links that lose most of their packets although both ends report them up.
//!
//! They are detected from port counters at both ends. At least half of the frames that one end
//! sends in a window must be received by the other soon after, limited by the link's rate. If not,
//! twice in a row, the link counts as down. An unused link shows nothing about its state, so it is
//! retried after a while, which doubles each time the link fails again soon. (Systems that detect
//! such failures end to end, such as Guo et al., "Pingmesh", SIGCOMM 2015, call them blackholes.)

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{Fabric, LinkEnd, MAX_MTU, SwitchId, SwitchPort, Trunk, TrunkId};

/// Sampling interval of port counters.
pub const SAMPLED_EVERY: Duration = Duration::from_millis(100);
/// The window of sent frames; longer if [fewer](FEWEST) were sent.
const WINDOW: Duration = Duration::from_millis(300);
/// The largest time difference between the samples of the two ends, which arrive on separate
/// streams. A link without a delay takes far less.
const SKEW: Duration = Duration::from_millis(50);
/// The fewest frames that allow a verdict.
const FEWEST: u64 = 32;
/// The samples kept of a counter: eight seconds. A link with fewer than [`FEWEST`] frames in that
/// time is not judged.
const SAMPLES: usize = 80;
/// Time until an unused link is retried, after the first failure.
const RETRY_FIRST: Duration = Duration::from_secs(30);
/// The longest time until a retry.
const RETRY_MOST: Duration = Duration::from_secs(600);

/// A port's frame counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCounts {
    /// Received frames, including those that the switch dropped later.
    pub received: u64,
    /// Sent frames.
    pub sent: u64,
}

/// The loss state of all links between switches.
#[derive(Clone, Debug)]
pub struct Blackholes {
    /// Indexed by [`TrunkId`].
    links: Vec<LinkSettings>,
    ports: BTreeMap<SwitchPort, Counters>,
    /// Directions of links that are or were blackholes, by their first port.
    suspicions: BTreeMap<SwitchPort, Suspicion>,
}

/// A link's settings from the fabric's file.
#[derive(Clone, Copy, Debug)]
struct LinkSettings {
    /// Time after which a sent frame is in the far end's counters.
    transit: Duration,
    /// Bits per second of the slower direction.
    rate: Option<u64>,
    /// Bytes of the longest packet.
    mtu: u16,
}

impl LinkSettings {
    /// The number of longest frames that the link carries in a time.
    fn carries(&self, time: Duration) -> u64 {
        let Some(rate) = self.rate else {
            return u64::MAX;
        };
        let bits = u128::from(rate) * time.as_micros() / 1_000_000;
        let frames = bits / (8 * (u128::from(self.mtu) + ETHERNET));
        u64::try_from(frames).unwrap_or(u64::MAX)
    }
}

/// Bytes of an Ethernet header.
const ETHERNET: u128 = 14;

#[derive(Clone, Debug, Default)]
struct Counters {
    received: Series,
    sent: Series,
}

/// The state of a direction that was a blackhole in at least one sample.
#[derive(Clone, Copy, Debug)]
enum Suspicion {
    /// Suspected after one sample of the far end, which may have been late.
    Suspected {
        by: Instant,
        /// Time until a retry, if the suspicion is confirmed.
        retry: Duration,
    },
    /// The direction counts as down. It was last seen losing at `last`, and is retried after `retry` without
    /// traffic.
    Confirmed { last: Instant, retry: Duration },
    /// In use again since `since`, to be tested.
    Retried { since: Instant, retry: Duration },
}

/// The verdict of both ends' counters on a direction.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// Time of the far end's sample.
    by: Instant,
    carries: bool,
}

impl Suspicion {
    fn is_confirmed(self) -> bool {
        matches!(self, Suspicion::Confirmed { .. })
    }

    /// Returns the state after a verdict, or without one. None if the direction is no longer suspected.
    fn next(this: Option<Self>, verdict: Option<Verdict>, now: Instant) -> Option<Self> {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let by = verdict.map_or(now, |verdict| verdict.by);
        let suspected = |retry| Suspicion::Suspected { by, retry };
        match (this, verdict.map(|verdict| verdict.carries)) {
            (None, Some(false)) => Some(suspected(RETRY_FIRST)),
            (None, _) => None,
            // The far end must confirm it with a second sample.
            (Some(Suspicion::Suspected { by: first, retry }), Some(false)) => {
                match by >= first + SKEW {
                    true => Some(Suspicion::Confirmed { last: now, retry }),
                    false => this,
                }
            }
            (Some(Suspicion::Suspected { retry, .. }), _) => match retry > RETRY_FIRST {
                true => Some(Suspicion::Retried {
                    since: now,
                    retry: retry / 2,
                }),
                false => None,
            },
            (Some(Suspicion::Confirmed { retry, .. }), Some(false)) => {
                Some(Suspicion::Confirmed { last: now, retry })
            }
            (Some(Suspicion::Confirmed { retry, .. }), Some(true)) => {
                Some(Suspicion::Retried { since: now, retry })
            }
            (Some(Suspicion::Confirmed { last, retry }), None) => match passed(last) >= retry {
                true => Some(Suspicion::Retried { since: now, retry }),
                false => this,
            },
            (Some(Suspicion::Retried { retry, .. }), Some(false)) => {
                Some(suspected((retry * 2).min(RETRY_MOST)))
            }
            // The link worked for longer than it was avoided.
            (Some(Suspicion::Retried { since, retry }), Some(true))
                if passed(since) > retry * 2 =>
            {
                None
            }
            (Some(Suspicion::Retried { .. }), _) => this,
        }
    }
}

impl Blackholes {
    /// Starts without knowledge about the fabric's links.
    pub fn new(fabric: &Fabric) -> Self {
        let link = |trunk: &Trunk| {
            let end = LinkEnd::Port(trunk.ends[0]);
            let link = fabric.links().iter().find(|link| link.ends.contains(&end));
            let delays = link.map(|link| link.wires.each_ref().map(|wire| wire.delay));
            let delay = delays.into_iter().flatten().max().unwrap_or_default();
            LinkSettings {
                // Twice the delay, because it may vary.
                transit: SKEW + 2 * delay,
                rate: trunk.rate,
                mtu: link.map_or(MAX_MTU, |link| link.mtu),
            }
        };
        Blackholes {
            links: fabric.trunks().iter().map(link).collect(),
            ports: BTreeMap::new(),
            suspicions: BTreeMap::new(),
        }
    }

    /// Starts with links that an earlier controller has seen losing packets. They are retried as if they were last seen losing
    /// now.
    pub fn restored(
        fabric: &Fabric,
        lossy: impl IntoIterator<Item = TrunkId>,
        now: Instant,
    ) -> Self {
        let confirmed = Suspicion::Confirmed {
            last: now,
            retry: RETRY_FIRST,
        };
        let directions = lossy.into_iter().flat_map(|it| fabric.trunk(it).ends);
        Blackholes {
            suspicions: directions.map(|from| (from, confirmed)).collect(),
            ..Blackholes::new(fabric)
        }
    }

    /// Adds a port's counters. Returns the link there if its state changes: down, or up for a
    /// retry.
    pub fn count(
        &mut self,
        fabric: &Fabric,
        at: SwitchPort,
        counts: FrameCounts,
        now: Instant,
    ) -> Option<(TrunkId, bool)> {
        let trunk = fabric.trunk_at(at)?;
        let counters = self.ports.entry(at).or_default();
        counters.received.add(now, counts.received);
        counters.sent.add(now, counts.sent);
        let [one, other] = fabric.trunk(trunk).ends;
        let was_confirmed = self.is_confirmed([one, other]);
        for (from, to) in [(one, other), (other, one)] {
            let verdict = self.verdict(self.links[trunk.0], from, to);
            let seen = Suspicion::next(self.suspicions.get(&from).copied(), verdict, now);
            match seen {
                Some(seen) => drop(self.suspicions.insert(from, seen)),
                None => drop(self.suspicions.remove(&from)),
            }
        }
        let is_confirmed = self.is_confirmed([one, other]);
        (is_confirmed != was_confirmed).then_some((trunk, !is_confirmed))
    }

    /// Drops a switch's samples because its counters restarted.
    pub fn forget(&mut self, switch: SwitchId) {
        self.ports.retain(|at, _| at.switch != switch);
    }

    /// Drops a switch's samples because it stopped reporting. Returns its links that were down;
    /// they count as up again.
    pub fn clear(&mut self, fabric: &Fabric, switch: SwitchId) -> Vec<TrunkId> {
        self.forget(switch);
        let trunks = fabric.trunks_of(switch).iter().map(|end| end.trunk);
        let confirmed: Vec<TrunkId> = trunks
            .filter(|trunk| self.is_confirmed(fabric.trunk(*trunk).ends))
            .collect();
        for end in confirmed.iter().flat_map(|trunk| fabric.trunk(*trunk).ends) {
            self.suspicions.remove(&end);
        }
        confirmed
    }

    fn is_confirmed(&self, ends: [SwitchPort; 2]) -> bool {
        let confirmed = |from| {
            self.suspicions
                .get(&from)
                .is_some_and(|seen| seen.is_confirmed())
        };
        ends.into_iter().any(confirmed)
    }

    fn verdict(&self, link: LinkSettings, from: SwitchPort, to: SwitchPort) -> Option<Verdict> {
        let (from, to) = (self.ports.get(&from)?, self.ports.get(&to)?);
        verdict(link, &from.sent, &to.received)
    }
}

/// A sample of a counter.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    count: u64,
}

/// A counter's samples, the latest last.
#[derive(Clone, Debug, Default)]
struct Series(VecDeque<Sample>);

impl Series {
    fn add(&mut self, now: Instant, count: u64) {
        if self.0.back().is_some_and(|last| last.count > count) {
            // The counter was reset.
            self.0.clear();
        }
        // Merges samples that arrive faster than the sampling interval, as after a pause of the
        // stream.
        if let Some(before) = self.0.len().checked_sub(2)
            && now.saturating_duration_since(self.0[before].at) < SAMPLED_EVERY
        {
            self.0.pop_back();
        }
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(Sample { at: now, count });
    }

    /// Returns the latest sample at or before a moment.
    fn by(&self, moment: Instant) -> Option<Sample> {
        self.0.iter().rev().find(|it| it.at <= moment).copied()
    }

    /// Returns the latest sample with a count at least this much lower, and at least this much
    /// older.
    fn before(&self, end: Sample, fewer: u64, lasts: Duration) -> Option<Sample> {
        let is_before =
            |it: &&Sample| it.at + lasts <= end.at && it.count.saturating_add(fewer) <= end.count;
        self.0.iter().rev().find(is_before).copied()
    }
}

/// Returns whether at least half of the frames of the latest window arrived; none if the samples
/// are too few or not new.
fn verdict(link: LinkSettings, sent: &Series, received: &Series) -> Option<Verdict> {
    let by_now = *received.0.back()?;
    let end = sent.by(by_now.at.checked_sub(link.transit)?)?;
    // An old window was judged in time.
    sent.before(end, 0, WINDOW)
        .filter(|before| before.count < end.count)?;
    let start = sent.before(end, FEWEST, WINDOW)?;
    // Frames received since shortly before the window: without loss at least as many as were sent
    // in it.
    let before = received.by(start.at.checked_sub(SKEW)?)?;
    let (sent, came) = (end.count - start.count, by_now.count - before.count);
    // Frames above the link's rate are queued or dropped by congestion, which is not a failure.
    let most = link.carries(end.at.duration_since(start.at));
    let carries = came >= sent.min(most) / 2;
    Some(Verdict {
        by: by_now.at,
        carries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fabric of two switches with one link, and a clock.
    struct Testbed {
        fabric: Fabric,
        holes: Blackholes,
        now: Instant,
        counts: [FrameCounts; 2],
        /// The delay of each end's samples.
        late: [Duration; 2],
    }

    impl Testbed {
        fn new() -> Self {
            Testbed::with("")
        }

        /// A testbed with these settings of the link.
        fn with(settings: &str) -> Self {
            let text = include_str!("../../../topologies/two-switches.yaml");
            let link = "{ ends: [s1/9, s2/9]";
            assert!(text.contains(link));
            let text = text.replace(link, &format!("{link}{settings}"));
            let fabric = crate::fabric::parse(&text, "two.yaml").unwrap();
            Testbed {
                holes: Blackholes::new(&fabric),
                fabric,
                now: Instant::now(),
                counts: [FrameCounts {
                    received: 0,
                    sent: 0,
                }; 2],
                late: [Duration::ZERO, Duration::from_millis(1)],
            }
        }

        fn ends(&self) -> [SwitchPort; 2] {
            self.fabric.trunk(TrunkId(0)).ends
        }

        /// For a time, in each tenth of a second the first end sends `sent` frames, of which `came`
        /// arrive, and the other end sends `back`, which all arrive. Returns the state changes.
        fn both(&mut self, lasts: Duration, (sent, came): (u64, u64), back: u64) -> Vec<bool> {
            let mut changes = Vec::new();
            let until = self.now + lasts;
            while self.now < until {
                self.now += SAMPLED_EVERY;
                self.counts[0].sent += sent;
                self.counts[1].received += came;
                self.counts[1].sent += back;
                self.counts[0].received += back;
                let mut order = [0, 1];
                order.sort_by_key(|end| self.late[*end]);
                for end in order {
                    let (at, known) = (self.ends()[end], self.now + self.late[end]);
                    let counts = self.counts[end];
                    let changed = self.holes.count(&self.fabric, at, counts, known);
                    changes.extend(changed.map(|(trunk, carries)| {
                        assert_eq!(trunk, TrunkId(0));
                        carries
                    }));
                }
            }
            changes
        }

        fn go(&mut self, lasts: Duration, sent: u64, came: u64) -> Vec<bool> {
            self.both(lasts, (sent, came), 0)
        }
    }

    const NOTHING: [bool; 0] = [];
    const SECOND: Duration = Duration::from_secs(1);

    /// Counters may have any value, up to the largest.
    #[test]
    fn counters_may_have_the_largest_value() {
        let mut testbed = Testbed::new();
        let second = 10 * 100;
        testbed.counts[0].sent = u64::MAX - 2 * second;
        assert_eq!(testbed.go(SECOND, 100, 100), NOTHING);
        assert_eq!(testbed.go(SECOND, 100, 0), [false]);
    }

    #[test]
    fn a_blackhole_is_down_within_half_a_second() {
        let mut testbed = Testbed::new();
        assert_eq!(testbed.go(2 * SECOND, 100, 100), NOTHING);
        assert_eq!(testbed.go(SECOND / 2, 100, 0), [false]);
        // The unused link is retried, and works.
        assert_eq!(testbed.go(RETRY_FIRST - SECOND, 0, 0), NOTHING);
        assert_eq!(testbed.go(2 * SECOND, 0, 0), [true]);
        assert_eq!(testbed.go(3 * RETRY_FIRST, 100, 100), NOTHING);
        assert!(testbed.holes.suspicions.is_empty(), "it has held for long");
    }

    #[test]
    fn a_persistent_blackhole_is_retried_less_often() {
        let mut testbed = Testbed::new();
        let mut retry = RETRY_FIRST;
        for _ in 0..12 {
            assert_eq!(testbed.go(SECOND, 100, 3), [false]);
            assert_eq!(testbed.go(retry - SECOND, 0, 0), NOTHING, "{retry:?}");
            assert_eq!(testbed.go(2 * SECOND, 0, 0), [true], "{retry:?}");
            retry = (retry * 2).min(RETRY_MOST);
        }
    }

    #[test]
    fn a_used_blackhole_recovers_when_it_carries_again() {
        let mut testbed = Testbed::new();
        assert_eq!(testbed.go(60 * SECOND, 100, 20), [false]);
        assert_eq!(testbed.go(SECOND, 100, 100), [true]);
    }

    #[test]
    fn traffic_in_the_other_direction_does_not_restore_a_link() {
        let mut testbed = Testbed::new();
        assert_eq!(testbed.both(SECOND, (100, 0), 100), [false]);
        assert_eq!(testbed.both(RETRY_FIRST - SECOND, (0, 0), 100), NOTHING);
        assert_eq!(testbed.both(2 * SECOND, (0, 0), 100), [true]);
        assert_eq!(testbed.both(SECOND, (100, 0), 100), [false]);
        assert_eq!(testbed.both(SECOND, (100, 100), 100), [true]);
    }

    /// The next controller retries a link as if it were last seen losing at the start.
    #[test]
    fn a_blackhole_outlives_its_controller() {
        let mut testbed = Testbed::new();
        testbed.holes = Blackholes::restored(&testbed.fabric, [TrunkId(0)], testbed.now);
        assert_eq!(testbed.go(RETRY_FIRST - SECOND, 0, 0), NOTHING);
        assert_eq!(testbed.go(2 * SECOND, 0, 0), [true]);
        assert_eq!(testbed.go(SECOND, 100, 0), [false]);
        // A switch without counters clears it, too.
        testbed.holes = Blackholes::restored(&testbed.fabric, [TrunkId(0)], testbed.now);
        let [one, _] = testbed.ends();
        assert_eq!(
            testbed.holes.clear(&testbed.fabric, one.switch),
            [TrunkId(0)]
        );
    }

    #[test]
    fn a_silent_switch_clears_the_state_of_its_links() {
        let mut testbed = Testbed::new();
        assert_eq!(testbed.go(SECOND, 100, 0), [false]);
        let [one, other] = testbed.ends();
        assert_eq!(
            testbed.holes.clear(&testbed.fabric, one.switch),
            [TrunkId(0)]
        );
        assert_eq!(testbed.holes.clear(&testbed.fabric, other.switch), []);
        // One end alone is not enough for a verdict.
        for _ in 0..100 {
            testbed.now += SAMPLED_EVERY;
            testbed.counts[0].sent += 100;
            let (counts, now) = (testbed.counts[0], testbed.now);
            assert_eq!(testbed.holes.count(&testbed.fabric, one, counts, now), None);
        }
    }

    #[test]
    fn some_loss_or_little_traffic_is_not_a_failure() {
        let mut testbed = Testbed::new();
        assert_eq!(testbed.go(5 * SECOND, 100, 60), NOTHING);
        // Fewer frames in eight seconds than a verdict needs.
        let mut testbed = Testbed::new();
        assert_eq!(testbed.go(3 * SECOND, 5, 5), NOTHING);
        assert_eq!(testbed.go(10 * SECOND, 0, 0), NOTHING);
        assert_eq!(testbed.go(SECOND / 2, 5, 0), NOTHING);
        // Little traffic is enough over a longer window.
        assert_eq!(testbed.go(SECOND, 5, 0), [false]);
    }

    #[test]
    fn congestion_and_delay_are_not_failures() {
        // Ten megabits are 83 frames of 1,514 bytes in a tenth of a second, and nearly three times
        // as many in a window.
        let mut testbed = Testbed::with(", rate: 10M");
        assert_eq!(testbed.go(5 * SECOND, 1000, 80), NOTHING);
        assert_eq!(testbed.go(SECOND, 1000, 5), [false]);
        // Frames in flight on a long link are not lost.
        for (delay, changes) in [("", &[false, true][..]), (", delay: 200ms", &[])] {
            let mut testbed = Testbed::with(delay);
            testbed.go(SECOND, 100, 100);
            testbed.go(SECOND, 0, 0);
            let mut seen = testbed.go(SECOND / 10, 200, 0);
            seen.extend(testbed.go(SECOND / 5, 0, 0));
            seen.extend(testbed.go(SECOND / 10, 0, 200));
            seen.extend(testbed.go(SECOND, 0, 0));
            assert_eq!(seen, changes, "{delay}");
        }
    }

    #[test]
    fn bursts_and_late_samples_are_not_failures() {
        for (one, other) in [(0, 1), (1, 0), (0, 49), (49, 0)] {
            let mut testbed = Testbed::new();
            testbed.late = [one, other].map(Duration::from_millis);
            for _ in 0..20 {
                assert_eq!(testbed.go(SECOND / 10, 1000, 1000), NOTHING);
                assert_eq!(testbed.go(SECOND, 0, 0), NOTHING);
            }
        }
        let mut testbed = Testbed::new();
        assert_eq!(testbed.go(SECOND, 100, 100), NOTHING);
        // One late sample of the far end.
        let [one, other] = testbed.ends();
        testbed.now += 3 * SECOND;
        let old = testbed.counts[1];
        testbed.counts[0].sent += 3000;
        testbed.counts[1].received += 3000;
        for (at, counts, later) in [(one, testbed.counts[0], 0), (other, old, 60)] {
            let now = testbed.now + Duration::from_millis(later);
            assert_eq!(testbed.holes.count(&testbed.fabric, at, counts, now), None);
        }
        assert_eq!(testbed.go(SECOND, 100, 100), NOTHING);
        // Neither end reports for a while, then both do at once.
        testbed.now += 3 * SECOND;
        assert_eq!(testbed.go(SECOND / 10, 5000, 5000), NOTHING);
        // The counters of one end restart.
        testbed.counts[1].received = 0;
        assert_eq!(testbed.go(SECOND, 100, 100), NOTHING);
        testbed.holes.forget(one.switch);
        assert_eq!(testbed.go(SECOND, 100, 100), NOTHING);
        // A host's port has no far end with counters.
        let host = testbed.fabric.hosts()[0].attached;
        let counts = FrameCounts {
            received: 9,
            sent: 9,
        };
        assert_eq!(
            testbed
                .holes
                .count(&testbed.fabric, host, counts, testbed.now),
            None
        );
    }
}
