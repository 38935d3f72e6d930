//! What a rank must know before its first operation.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_wire::{HEADER_LEN, Key, bitmap, header_len};

use crate::answers::Answers;
use crate::codec::Coding;
use crate::element::Element;
use crate::estimator::Estimation;
use crate::incast::IncastPolicy;
use crate::rate::RatePolicy;
use crate::recycling::Recycling;
use crate::timeout::Timeouts;

/// The longest UDP payload over IPv4.
const MAX_DATAGRAM: usize = 65_507;

/// A rank's part in a job. All but `rank` and `beside` is the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The job's number in its fabric.
    pub job: u16,
    /// The job's membership epoch.
    pub epoch: u16,
    /// This rank.
    pub rank: u16,
    /// Ranks of the job, 2 or more.
    pub ranks: u16,
    /// What signs and rotations are drawn from.
    pub seed: u64,
    /// What this rank's packets are sealed with and the others' are verified with, the same on every rank; none for a
    /// job whose packets carry no tag. Simulations have none: what is only counted cannot be sealed.
    pub key: Option<Key>,
    /// Payload of a full packet in bytes, a multiple of 4; with 80 bytes of headers from IPv4 on, 96 with a key, it
    /// must fit the path's MTU.
    pub slot_bytes: usize,
    /// What values are on the wire.
    pub element: Element,
    /// How buckets are prepared for loss.
    pub coding: Coding,
    /// How aggregates travel.
    pub gather: Gather,
    /// When an owner sends its first aggregate.
    pub gather_start: GatherStart,
    /// What ends the wait for a packet, beside the packet and the bounds.
    pub answers: Answers,
    /// What an owner makes of the contributions that arrived.
    pub estimation: Estimation,
    /// t_S: how long after an operation's start an owner waits for contributions before it sends
    /// what it has.
    pub t_s: Duration,
    /// t_B: how long after its start an operation ends, whatever is missing. The time from t_S on
    /// is what the gather has to cross the network.
    pub t_b: Duration,
    /// How t_S and t_B follow what is seen of the network; learned times stay under the two above.
    pub timeouts: Timeouts,
    /// The rate limit; none sends as fast as the driver takes it.
    pub pacing: Option<Pacing>,
    /// How many ranks may send contributions to this one at a time.
    pub incast: IncastPolicy,
    /// By how many packets of the same source the network may overtake one: only then is a packet
    /// counted as lost that a later one passed. 0 where the fabric keeps the order.
    pub reorder: u32,
    /// What is kept of operations that this rank has not started.
    pub early: EarlyBounds,
    /// Whether what an operation could not deliver comes in a later one of the same bucket (see [`crate::recycling`]):
    /// right for what is summed over steps, as gradients are, and wrong for anything else. An aggregate that lacks
    /// contributions then takes a bit more for each rank, which the path's MTU must have room for. The same on every
    /// rank.
    pub recycling: Option<Recycling>,
    /// The ranks on this rank's host, where the kernel hands over what they send each other: it overtakes what they
    /// send to the group, which goes by the switch.
    pub beside: Vec<u16>,
}

/// How an owner's aggregates reach the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// One packet per slot to the job's group; the switch copies it.
    Multicast,
    /// One packet per slot and rank.
    Unicast,
}

/// When owners begin to send aggregates, with pacing and multicast; otherwise each does as soon as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatherStart {
    /// As soon as each one can: with its contributions out and a slot closed.
    AtOnce,
    /// One packet after the other, by rank, so that their first ones do not meet in every queue.
    #[default]
    Turns,
}

impl GatherStart {
    /// Both.
    pub const ALL: [GatherStart; 2] = [GatherStart::AtOnce, GatherStart::Turns];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            GatherStart::AtOnce => "at-once",
            GatherStart::Turns => "turns",
        }
    }
}

/// A rate limit, over whole frames without preamble, check sequence and gap.
///
/// A multicast GATHER counts as often as it has receivers: each receiver's link carries the
/// aggregates of all owners, so that *N* owners who each multicast at 1/(*N*−1) of the rate fill it
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The rate in bits per second, 1 or more.
    pub bits_per_second: u64,
    /// What may leave at once after a pause, in bytes.
    pub burst: u32,
    /// How the rate follows the network, under that limit.
    pub policy: RatePolicy,
}

impl Pacing {
    /// What `bytes` take at the limit.
    pub(crate) fn time(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// Bounds on what a rank keeps of operations that others started before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyBounds {
    /// Operations of which anything is kept.
    pub operations: usize,
    /// Bytes kept in all, 12 more than its own for each datagram; one operation brings about twice
    /// its bucket's.
    pub bytes: usize,
}

impl Default for EarlyBounds {
    /// As many buckets as a step of a large model has, of some tens of megabytes in all.
    fn default() -> Self {
        Self {
            operations: 64,
            bytes: 256 << 20,
        }
    }
}

/// Why a configuration cannot work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Too few ranks for a collective.
    #[error("a job of {0} ranks has nothing to average; 2 or more are needed")]
    Ranks(u16),
    /// This rank is not one of the job's.
    #[error("rank {rank} is not under the job's {ranks} ranks")]
    Rank {
        /// This rank.
        rank: u16,
        /// The job's ranks.
        ranks: u16,
    },
    /// Slots that no packet can carry.
    #[error("slots of {bytes} bytes: a multiple of 4 from 4 to {most} is needed")]
    Slot {
        /// What was asked for.
        bytes: usize,
        /// What fits a datagram beside headers and the bitmap of counted ranks.
        most: usize,
    },
    /// t_S after t_B.
    #[error("t_S is {t_s:?}; it must be over zero and under t_B, which is {t_b:?}")]
    Bounds {
        /// The flush.
        t_s: Duration,
        /// The end.
        t_b: Duration,
    },
    /// A rate of zero.
    #[error("a pacing rate of 0 bits per second sends nothing; leave pacing out for no limit")]
    Pacing,
    /// No sender at all, or more than packets can say.
    #[error("incast of {0}: 1 to {max} senders at once can be asked for, or all", max = IncastPolicy::MOST)]
    Incast(u8),
    /// Nothing would ever be kept.
    #[error("recycling keeps operations for {0} steps; 2 or more are needed, or none of it")]
    Keep(u32),
    /// Corrections that would not be right.
    #[error(
        "recycling corrects the mean over what arrived; with the estimator {} leave it out",
        .0.name()
    )]
    Estimation(Estimation),
    /// Blocks too large for the codec's tile.
    #[error("Hadamard blocks of 2^{0}: at most 2^{max} are possible", max = Coding::MAX_LOG2_BLOCK)]
    Block(u8),
}

impl Config {
    /// Slots that most networks carry whole: with all headers they fit an MTU of 1,500.
    pub const SLOT_BYTES: usize = 1408;

    /// The largest slot that fits a UDP datagram over IPv4, without a key and recycling.
    pub const MAX_SLOT_BYTES: usize = (MAX_DATAGRAM - HEADER_LEN) / 4 * 4;

    /// A configuration with what most jobs use: 1,408-byte slots, Hadamard, multicast, a flush at
    /// 3/5 of the bound, no pacing, a network that keeps the order, no recycling.
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
            answers: Answers::default(),
            estimation: Estimation::default(),
            t_s: t_b * 3 / 5,
            t_b,
            timeouts: Timeouts::default(),
            pacing: None,
            incast: IncastPolicy::All,
            reorder: 0,
            early: EarlyBounds::default(),
            recycling: None,
            beside: Vec::new(),
        }
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`ConfigError`] says which value cannot work and what would.
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
        if self.t_s.is_zero() || self.t_s >= self.t_b {
            return Err(ConfigError::Bounds {
                t_s: self.t_s,
                t_b: self.t_b,
            });
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

    /// Bytes of a packet's header: with a key digest and tag are part of it.
    pub fn header_len(&self) -> usize {
        header_len(self.key.is_some())
    }

    /// Bytes that an aggregate may be longer than its slot, to say which ranks it counts: none without recycling.
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
    fn what_cannot_work_is_named() {
        let good = Config::new(1, 1, 0, 4, 7, Duration::from_millis(50));
        assert_eq!(good.validate(), Ok(()));
        let refused = |change: fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(refused(|c| c.ranks = 1).contains("2 or more"));
        assert!(refused(|c| c.rank = 4).contains("rank 4"));
        assert!(refused(|c| c.slot_bytes = 1410).contains("multiple of 4"));
        assert!(refused(|c| c.slot_bytes = 65_508).contains("65452"));
        let sealed = refused(|c| (c.key, c.slot_bytes) = (Some(Key([1; 16])), 65_440));
        assert!(sealed.contains("65436"), "{sealed}");
        assert!(refused(|c| c.t_s = c.t_b).contains("under t_B"));
        assert!(refused(|c| c.coding = Coding::Hadamard { log2_block: 20 }).contains("2^16"));
        assert!(refused(|c| c.incast = IncastPolicy::Fixed(0)).contains("1 to 15"));
        assert!(refused(|c| c.incast = IncastPolicy::Fixed(16)).contains("1 to 15"));
        assert!(refused(|c| c.recycling = Some(Recycling { keep: 1 })).contains("2 or more"));
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
