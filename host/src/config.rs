//! A rank's configuration. It holds values and checks them, and never changes after the start.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{Key, bitmap, header_len};

use crate::codec::Coding;
use crate::element::Element;
use crate::estimator::Estimation;
use crate::incast::IncastPolicy;
use crate::loss_detection::LossDetection;
use crate::rate::choice::RatePolicy;
use crate::recycling::Recycling;
use crate::timeout::choice::Timeouts;

/// The longest UDP payload over IPv4.
const MAX_DATAGRAM: usize = 65_507;

/// A rank's configuration. Only `rank`, `colocated` and `shared_memory` may differ between ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The job's id in its fabric.
    pub job: u16,
    /// The job's membership epoch.
    pub epoch: u16,
    /// This rank.
    pub rank: u16,
    /// Ranks of the job, 2 or more.
    pub ranks: u16,
    /// Seed of signs and rotations.
    pub seed: u64,
    /// Key that seals packets, the same on every rank. None for a job whose packets carry no tag. Simulations
    /// have none, because counted values cannot be sealed.
    pub key: Option<Key>,
    /// Payload of a full packet in bytes, a multiple of 4. With 80 bytes of headers (IPv4 and up; 96 with a
    /// key) it must fit the path MTU.
    pub slot_bytes: usize,
    /// Type of the values in packets.
    pub element: Element,
    /// Coding of buckets against loss.
    pub coding: Coding,
    /// Delivery of aggregates.
    pub gather: Gather,
    /// The start of an owner's aggregates.
    pub gather_start: GatherStart,
    /// Loss detection: the events, apart from bounds, that end the wait for a packet.
    pub loss_detection: LossDetection,
    /// Estimator of the mean of the contributions that arrived.
    pub estimation: Estimation,
    /// t_S: how long after an operation's start an owner waits for contributions before it sends its
    /// aggregates.
    pub t_s: Duration,
    /// t_B: how long after its start an operation ends at the latest. The gather has t_B − t_S to cross the
    /// network.
    pub t_b: Duration,
    /// The adaptation of t_S and t_B to the network. Learned times never exceed the two above.
    pub timeouts: Timeouts,
    /// Time that [`Timeouts::CauseAware`] waits in addition to the learned bounds: t_S gets it once, t_B twice, the wait
    /// after everyone's last packets once. A host's scheduler may stop a rank for milliseconds, too rarely to be
    /// learned. Zero in simulations.
    pub slack: Duration,
    /// The multiple of its bucket's usual time after which an operation ends with [`Timeouts::CauseAware`], 1 to 1,000. Limits each
    /// stage in the same way. Applies after 20 operations, and adds at least 1 ms. None: as long as the other bounds allow.
    pub deadline_factor: Option<f64>,
    /// The rate limit. None: as fast as the driver accepts datagrams.
    pub pacing: Option<Pacing>,
    /// The number of ranks that may send contributions to this one at a time.
    pub incast: IncastPolicy,
    /// Room for packets that this rank has not read yet, which it grants to the others as credit. None: no
    /// flow control. All ranks have it, or none.
    pub receive_buffer: Option<ReceiveBuffer>,
    /// True if a sender with credit also keeps to a window that falls when packets are lost, because a network may have
    /// less room than receivers. No effect where switches stamp packets, which show their queues, or without flow control.
    pub congestion_window: bool,
    /// Packets that follow each other to one receiver before the next one's turn, 1 or more. More make system
    /// calls cheaper and queues in switches longer.
    pub send_run: u16,
    /// The number of later packets of the same source that may overtake a packet. It counts as lost only if more have arrived
    /// and it does not follow within a time. 0 if the fabric keeps the order: then only a rank that sees reordering waits.
    pub reorder: u32,
    /// Bounds on packets of operations that this rank has not started.
    pub early: EarlyBounds,
    /// Recycling of undelivered values in a later operation of the same bucket (see [`crate::recycling`]).
    /// Right for values that are summed over steps, such as gradients, and wrong for all others. An
    /// incomplete aggregate is then one bit per rank longer, which must fit the path MTU. The same on every
    /// rank.
    pub recycling: Option<Recycling>,
    /// True if packets to ranks with this rank's address go through shared memory, where they can; else through the
    /// kernel's loopback interface.
    pub shared_memory: bool,
    /// The other ranks on this rank's host. The kernel delivers packets between them, so these overtake
    /// packets to the group, which pass the switch.
    pub colocated: Vec<u16>,
}

/// Delivery of an owner's aggregates to the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// One packet per slot to the job's group; the switch replicates it.
    Multicast,
    /// One packet per slot and rank.
    Unicast,
}

/// The start of owners' aggregates, with pacing and multicast. Otherwise each owner starts as soon as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatherStart {
    /// Each owner as soon as it can: its contributions are sent and a slot is closed.
    AtOnce,
    /// One packet after the other, in the order of ranks, so that first packets do not meet in every queue.
    #[default]
    Turns,
}

impl GatherStart {
    /// All variants.
    pub const ALL: [GatherStart; 2] = [GatherStart::AtOnce, GatherStart::Turns];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            GatherStart::AtOnce => "at-once",
            GatherStart::Turns => "turns",
        }
    }
}

/// A rate limit over whole frames without preamble, check sequence and gap.
///
/// A multicast GATHER counts once per receiver. Each receiver's link carries the aggregates of all owners, so
/// *N* owners that each multicast at 1/(*N*−1) of the rate fill it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The rate in bits per second, 1 or more.
    pub bits_per_second: u64,
    /// Bytes that may be sent at once after a pause.
    pub burst: u32,
    /// The adaptation of the rate to the network, below that limit.
    pub policy: RatePolicy,
}

impl Pacing {
    /// Duration of `bytes` at the limit.
    pub(crate) fn time(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// Room for received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// Number of packets of full length.
    pub packets: u32,
}

impl ReceiveBuffer {
    /// Size of a socket's receive buffer with Linux's default limit, as SO_RCVBUF reads: twice net.core.rmem_max.
    pub const USUAL: usize = 2 * 212_992;

    /// The room in a Linux socket whose buffer has `bytes` (SO_RCVBUF as read, see socket(7)), for packets of
    /// this configuration.
    ///
    /// The kernel counts the memory of a packet: its data rounded up to a power of two, and its descriptors.
    /// Five sixteenths of the buffer stay free: the kernel returns the memory of read packets in steps of a quarter
    /// buffer, and small packets need room too.
    pub fn of_socket(bytes: usize, config: &Config) -> Self {
        const DESCRIPTOR: usize = 256;
        let memory = (config.slot_bytes + Self::overhead(config)).next_power_of_two() + DESCRIPTOR;
        Self {
            packets: u32::try_from(bytes * 11 / 16 / memory).unwrap_or(u32::MAX),
        }
    }

    /// At most the room in the queue of a switch's port.
    ///
    /// The queue holds all that senders have outstanding while the port stands still, for example because the host's CPU
    /// does not take packets. Queues of the embedded switch have 1 MiB by default; 1/16 of it is left to other packets.
    pub(crate) fn behind_port(self, config: &Config) -> Self {
        const QUEUE: usize = (1 << 20) / 16 * 15;
        let frame = FRAME_OVERHEAD + config.header_len() + config.counted_len() + config.slot_bytes;
        let packets = u32::try_from(QUEUE / frame).unwrap_or(u32::MAX);
        Self {
            packets: self.packets.min(packets),
        }
    }

    /// Memory of a packet in addition to its slot, before the kernel rounds it up.
    pub fn overhead(config: &Config) -> usize {
        const HEADERS_AND_SHARED_INFO: usize = 512;
        config.header_len() + config.counted_len() + HEADERS_AND_SHARED_INFO
    }

    /// The room in a Linux socket whose process has not sized it yet, as that of a rank that has not started:
    /// net.core.rmem_default is the default net.core.rmem_max, and is not doubled.
    pub(crate) fn unsized_socket(config: &Config) -> Self {
        Self::of_socket(Self::USUAL / 2, config)
    }
}

/// Bounds on stored packets of operations that others started first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyBounds {
    /// Number of operations with stored packets.
    pub operations: usize,
    /// Total bytes stored, 12 more per datagram than its own. One operation brings about twice its bucket's
    /// size.
    pub bytes: usize,
}

impl Default for EarlyBounds {
    /// Enough for a step of a large model: its buckets, tens of megabytes in all.
    fn default() -> Self {
        Self {
            operations: 64,
            bytes: 256 << 20,
        }
    }
}

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Fewer than two ranks.
    #[error("a job of {0} ranks: expected at least 2")]
    Ranks(u16),
    /// The rank is outside the job.
    #[error("rank {rank} of a job with {ranks} ranks: expected a rank below {ranks}")]
    Rank {
        /// This rank.
        rank: u16,
        /// The job's ranks.
        ranks: u16,
    },
    /// A slot size that no packet can carry.
    #[error("slots of {bytes} bytes: expected a multiple of 4 from 4 to {most}")]
    Slot {
        /// The configured size.
        bytes: usize,
        /// The largest size that fits a datagram, next to headers and the bitmap of counted ranks.
        most: usize,
    },
    /// t_B, the deadline, is zero.
    #[error("a deadline (t_B) of 0: expected more, for example 5s")]
    Deadline,
    /// t_S is zero, or not below t_B.
    #[error("t_S of {t_s:?}: expected more than zero and less than t_B, which is {t_b:?}")]
    Bounds {
        /// The configured t_S.
        t_s: Duration,
        /// The configured t_B.
        t_b: Duration,
    },
    /// A deadline factor below 1 or too large.
    #[error("a deadline factor of {0}: expected 1 to {max}, such as 1.5", max = Config::MAX_DEADLINE_FACTOR)]
    DeadlineFactor(f64),
    /// A deadline factor with timeouts that do not learn the usual time.
    #[error("a deadline factor with the timeouts {}: expected the timeouts {}, or no deadline factor", .0.name(), Timeouts::CauseAware.name())]
    DeadlineFactorTimeouts(Timeouts),
    /// A pacing rate of zero.
    #[error("a pacing rate of 0 bit/s: expected at least 1, or no pacing")]
    Pacing,
    /// Incast of zero, or more than the header can express.
    #[error("incast of {0} senders: expected 1 to {max}, or all", max = IncastPolicy::MOST)]
    Incast(u8),
    /// Recycling that keeps operations for less than two steps.
    #[error("recycling for {0} steps: expected at least 2, or no recycling")]
    Keep(u32),
    /// Recycling with an estimator whose corrections would be wrong.
    #[error(
        "recycling with the estimator {}: expected the estimator {}, or no recycling",
        .0.name(),
        Estimation::ArrivedMean.name()
    )]
    Estimation(Estimation),
    /// Hadamard blocks that are too large for the codec's tile.
    #[error("Hadamard blocks of 2^{0}: expected at most 2^{max}", max = Coding::MAX_LOG2_BLOCK)]
    Block(u8),
}

impl Config {
    /// A slot that fits an MTU of 1,500 with all headers.
    pub const SLOT_BYTES: usize = 1408;
    /// The largest [`Config::deadline_factor`].
    pub const MAX_DEADLINE_FACTOR: f64 = 1000.0;

    /// True for a valid [`Config::deadline_factor`].
    pub fn is_deadline_factor(factor: f64) -> bool {
        (1.0..=Self::MAX_DEADLINE_FACTOR).contains(&factor)
    }

    /// Creates a configuration for tests, simulations and programs that choose every policy: 1,408-byte slots,
    /// Hadamard, multicast, fixed timeouts with t_S at 3/5 of t_B, no pacing, no limit on incast, a network that keeps
    /// the order unless it is seen not to, no recycling, no key.
    ///
    /// `Job` of the crate `ultima-agent` applies the defaults of training jobs instead: the policies of
    /// [`Policies::default`](crate::Policies::default), credit, a key, and slots as long as the MTU allows.
    pub fn new(job: u16, epoch: u16, rank: u16, ranks: u16, seed: u64, t_b: Duration) -> Self {
        Self {
            job,
            epoch,
            rank,
            ranks,
            seed,
            key: None,
            slot_bytes: Self::SLOT_BYTES,
            element: Element::default(),
            coding: Coding::default(),
            gather: Gather::Multicast,
            gather_start: GatherStart::default(),
            loss_detection: LossDetection::default(),
            estimation: Estimation::default(),
            t_s: t_b * 3 / 5,
            t_b,
            timeouts: Timeouts::default(),
            slack: Duration::ZERO,
            deadline_factor: None,
            pacing: None,
            incast: IncastPolicy::All,
            receive_buffer: None,
            congestion_window: false,
            send_run: 1,
            reorder: 0,
            early: EarlyBounds::default(),
            recycling: None,
            shared_memory: true,
            colocated: Vec::new(),
        }
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`ConfigError`] names the invalid value and the valid ones.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.ranks < 2 {
            return Err(ConfigError::Ranks(self.ranks));
        }
        if self.rank >= self.ranks {
            return Err(ConfigError::Rank {
                rank: self.rank,
                ranks: self.ranks,
            });
        }
        let most = (MAX_DATAGRAM - self.header_len() - self.counted_len()) / 4 * 4;
        if !(4..=most).contains(&self.slot_bytes) || !self.slot_bytes.is_multiple_of(4) {
            let bytes = self.slot_bytes;
            return Err(ConfigError::Slot { bytes, most });
        }
        if self.t_b.is_zero() {
            return Err(ConfigError::Deadline);
        }
        if self.t_s.is_zero() || self.t_s >= self.t_b {
            return Err(ConfigError::Bounds {
                t_s: self.t_s,
                t_b: self.t_b,
            });
        }
        if let Some(factor) = self.deadline_factor {
            if !Self::is_deadline_factor(factor) {
                return Err(ConfigError::DeadlineFactor(factor));
            }
            if self.timeouts != Timeouts::CauseAware {
                return Err(ConfigError::DeadlineFactorTimeouts(self.timeouts));
            }
        }
        if self
            .pacing
            .is_some_and(|pacing| pacing.bits_per_second == 0)
        {
            return Err(ConfigError::Pacing);
        }
        if let IncastPolicy::Fixed(senders) = self.incast
            && !(1..=IncastPolicy::MOST).contains(&senders)
        {
            return Err(ConfigError::Incast(senders));
        }
        if let Some(Recycling { keep }) = self.recycling.filter(|recycling| recycling.keep < 2) {
            return Err(ConfigError::Keep(keep));
        }
        if self.recycling.is_some() && self.estimation != Estimation::ArrivedMean {
            return Err(ConfigError::Estimation(self.estimation));
        }
        match self.coding {
            Coding::Hadamard { log2_block } if log2_block > Coding::MAX_LOG2_BLOCK => {
                Err(ConfigError::Block(log2_block))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a packet's header. With a key it includes digest and tag.
    pub fn header_len(&self) -> usize {
        header_len(self.key.is_some())
    }

    /// Bytes by which an aggregate may exceed its slot, for the bitmap of counted ranks. Zero without
    /// recycling.
    pub fn counted_len(&self) -> usize {
        self.recycling.map_or(0, |_| bitmap::len(self.ranks.into()))
    }

    /// Values in a full slot.
    pub fn slot_len(&self) -> usize {
        self.slot_bytes / self.element.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_queues_what_senders_may_have_outstanding() {
        let mut config = Config::new(1, 1, 0, 4, 7, Duration::from_millis(50));
        // The slots of packets for an MTU of 1,500 and of 9,000.
        for (slot_bytes, of_socket, behind_port) in [(1408, 625, 625), (7616, 170, 127)] {
            config.slot_bytes = slot_bytes;
            let room = ReceiveBuffer::of_socket(2 << 20, &config);
            assert_eq!(room.packets, of_socket);
            assert_eq!(room.behind_port(&config).packets, behind_port);
        }
    }

    #[test]
    fn invalid_configurations_are_named() {
        let good = Config::new(1, 1, 0, 4, 7, Duration::from_millis(50));
        assert_eq!(good.validate(), Ok(()));
        let refused = |change: fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(refused(|c| c.ranks = 1).contains("at least 2"));
        assert!(refused(|c| c.rank = 4).contains("rank 4"));
        assert!(refused(|c| c.slot_bytes = 1410).contains("multiple of 4"));
        assert!(refused(|c| c.slot_bytes = 65_508).contains("65452"));
        let sealed = refused(|c| (c.key, c.slot_bytes) = (Some(Key([1; 16])), 65_440));
        assert!(sealed.contains("65436"), "{sealed}");
        assert!(refused(|c| c.t_b = Duration::ZERO).contains("deadline"));
        assert!(refused(|c| c.t_s = c.t_b).contains("less than t_B"));
        let invalid_factors: [fn(&mut Config); 3] = [
            |c| c.deadline_factor = Some(0.9),
            |c| c.deadline_factor = Some(1001.0),
            |c| c.deadline_factor = Some(f64::NAN),
        ];
        for change in invalid_factors {
            assert!(refused(change).contains("expected 1 to 1000"));
        }
        assert!(refused(|c| c.deadline_factor = Some(1.5)).contains("timeouts fixed"));
        assert!(refused(|c| c.coding = Coding::Hadamard { log2_block: 20 }).contains("2^16"));
        assert!(refused(|c| c.incast = IncastPolicy::Fixed(0)).contains("1 to 15"));
        assert!(refused(|c| c.incast = IncastPolicy::Fixed(16)).contains("1 to 15"));
        assert!(refused(|c| c.recycling = Some(Recycling { keep: 1 })).contains("at least 2"));
        let scaled = refused(|c| {
            c.recycling = Some(Recycling::default());
            c.estimation = Estimation::Scaled;
        });
        assert!(scaled.contains("estimator scaled"), "{scaled}");
        let nothing = Pacing {
            bits_per_second: 0,
            burst: 0,
            policy: RatePolicy::Fixed,
        };
        assert_eq!(
            Config {
                pacing: Some(nothing),
                ..good.clone()
            }
            .validate(),
            Err(ConfigError::Pacing)
        );
    }
}
