//! How fast a rank sends, by what the others tell of their queues.
//!
//! | file | policy |
//! | --- | --- |
//! | `fixed.rs` | the limit, always |
//! | `timely.rs` | by round-trip times: where no switch stamps |
//! | `in_band.rs` | by the time in queues that switches stamp |
//! | `receivers.rs` | what the receivers told, and the quantile of it that counts |
//!
//! A policy is asked once an interval, while packets leave, and answers with a share of [`crate::Pacing`]'s limit. What
//! moves it is what queues do. Late packets and stragglers move the timeouts instead, and silent loss nothing: nobody
//! said that a queue did it.

mod fixed;
mod in_band;
mod receivers;
mod timely;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_wire::Feedback;
use ultima_wire::frame::FRAME_OVERHEAD;

use crate::config::{Config, Pacing};
use crate::time::Time;

pub(crate) use receivers::Receivers;

/// The least share of the limit: a job is one of 64 on its links, at worst, and nothing that receivers tell stops a
/// sender.
pub(crate) const LEAST_SHARE: f64 = 1.0 / 64.0;

/// How the rate follows the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RatePolicy {
    /// It does not: the limit, always.
    Fixed,
    /// By round-trip times (TIMELY, SIGCOMM 2015), as published: for where no switch stamps.
    Timely,
    /// By the time in queues that switches stamp; where none does, as [`RatePolicy::Timely`].
    #[default]
    InBand,
}

impl RatePolicy {
    /// Every policy.
    pub const ALL: [RatePolicy; 3] = [RatePolicy::Fixed, RatePolicy::Timely, RatePolicy::InBand];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            RatePolicy::Fixed => "fixed",
            RatePolicy::Timely => "timely",
            RatePolicy::InBand => "in-band",
        }
    }

    pub(crate) fn control(self, scale: &Scale) -> Box<dyn RateControl> {
        match self {
            RatePolicy::Fixed => Box::new(fixed::Fixed),
            RatePolicy::Timely => Box::new(timely::Timely::new(scale)),
            RatePolicy::InBand => Box::new(in_band::InBand::new(scale)),
        }
    }
}

/// A policy.
pub(crate) trait RateControl: Send {
    /// The share of the limit to send at from now on, from [`LEAST_SHARE`] to 1. Called once an interval while packets
    /// leave.
    fn adapt(&mut self, now: Time, seen: &Seen) -> f64;
}

/// What receivers saw lately, each value as the stated quantile over them has it: see [`Receivers`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// What packets waited in their slowest queue.
    pub(crate) queue: Duration,
    /// The share of packets with CE, of those who do not tell a queue.
    pub(crate) marked: f64,
    /// The share of packets with TRIMMED.
    pub(crate) trimmed: f64,
    /// The round trip; none without echoes.
    pub(crate) round_trip: Option<Duration>,
    /// Switches stamp the packets that come to this rank: those that it sends most likely, too.
    pub(crate) stamped: bool,
}

/// The times that follow from a job's size and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// The other ranks.
    pub(crate) others: u16,
    /// How often a receiver tells, and a sender adapts.
    pub(crate) interval: Duration,
    /// The time in queues that is aimed at.
    pub(crate) target: Duration,
}

impl Scale {
    /// Some round trips of a fabric: sooner, nothing that a sender changed would be seen.
    const LEAST_INTERVAL: Duration = Duration::from_micros(50);
    /// Packets in an interval, so that their mean says something.
    const PACKETS: u32 = 16;
    /// What FEEDBACK of all ranks may take of a link, at worst, is one part in so many.
    const FEEDBACK_PART: u64 = 50;
    /// What is aimed at with one sender. Ours: above what a quiet network of 1,024 ranks has between two phases, 98 µs, and
    /// under a tenth of a 32 MiB buffer at 100 Gb/s, 268 µs. Swift's base target is 25 µs (SIGCOMM 2020, §4.2), for flows that
    /// do not all begin at once.
    const BASE_TARGET: Duration = Duration::from_micros(100);

    pub(crate) fn new(config: &Config, pacing: &Pacing) -> Self {
        let time = |bytes: u64| pacing.time(bytes);
        let ranks = config.ranks;
        let headers = FRAME_OVERHEAD + config.header_len();
        let packet = time((headers + config.slot_bytes) as u64);
        let feedback = (headers + Feedback::LEN) as u64;
        let feedback = time(feedback * Self::FEEDBACK_PART * u64::from(ranks));
        // Packets of N senders that keep no step queue up to √N of each other (Swift, §3.5, scales by flows alike).
        let others = packet.mul_f64(f64::from(ranks).sqrt());
        Self {
            others: ranks - 1,
            interval: Self::LEAST_INTERVAL
                .max(packet.saturating_mul(Self::PACKETS))
                .max(feedback),
            target: Self::BASE_TARGET.saturating_add(others),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Eight ranks at 100 Gb/s with slots of 8 KiB.
    pub(crate) fn scale() -> Scale {
        let config = Config {
            slot_bytes: 8192,
            ..Config::new(1, 1, 0, 8, 7, Duration::from_millis(50))
        };
        let pacing = Pacing {
            bits_per_second: 100_000_000_000,
            burst: 0,
            policy: RatePolicy::InBand,
        };
        Scale::new(&config, &pacing)
    }

    #[test]
    fn times_follow_from_the_limit() {
        // A packet takes 662 ns.
        let scale = scale();
        assert_eq!(scale.interval, Duration::from_micros(50));
        assert_eq!(scale.target.as_nanos(), 101_872);
        // At 10 Mb/s a packet takes 1.2 ms: an interval has 16.
        let slow = Config::new(1, 1, 0, 4, 7, Duration::from_millis(50));
        let pacing = Pacing {
            bits_per_second: 10_000_000,
            burst: 0,
            policy: RatePolicy::InBand,
        };
        let interval = Scale::new(&slow, &pacing).interval;
        assert_eq!(interval, pacing.time(42 + 52 + 1408) * 16);
    }
}
