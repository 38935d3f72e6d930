//! Rate control: how fast a rank sends, from the others' congestion reports.
//!
//! | file | policy |
//! | --- | --- |
//! | `choice.rs` | the choice of one |
//! | `fixed.rs` | always the limit |
//! | `timely.rs` | by round-trip times, if no switch stamps |
//! | `in_band.rs` | by queueing times that switches stamp |
//! | `receivers.rs` | the receivers' reports, and their quantile |
//!
//! While packets are sent, the core asks the policy once per interval for a share of [`crate::Pacing`]'s
//! limit. Only queues change it. Late packets and stragglers change the timeouts instead, and silent loss
//! shrinks the congestion window.

pub(crate) mod choice;
mod fixed;
mod in_band;
mod receivers;
mod timely;

use std::time::Duration;

use ultima_wire::Feedback;
use ultima_wire::frame::FRAME_OVERHEAD;

use crate::config::{Config, Pacing};
use crate::time::Time;

pub use choice::RatePolicy;
pub(crate) use receivers::Receivers;

/// Smallest share of the limit: at worst a job is one of 64 on its links, and no report of a receiver stops a
/// sender.
pub(crate) const LEAST_SHARE: f64 = 1.0 / 64.0;

impl RatePolicy {
    pub(crate) fn control(self, scale: &Scale) -> Box<dyn RateControl> {
        match self {
            RatePolicy::Fixed => Box::new(fixed::Fixed),
            RatePolicy::Timely => Box::new(timely::Timely::new(scale)),
            RatePolicy::InBand => Box::new(in_band::InBand::new(scale)),
        }
    }
}

/// A rate policy.
pub(crate) trait RateControl: Send {
    /// Returns the share of the limit from now on, from [`LEAST_SHARE`] to 1. Called once per interval while
    /// packets are sent.
    fn adapt(&mut self, now: Time, seen: &Seen) -> f64;
}

/// Recent reports of receivers. Each value is the stated quantile over them: see [`Receivers`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Queueing time of packets in their slowest queue.
    pub(crate) queue: Duration,
    /// The share of packets with CE.
    pub(crate) marked: f64,
    /// The share of packets with TRIMMED.
    pub(crate) trimmed: f64,
    /// The round trip; none without echoes.
    pub(crate) round_trip: Option<Duration>,
}

/// Times that follow from a job's size and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// The other ranks.
    pub(crate) others: u16,
    /// The interval of a receiver's reports and of a sender's updates.
    pub(crate) interval: Duration,
    /// The target queueing time.
    pub(crate) target: Duration,
}

impl Scale {
    /// Some round trips of a fabric. Earlier, the effect of a change would not be measurable.
    const LEAST_INTERVAL: Duration = Duration::from_micros(50);
    /// Packets in an interval, so that their mean is meaningful.
    const PACKETS: u32 = 16;
    /// FEEDBACK of all ranks takes at most one part in this many of a link.
    const FEEDBACK_PART: u64 = 50;
    /// Target for one sender. Our choice: above the value of a quiet network of 1,024 ranks between two
    /// phases, 98 µs, and under a tenth of a 32 MiB buffer at 100 Gb/s, 268 µs. Swift's base target is 25 µs
    /// (SIGCOMM 2020, §4.2), for flows that do not all start at once.
    const BASE_TARGET: Duration = Duration::from_micros(100);

    pub(crate) fn new(config: &Config, pacing: &Pacing) -> Self {
        let time = |bytes: u64| pacing.time(bytes);
        let ranks = config.ranks;
        let headers = FRAME_OVERHEAD + config.header_len();
        let packet = time((headers + config.slot_bytes) as u64);
        let feedback = (headers + Feedback::LEN) as u64;
        let feedback = time(feedback * Self::FEEDBACK_PART * u64::from(ranks));
        // Packets of N unsynchronized senders queue up to √N deep (Swift, §3.5, scales by flows in the same
        // way).
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
