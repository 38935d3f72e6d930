//! Background flows: transfers of other jobs that share a link's rate.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, Exp, Exp1};

use crate::units::{self, UnitError, show_bytes};

/// Connections of a flow, as an incast from eight hosts has: with one flow the job has a ninth of the link.
const CONNECTIONS: u64 = 8;
/// The largest share of a link for background flows.
const MAX_SHARE: f64 = 0.9;
/// The least mean bytes of a flow: shorter ones are packets, and each costs the forwarding thread an event.
const MIN_FLOW: u64 = 1_000;
/// The least mean time of a flow, in the caller's unit: arrivals are rounded to it.
const MIN_TIME: f64 = 100.0;
/// After an idle time of more than this number of flows, only the last ones are simulated.
const HISTORY: f64 = 100.0;

/// Background flows on one wire, as OptiReduce adds them to calibrate a network's tail (Warraich et al., NSDI 2025,
/// section 5): a Poisson process of flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Background {
    /// The share of the link's rate that the flows need, over 0 and at most 0.9.
    pub share: f64,
    /// Mean bytes of a flow, at least 1,000.
    pub flow: u64,
    /// The distribution of the lengths.
    pub lengths: FlowLengths,
}

/// The distribution of the lengths of background flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FlowLengths {
    /// Exponential.
    #[default]
    Exponential,
    /// All flows have the mean length. Fewer measurements show their effect on a percentile.
    Fixed,
}

/// The reason that background flows are rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BackgroundError {
    /// Not SHARE:BYTES or SHARE:BYTES:fixed.
    #[error("background flows `{0}`: expected SHARE:BYTES or SHARE:BYTES:fixed, such as 0.02:1M")]
    Syntax(String),
    /// An invalid mean size.
    #[error("background flows `{text}`: {source}")]
    Flow {
        /// The text.
        text: String,
        /// The error in the size.
        source: UnitError,
    },
    /// A share that no link has room for.
    #[error("background flows with a share of {0}: expected more than 0 and at most {MAX_SHARE}")]
    Share(f64),
    /// Flows of less than a packet.
    #[error("background flows of {0} bytes: expected at least {MIN_FLOW}")]
    Length(u64),
}

impl Background {
    /// Checks the share and the length.
    pub fn validate(&self) -> Result<(), BackgroundError> {
        if !(self.share > 0.0 && self.share <= MAX_SHARE) {
            Err(BackgroundError::Share(self.share))
        } else if self.flow < MIN_FLOW {
            Err(BackgroundError::Length(self.flow))
        } else {
            Ok(())
        }
    }
}

/// `SHARE:BYTES` for exponential lengths, `SHARE:BYTES:fixed` for equal ones.
impl FromStr for Background {
    type Err = BackgroundError;

    fn from_str(text: &str) -> Result<Self, BackgroundError> {
        let syntax = || BackgroundError::Syntax(text.to_owned());
        let (share, flow) = text.split_once(':').ok_or_else(syntax)?;
        let share = share.parse().map_err(|_| syntax())?;
        let (flow, lengths) = match flow.split_once(':') {
            None => (flow, FlowLengths::Exponential),
            Some((flow, "fixed")) => (flow, FlowLengths::Fixed),
            Some(_) => return Err(syntax()),
        };
        let flow = units::bytes(flow).map_err(|source| BackgroundError::Flow {
            text: text.to_owned(),
            source,
        })?;
        let background = Background {
            share,
            flow,
            lengths,
        };
        background.validate().map(|()| background)
    }
}

/// In the format of the parser.
impl fmt::Display for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.share, show_bytes(self.flow))?;
        match self.lengths {
            FlowLengths::Exponential => Ok(()),
            FlowLengths::Fixed => write!(f, ":fixed"),
        }
    }
}

/// A value of [`Flows::service`], which is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
struct End(f64);

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Background flows in operation on one wire. All connections share the link equally (processor sharing), as those of
/// TCP do: with *k* flows the job has 1/(8·*k* + 1) of its rate.
///
/// The state is that at the end of the job's last packet. The flows since then are added when the next packet arrives,
/// so they cost no events. The caller chooses the unit of time.
#[derive(Debug)]
pub struct Flows {
    /// The state's time.
    at: u64,
    next_arrival: u64,
    gaps: Exp<f64>,
    /// The longest past that is simulated.
    history: u64,
    /// Mean time of a flow alone on the link.
    mean: f64,
    lengths: FlowLengths,
    /// The time on the whole link that a connection without end would have had so far.
    service: f64,
    /// By flow: `service` at its end.
    ends: BinaryHeap<Reverse<End>>,
}

impl Flows {
    /// Starts flows at `now` on a link that takes `byte_time` for a byte. A flow takes 100 units of time or more on average:
    /// on a faster link flows are longer and rarer. Returns `None` for flows that
    /// [`Background::validate`] rejects.
    pub fn new(
        background: Background,
        byte_time: f64,
        now: u64,
        rng: &mut impl Rng,
    ) -> Option<Self> {
        background.validate().ok()?;
        let mean = (background.flow as f64 * byte_time).max(MIN_TIME);
        let gaps = Exp::new(background.share / mean).ok()?;
        Some(Flows {
            at: now,
            next_arrival: now.saturating_add(gaps.sample(rng) as u64),
            gaps,
            // Saturates.
            history: (HISTORY * mean / background.share) as u64,
            mean,
            lengths: background.lengths,
            service: 0.0,
            ends: BinaryHeap::new(),
        })
    }

    /// Returns the end of a packet that is first in line at `start` and takes `alone` on an idle link.
    pub fn transmit(&mut self, start: u64, alone: u64, rng: &mut impl Rng) -> u64 {
        let horizon = start.saturating_sub(self.history);
        if self.at < horizon {
            self.at = horizon;
            self.ends.clear();
            self.next_arrival = horizon + self.gaps.sample(rng) as u64;
        }
        self.advance(start, None, rng);
        self.advance(u64::MAX, Some(alone), rng)
    }

    /// Advances to `until`, or to the end of the job's packet, which needs `work`. Returns the time.
    fn advance(&mut self, until: u64, work: Option<u64>, rng: &mut impl Rng) -> u64 {
        let until = until.max(self.at);
        let mut work = work.map(|work| work as f64);
        loop {
            let sharing = CONNECTIONS as f64 * self.ends.len() as f64 + f64::from(work.is_some());
            let first_end = self.ends.peek();
            let first_end = first_end.map(|Reverse(end)| (end.0 - self.service).max(0.0));
            // The service of each connection until the first one ends.
            let each = first_end.into_iter().chain(work).min_by(f64::total_cmp);
            let end = each.map_or(u64::MAX, |each| {
                self.at.saturating_add((each * sharing).ceil() as u64)
            });
            let stop = end.min(self.next_arrival).min(until);
            let got = match each {
                Some(each) if stop == end => each,
                Some(_) => (stop - self.at) as f64 / sharing,
                None => 0.0,
            };
            self.at = stop;
            self.service += got;
            work = work.map(|work| work - got);
            if work.is_some_and(|work| work <= 0.0) {
                return stop;
            }
            while self.ends.peek().is_some_and(|end| end.0.0 <= self.service) {
                self.ends.pop();
            }
            if self.ends.is_empty() {
                // Small numbers stay exact.
                self.service = 0.0;
            }
            if stop == self.next_arrival {
                let length: f64 = match self.lengths {
                    FlowLengths::Exponential => Exp1.sample(rng),
                    FlowLengths::Fixed => 1.0,
                };
                let length = length * self.mean / CONNECTIONS as f64;
                self.ends.push(Reverse(End(self.service + length)));
                let gap = self.gaps.sample(rng) as u64;
                self.next_arrival = self.next_arrival.saturating_add(gap);
            } else if stop == until {
                return stop;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Flows of 1 ms on average.
    fn flows(share: f64, lengths: FlowLengths) -> (Flows, Xoshiro256PlusPlus) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let background = Background {
            share,
            flow: 1_000,
            lengths,
        };
        let flows = Flows::new(background, MS as f64 / 1e3, 0, &mut rng);
        (flows.expect("possible flows"), rng)
    }

    #[test]
    fn formatted_text_parses_and_other_text_is_rejected() {
        for text in ["0.02:1M", "0.9:1500", "0.1:1M:fixed"] {
            assert_eq!(text.parse::<Background>().expect(text).to_string(), text);
        }
        for wrong in [
            "",
            "0.02",
            "0:1M",
            "0.91:1M",
            "nan:1M",
            "0.02:",
            "0.02:0",
            "a:1M",
            "0.1:1M:any",
            "0.1:999",
        ] {
            assert!(wrong.parse::<Background>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_packet_shares_with_the_flows_of_its_time() {
        let (mut flows, mut rng) = flows(0.5, FlowLengths::Fixed);
        // Two flows of eight times 3 and 8 ms at the start, and none later.
        flows
            .ends
            .extend([3, 8].map(|ms| Reverse(End((ms * MS) as f64))));
        flows.next_arrival = 10_000 * MS;
        // 1 ms with both: 17 ms. All 17 connections get 1 ms.
        assert_eq!(flows.transmit(0, MS, &mut rng), 17 * MS);
        // The shorter one ends after 16 · 2 ms, at 49 ms; 8 ms later the other has 4 ms left for each connection.
        assert_eq!(flows.advance(57 * MS, None, &mut rng), 57 * MS);
        assert_eq!(flows.ends.len(), 1);
        // 4 ms with one: 36 ms; it ends then too.
        assert_eq!(flows.transmit(57 * MS, 4 * MS, &mut rng), 93 * MS);
        assert_eq!(flows.transmit(93 * MS, MS, &mut rng), 94 * MS);
        assert_eq!(flows.transmit(100 * MS, MS, &mut rng), 101 * MS);
    }

    #[test]
    fn flows_take_their_share() {
        flows_of(FlowLengths::Exponential);
        flows_of(FlowLengths::Fixed);
    }

    fn flows_of(lengths: FlowLengths) {
        let (mut flows, mut rng) = flows(0.3, lengths);
        let (mut busy, steps) = (0, 200_000);
        for step in 0..steps {
            flows.advance(step * MS / 4, None, &mut rng);
            busy += u64::from(!flows.ends.is_empty());
        }
        let share = busy as f64 / steps as f64;
        assert!((share - 0.3).abs() < 0.02, "{share}");
        // A job that always sends has the rest of the link, and flows stay as many as that allows.
        let start = flows.at;
        for _ in 0..100_000 {
            flows.transmit(flows.at, MS / 4, &mut rng);
        }
        let share = 100_000.0 * (MS / 4) as f64 / (flows.at - start) as f64;
        assert!((share - 0.7).abs() < 0.02, "{share}");
    }

    /// With more connections than nanoseconds between two arrivals, the packet and the flows still end.
    #[test]
    fn short_flows_end_on_any_link() {
        for gigabits in [1.0, 10.0, 100.0, 10_000.0] {
            for lengths in [FlowLengths::Exponential, FlowLengths::Fixed] {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
                let background = Background {
                    share: MAX_SHARE,
                    flow: MIN_FLOW,
                    lengths,
                };
                let flows = Flows::new(background, 8.0 / gigabits, 0, &mut rng);
                let mut flows = flows.expect("possible flows");
                let (mut now, packets) = (0, 1_000);
                let alone = (12_000.0 / gigabits).ceil() as u64;
                for _ in 0..packets {
                    now = flows.transmit(now, alone, &mut rng);
                }
                assert!(flows.ends.len() < 10_000);
                // A tenth of the link is left on average. On the fastest, a packet takes too few nanoseconds to show it.
                let share = (packets * alone) as f64 / now as f64;
                let is_exact = (0.05..0.2).contains(&share);
                assert!(is_exact || gigabits > 1_000.0, "{gigabits} Gbit/s: {share}");
            }
        }
    }

    #[test]
    fn a_long_idle_time_costs_no_more_than_a_short_one() {
        let (mut flows, mut rng) = flows(0.9, FlowLengths::Exponential);
        let day = 24 * 3_600_000 * MS;
        let mut late = 0;
        for packet in 1..=1_000 {
            let start = packet * day;
            let end = flows.transmit(start, MS, &mut rng);
            assert!(end >= start + MS && end < start + 10_000 * MS);
            late += u64::from(end > start + MS);
        }
        assert!(late > 800, "{late}");
    }
}
