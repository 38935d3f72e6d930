//! The fabric's limits on a rank's packets.

use ultima_api::v1 as api;
use ultima_host::{Config, Pacing, RatePolicy, ReceiveBuffer};
use ultima_wire::HEADER_LEN;
use ultima_wire::frame::FRAME_OVERHEAD;

/// Bytes of an Ethernet header, which MTUs exclude.
const ETHERNET: usize = 14;

/// The fabric's limits on a rank's packets, from the fabric's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bits per second of this rank's host on its link to the switch, shared by all ranks there.
    pub rate: Option<u64>,
    /// Bytes of the largest IPv4 packet that every link of the fabric carries.
    pub mtu: Option<u32>,
    /// Bits per second at which a rank sends unless its user chooses a rate. None for its share of the link.
    pub pace: Option<u64>,
}

/// Bytes that a paced rank may send at once after a pause: ten full packets, TCP's initial window (RFC 6928).
pub(crate) const PACING_BURST: u32 = 10 * 1500;

impl Limits {
    pub(crate) fn read(limits: &api::Limits) -> Self {
        Self {
            rate: Some(limits.rate).filter(|rate| *rate > 0),
            mtu: Some(limits.mtu).filter(|mtu| *mtu > 0),
            pace: Some(limits.pace).filter(|pace| *pace > 0),
        }
    }

    /// The pacing of a rank whose user chooses no rate, on a host with this number of the job's ranks: the controller's
    /// rate, or a share of the link's. None if the fabric's file has no rate for the link.
    pub fn pacing(&self, ranks_here: u64) -> Option<Pacing> {
        let share = self.rate.map(|rate| (rate / ranks_here).max(1));
        self.pace.or(share).map(|bits_per_second| Pacing {
            bits_per_second,
            burst: PACING_BURST,
            policy: RatePolicy::default(),
        })
    }

    /// The default slot of a job with this configuration: [`largest_slot`] for the fabric's MTU and sockets with Linux's
    /// default limit. Without an MTU in the fabric's file, [`Config::SLOT_BYTES`] minus the tag. The same on every rank.
    pub fn slot_bytes(&self, config: &Config) -> usize {
        match self.mtu {
            Some(mtu) => largest_slot(config, mtu, ReceiveBuffer::USUAL),
            None => usual_slot(config),
        }
    }

    /// One line for each limit that this configuration exceeds.
    pub fn exceeded(&self, config: &Config) -> Vec<String> {
        let mut lines = Vec::new();
        let (slot, packet) = (config.slot_bytes, headers(config) + config.slot_bytes);
        if let Some(mtu) = self.mtu.filter(|mtu| packet > *mtu as usize) {
            lines.push(format!(
                "slots of {slot} bytes make packets of {packet} bytes, but a link of the fabric has an MTU of {mtu} (default 1500): \
                 packets on that link may be lost; expected slots of at most {} bytes",
                self.slot_bytes(config)
            ));
        }
        // All ranks on this host share its link.
        let ranks = config.colocated.len() as u64 + 1;
        let rate = config.pacing.map(|pacing| pacing.bits_per_second);
        let rate = rate.map(|rate| rate.saturating_mul(ranks));
        if let Some((rate, limit)) = rate.zip(self.rate).filter(|(rate, limit)| rate > limit) {
            lines.push(format!(
                "the rates of this host's {ranks} ranks add up to {rate} bit/s, more than the {limit} bit/s of its link in the fabric's \
                 file: packets will queue and be dropped"
            ));
        }
        lines
    }
}

/// [`Config::SLOT_BYTES`] minus the tag.
fn usual_slot(config: &Config) -> usize {
    Config::SLOT_BYTES - (config.header_len() - HEADER_LEN)
}

/// The largest slot that fits `mtu`, as long as a socket buffer of `buffer` bytes (SO_RCVBUF as read) has room for some
/// packets of every other rank.
///
/// The kernel counts a packet's memory in powers of two ([`ReceiveBuffer::of_socket`]), so slots just below a power of two
/// use the buffer best.
pub(crate) fn largest_slot(config: &Config, mtu: u32, buffer: usize) -> usize {
    // The configuration's check, or the network, rejects an MTU without room.
    let room = (mtu as usize).saturating_sub(headers(config)) / 4 * 4;
    let others = u32::from(config.ranks - 1);
    let fits = |slot_bytes: &usize| {
        let config = Config {
            slot_bytes: *slot_bytes,
            ..config.clone()
        };
        let packets = ReceiveBuffer::of_socket(buffer, &config).packets;
        *slot_bytes <= room && packets / others >= SMALLEST_WINDOW
    };
    let per_packet = ReceiveBuffer::overhead(config);
    let mut candidates = MEMORY
        .map(|memory| memory.saturating_sub(per_packet) / 64 * 64)
        .into_iter();
    candidates.find(fits).unwrap_or_else(|| {
        let most = LEAST_MEMORY.saturating_sub(per_packet) / 4 * 4;
        room.min(most).max(4)
    })
}

/// Memory of a packet with a large slot, in the kernel. Two of the largest make a run of 64 KB, the most that one call
/// sends. On loopback, slots of 32 KB need 5 to 11 % less CPU time than slots of 8 KB.
const MEMORY: [usize; 4] = [32_768, 16_384, 8192, 4096];
/// Memory of a packet that fits an MTU of 1,500, in the kernel.
const LEAST_MEMORY: usize = 2048;
/// Packets that each other rank may have outstanding at a receiver, at least: below that, credit costs more than larger
/// slots gain.
const SMALLEST_WINDOW: u32 = 4;

/// Bytes of a job's longest IPv4 packet without its slot.
pub(crate) fn headers(config: &Config) -> usize {
    FRAME_OVERHEAD - ETHERNET + config.header_len() + config.counted_len()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ultima_host::Recycling;
    use ultima_wire::Key;

    use super::*;

    fn config(sealed: bool, ranks: u16, recycles: bool) -> Config {
        Config {
            key: sealed.then_some(Key([1; 16])),
            recycling: recycles.then(Recycling::default),
            ..Config::new(1, 1, 0, ranks, 7, Duration::from_secs(1))
        }
    }

    #[test]
    fn slots_fit_the_links() {
        let slot = |mtu, config: &Config| {
            let limits = Limits {
                mtu,
                ..Limits::default()
            };
            let slot_bytes = limits.slot_bytes(config);
            let config = Config {
                slot_bytes,
                ..config.clone()
            };
            assert_eq!(limits.exceeded(&config), [""; 0]);
            assert_eq!(config.validate(), Ok(()));
            slot_bytes
        };
        let (open, sealed) = (config(false, 96, true), config(true, 96, true));
        assert_eq!((slot(None, &open), slot(Some(1500), &open)), (1408, 1408));
        assert_eq!(
            (slot(None, &sealed), slot(Some(1500), &sealed)),
            (1392, 1392)
        );
        // One bit more is one byte more.
        assert_eq!(slot(Some(1500), &config(true, 97, true)), 1388);
        assert_eq!(slot(Some(1500), &config(true, 97, false)), 1404);
        let few = config(false, 4, false);
        assert_eq!(
            (slot(Some(9000), &few), slot(Some(4500), &few)),
            (7616, 3520)
        );
        assert_eq!(
            (slot(Some(1500), &few), slot(Some(3000), &few)),
            (1420, 1484)
        );
        // Sockets with Linux's default limit have no room for large packets of so many ranks.
        assert_eq!(slot(Some(9000), &open), 1472);
        assert_eq!(slot(Some(576), &config(true, 4, false)), 480);
    }

    #[test]
    fn ranks_share_their_link_unless_the_controller_sets_a_rate() {
        let rate = |limits: Limits, ranks| limits.pacing(ranks).map(|p| p.bits_per_second);
        let link = Limits {
            rate: Some(1_000_000),
            ..Limits::default()
        };
        assert_eq!(rate(link, 1), Some(1_000_000));
        assert_eq!(rate(link, 3), Some(333_333));
        let pace = Some(2_000);
        assert_eq!(rate(Limits { pace, ..link }, 3), pace);
        assert_eq!(rate(Limits::default(), 1), None);
    }

    #[test]
    fn exceeded_limits_are_reported() {
        let limits = Limits {
            rate: Some(1_000_000_000),
            mtu: Some(1500),
            pace: None,
        };
        let paced = |bits_per_second| Config {
            pacing: Some(Pacing {
                bits_per_second,
                burst: 0,
                policy: RatePolicy::Fixed,
            }),
            ..config(true, 4, false)
        };
        // The usual slot is too long with a tag.
        let lines = limits.exceeded(&paced(1_000_000_001));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("packets of 1504") && lines[0].contains("at most 1404 bytes"));
        assert!(lines[1].contains("1000000001 bit/s"), "{lines:?}");
        assert_eq!(limits.exceeded(&paced(1_000_000_000)).len(), 1);
        // Two ranks share the link.
        let two = Config {
            colocated: vec![1],
            ..paced(600_000_000)
        };
        assert!(limits.exceeded(&two)[1].contains("2 ranks add up to 1200000000"));
        assert_eq!(Limits::default().exceeded(&paced(u64::MAX)), [""; 0]);
    }
}
