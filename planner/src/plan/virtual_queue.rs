//! The virtual queue of a port: its link's rate and queue as a meter.

use ultima_link::{EcnThreshold, WireConfig, product};
use ultima_p4runtime::v1::MeterConfig;

/// The drain rate of a virtual queue, in percent of the link's rate. The rest is for trimmed
/// packets, which the meter does not charge: 94 bytes of a full packet (1,514 bytes) are kept, so 5
/// % of the rate carries the headers of 0.8 times the rate. Frame lengths exclude preamble and FCS,
/// as in switches' counters and emulated wires.
const RATE_PERCENT: u64 = 95;
/// The part of the link's queue, in quarters, above which data is trimmed. The rest is for trimmed
/// packets and for traffic that cannot be trimmed.
const TRIM_QUARTERS: u64 = 3;
/// The part of the link's queue, in quarters, above which packets are marked, unless the link has
/// an ECN threshold.
const MARK_QUARTERS: u64 = 1;
/// Bytes of an Ethernet header.
const ETHERNET_HEADER: u64 = 14;
/// The least burst of a share, in frames: a meter with a burst below one packet never passes it.
const LEAST_FRAMES: u64 = 2;

/// A virtual queue: it fills with the bytes that are sent, drains at its rate, and marks or trims
/// like a queue with these bounds in front of the link. It is at least as long as the link's own
/// queue, so it trims before that one drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VirtualQueue {
    /// Bytes per second, at least 1.
    rate: u64,
    /// The length in bytes above which packets are marked.
    mark: u64,
    /// The length in bytes above which data is trimmed, at least `mark`.
    trim: u64,
    /// Bytes of the largest frame, at most `mark`.
    frame: u64,
}

impl VirtualQueue {
    /// The virtual queue of a link's direction with packets of up to `mtu` bytes; none if the link
    /// has no rate.
    ///
    /// A link holds its queue and the frame that it is sending, so the bounds are one frame above
    /// their parts of the queue. A queue limit in packets counts trimmed frames too, so it is
    /// converted with full frames.
    pub(crate) fn of_link(wire: &WireConfig, mtu: u16) -> Option<Self> {
        let link_rate = wire.rate?;
        let frame = u64::from(mtu) + ETHERNET_HEADER;
        let full_frames = |packets: u32| u64::from(packets) * frame;
        let queue = wire
            .queue_packets
            .map_or(u64::MAX, full_frames)
            .min(wire.queue_bytes);
        let trim = scaled(queue, TRIM_QUARTERS, 4);
        let mark = match wire.ecn {
            None => scaled(queue, MARK_QUARTERS, 4),
            Some(EcnThreshold::Packets(packets)) => full_frames(packets),
            Some(EcnThreshold::Bytes(bytes)) => bytes,
            Some(EcnThreshold::Time(time)) => product(link_rate, time),
        };
        // A queue has at most 2^30 bytes, because BMv2's bursts have 32 bits.
        let bound = |bytes: u64| bytes + frame;
        Some(VirtualQueue {
            rate: scaled(link_rate, RATE_PERCENT, 8 * 100).max(1),
            mark: bound(mark.min(trim)),
            trim: bound(trim),
            frame,
        })
    }

    /// The share of `weight` in `total`. All shares together do not exceed the whole, except for
    /// shares raised to [`LEAST_FRAMES`].
    ///
    /// # Panics
    /// If `total` is 0.
    pub fn part(self, weight: u64, total: u64) -> Self {
        let of = |bytes| scaled(bytes, weight, total);
        VirtualQueue {
            rate: of(self.rate).max(1),
            mark: of(self.mark).max(self.frame),
            trim: of(self.trim).max(LEAST_FRAMES * self.frame).min(self.trim),
            frame: self.frame,
        }
    }

    /// The meter configuration: both buckets drain at the queue's rate.
    pub fn meter(self) -> MeterConfig {
        // At most an eighth of `u64::MAX`.
        let rate = self.rate as i64;
        MeterConfig {
            cir: rate,
            cburst: self.mark as i64,
            pir: rate,
            pburst: self.trim as i64,
            ..MeterConfig::default()
        }
    }

    /// The queueing time above which packets are marked, in ticks of 2^10 ns.
    pub(crate) fn mark_time(self) -> u32 {
        self.time(self.mark)
    }

    /// The queueing time above which data is trimmed, in ticks of 2^10 ns.
    pub(crate) fn trim_time(self) -> u32 {
        self.time(self.trim)
    }

    /// Less than all ones, which means no limit.
    fn time(self, bytes: u64) -> u32 {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        u32::try_from(nanoseconds >> 10).map_or(u32::MAX - 1, |ticks| ticks.min(u32::MAX - 1))
    }
}

/// Rounds down.
fn scaled(bytes: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn wire(settings: &str) -> WireConfig {
        let mut wire = WireConfig::default();
        settings
            .parse::<ultima_link::WireChange>()
            .unwrap()
            .apply(&mut wire);
        wire
    }

    fn queue(settings: &str) -> VirtualQueue {
        VirtualQueue::of_link(&wire(settings), 1500).unwrap()
    }

    #[test]
    fn bounds_follow_from_the_link_queue() {
        let cases = [
            // rate, mark, trim
            (
                "rate=1G,queue=256k",
                [118_750_000, 65_536 + 1514, 196_608 + 1514],
            ),
            (
                "rate=100M",
                [11_875_000, (1 << 18) + 1514, 3 * (1 << 18) + 1514],
            ),
            // A limit in packets counts if it is the lower one.
            ("rate=1G,queue-packets=8", [118_750_000, 3 * 1514, 7 * 1514]),
            (
                "rate=1G,queue=3028,queue-packets=8",
                [118_750_000, 757 + 1514, 2271 + 1514],
            ),
            // The link's ECN threshold, at most the trim bound.
            (
                "rate=1G,queue=256k,ecn=bytes:90k",
                [118_750_000, 92_160 + 1514, 196_608 + 1514],
            ),
            (
                "rate=1G,queue=256k,ecn=packets:20",
                [118_750_000, 21 * 1514, 196_608 + 1514],
            ),
            (
                "rate=1G,queue=256k,ecn=time:100us",
                [118_750_000, 12_500 + 1514, 196_608 + 1514],
            ),
            (
                "rate=1G,queue=256k,ecn=time:60s",
                [118_750_000, 196_608 + 1514, 196_608 + 1514],
            ),
        ];
        for (settings, [rate, mark, trim]) in cases {
            let expected = VirtualQueue {
                rate,
                mark,
                trim,
                frame: 1514,
            };
            assert_eq!(queue(settings), expected, "{settings}");
        }
        assert_eq!(VirtualQueue::of_link(&wire("queue=64k"), 1500), None);
    }

    /// The link's own queue, which also holds the frame being sent, is never full before data is
    /// trimmed; and one full frame of any link always passes.
    #[test]
    fn trims_before_the_link_drops_and_lets_single_packets_pass() {
        for mtu in [576, 1500, 9216] {
            for settings in [
                "rate=1,queue=60",
                "rate=1G,queue=60",
                "rate=7,queue=1514",
                "rate=400G,queue=1G",
                "rate=1M,queue-packets=1",
                "rate=1M,queue-packets=2,ecn=packets:1000000",
            ] {
                let wire = wire(settings);
                let queue = VirtualQueue::of_link(&wire, mtu).unwrap();
                let frame = u64::from(mtu) + 14;
                assert!(queue.trim < wire.queue_bytes + frame, "{settings}");
                for queue in [queue, queue.part(1, 10_000), queue.part(100, 101)] {
                    assert!(frame <= queue.mark, "{settings}: {queue:?}");
                    assert!(queue.mark <= queue.trim, "{settings}: {queue:?}");
                    assert!(queue.rate > 0, "{settings}: {queue:?}");
                }
            }
        }
    }

    #[test]
    fn all_rates_give_valid_meters() {
        let mut wire = WireConfig {
            rate: Some(u64::MAX),
            delay: Duration::ZERO,
            ..WireConfig::default()
        };
        let fast = VirtualQueue::of_link(&wire, 9216).unwrap();
        assert_eq!(fast.rate, (u128::from(u64::MAX) * 95 / 800) as u64);
        assert!(fast.meter().cir > 0 && fast.meter().pburst > 0);
        assert_eq!((fast.mark_time(), fast.trim_time()), (0, 0));
        wire.rate = Some(1);
        let slow = VirtualQueue::of_link(&wire, 9216).unwrap();
        assert_eq!((slow.rate, slow.meter().cir), (1, 1));
        // All ones would mean no limit.
        assert_eq!(slow.trim_time(), u32::MAX - 1);
        wire.queue_bytes = 1 << 30;
        let long = VirtualQueue::of_link(&wire, 9216).unwrap();
        assert_eq!(long.meter().pburst, (3 << 28) + 9230);
    }

    #[test]
    fn times_follow_from_the_bounds() {
        // 118.75 bytes in a microsecond, 121.6 in a tick.
        let queue = queue("rate=1G,queue=256k");
        assert_eq!((queue.mark_time(), queue.trim_time()), (551, 1629));
    }

    #[test]
    fn shares_do_not_exceed_the_whole() {
        let whole = queue("rate=1G,queue=256k");
        for weights in [&[1, 1][..], &[1, 2, 4], &[100, 1], &[33, 33, 33]] {
            let total = weights.iter().sum();
            let parts = weights.iter().map(|weight| whole.part(*weight, total));
            let parts: Vec<VirtualQueue> = parts.collect();
            assert!(parts.iter().map(|part| part.rate).sum::<u64>() <= whole.rate);
            let floor = LEAST_FRAMES * whole.frame;
            let large = parts.iter().filter(|part| part.trim > floor);
            assert!(large.map(|part| part.trim).sum::<u64>() <= whole.trim);
        }
        let half = whole.part(1, 2);
        assert_eq!((half.rate, half.trim), (59_375_000, whole.trim / 2));
        assert_eq!(whole.part(1, 1000).trim, 2 * 1514);
    }
}
