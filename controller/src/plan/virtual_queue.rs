//! What a port's link carries, as a queue that a meter keeps: from the fabric's words for the link.

use std::fmt;

use ultima_link::{EcnThreshold, WireConfig, product};
use ultima_p4runtime::v1::MeterConfig;

/// Of a link's rate, how much its virtual queue drains at. The rest is what cut packets take, which the meter does not
/// charge: of a full packet (1,514 bytes) 94 stay, so that 5 % of the rate carries what is left of 0.8 times the rate.
/// Frames have the length that switches count and wires serialize, without preamble and FCS.
const RATE_PERCENT: u64 = 95;
/// How many parts of four of a link's queue the virtual one holds before it trims. The last is for what was cut, and for
/// traffic that cannot be cut.
const TRIM_QUARTERS: u64 = 3;
/// The same for marks, where the link itself does not say what it marks at.
const MARK_QUARTERS: u64 = 1;
/// What an Ethernet frame has before its packet.
const ETHERNET_HEADER: u64 = 14;
/// Frames that follow each other without a pause and that a share takes at least: a meter whose burst is
/// less than a packet never lets it pass.
const LEAST_FRAMES: u64 = 2;

/// A queue that is not there: it fills with the bytes of what is sent, drains at its rate, and says what a queue of these
/// bounds before the link would do with a packet. So it is as long as the link's own, or longer, and trims before
/// that one drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VirtualQueue {
    /// Bytes per second, at least 1.
    rate: u64,
    /// Bytes beyond which packets are marked.
    mark: u64,
    /// Bytes beyond which data is trimmed, at least `mark`.
    trim: u64,
    /// Bytes of the largest frame, at most `mark`.
    frame: u64,
}

impl VirtualQueue {
    /// That of a link's direction which carries packets of up to `mtu` bytes; none where it takes them in no time.
    ///
    /// A link holds its queue and the frame that it is sending: the virtual queue's bounds are one frame more than their
    /// parts of the queue. The queue counts cut frames as packets too, so its limit in packets is one in full frames.
    pub fn of_link(wire: &WireConfig, mtu: u16) -> Option<Self> {
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
        // A queue holds at most 2^30 bytes: BMv2 takes bursts of 32 bits.
        let bound = |bytes: u64| bytes + frame;
        Some(VirtualQueue {
            rate: scaled(link_rate, RATE_PERCENT, 8 * 100).max(1),
            mark: bound(mark.min(trim)),
            trim: bound(trim),
            frame,
        })
    }

    /// The part of `weight` in `total`. All parts together are not more than the whole, but for parts that
    /// would not take [`LEAST_FRAMES`].
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

    /// How a meter keeps it: both buckets drain at its rate.
    pub fn meter(self) -> MeterConfig {
        // An eighth of what a u64 can be.
        let rate = self.rate as i64;
        MeterConfig {
            cir: rate,
            cburst: self.mark as i64,
            pir: rate,
            pburst: self.trim as i64,
            ..MeterConfig::default()
        }
    }

    /// How long, in ticks of 2^10 ns, a packet is queued behind what is marked.
    pub fn mark_time(self) -> u32 {
        self.time(self.mark)
    }

    /// How long, in ticks of 2^10 ns, a packet is queued behind what is trimmed.
    pub fn trim_time(self) -> u32 {
        self.time(self.trim)
    }

    /// At most one less than all ones, which is no limit.
    fn time(self, bytes: u64) -> u32 {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        u32::try_from(nanoseconds >> 10).map_or(u32::MAX - 1, |ticks| ticks.min(u32::MAX - 1))
    }
}

/// Rounded down.
fn scaled(bytes: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(by) / u128::from(of);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// As a person reads it: rate, and the bounds in bytes.
impl fmt::Display for VirtualQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VirtualQueue {
            rate, mark, trim, ..
        } = self;
        write!(f, "{rate} bytes/s, marks over {mark}, trims over {trim}")
    }
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
    fn bounds_follow_from_the_links_queue() {
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
            // What the link marks at, at most where it trims.
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

    /// The link's own queue, which holds the frame on the wire too, is never full before data is trimmed; and one full frame,
    /// of whatever a link carries, always passes.
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
                    assert!(frame <= queue.mark, "{settings}: {queue}");
                    assert!(queue.mark <= queue.trim, "{settings}: {queue}");
                    assert!(queue.rate > 0, "{settings}: {queue}");
                }
            }
        }
    }

    #[test]
    fn rates_of_all_sizes_are_meters() {
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
        // Not all ones, which would be no limit at all.
        assert_eq!(slow.trim_time(), u32::MAX - 1);
        wire.queue_bytes = 1 << 30;
        let long = VirtualQueue::of_link(&wire, 9216).unwrap();
        assert_eq!(long.meter().pburst, (3 << 28) + 9230);
    }

    #[test]
    fn times_are_those_of_the_bounds() {
        // 118.75 bytes in a microsecond, 121.6 in a tick.
        let queue = queue("rate=1G,queue=256k");
        assert_eq!((queue.mark_time(), queue.trim_time()), (551, 1629));
    }

    #[test]
    fn parts_are_not_more_than_the_whole() {
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
