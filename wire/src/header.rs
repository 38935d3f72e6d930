//! The header: parsing and writing.

use std::net::Ipv4Addr;

use crate::ticks::Ticks;
use crate::types::{Dtype, HostFlags, Kind, SwitchFlags};

/// "UL", the first two bytes of every Ultima packet.
pub const MAGIC: u16 = 0x554c;
/// The version of the format that this crate reads and writes.
pub const VERSION: u8 = 1;
/// Bytes of the header without [`Auth`].
pub const HEADER_LEN: usize = 52;
/// Bytes of [`Auth`], which follow the header when its flag is set.
pub const AUTH_LEN: usize = 16;
/// Offset of the byte with version and kind.
pub const KIND_AT: usize = 2;
/// The kind's bits in that byte.
pub const KIND_MASK: u8 = 0x0f;
/// Offset of the byte with the switches' flags.
pub(crate) const SWITCH_FLAGS_AT: usize = 3;
/// Offset of the packet number, 4 bytes, which links assign.
pub const PACKET_NUMBER_AT: usize = 20;
/// Offset of the byte with the sending host's flags.
pub(crate) const HOST_FLAGS_AT: usize = 30;
/// Offset of the slot, 4 bytes.
pub const SLOT_AT: usize = 32;
/// The largest number in [`Header::incast`].
pub const INCAST_MAX: u8 = 15;
/// The largest number in [`Header::length_check`].
const LENGTH_CHECK_MAX: u8 = 15;
/// The UDP port of a host's first rank: the magic's value. Its *n*-th further rank uses the *n*th port after
/// it. Only a default: Ultima packets are recognized by magic and version, not by port.
pub const UDP_PORT: u16 = MAGIC;
/// The IPv4 /16 (organization-local scope, RFC 2365) of jobs' group addresses.
pub const GROUP_NETWORK: Ipv4Addr = Ipv4Addr::new(239, 85, 0, 0);

/// Bytes of a packet's header, including digest and tag if it is sealed.
pub const fn header_len(sealed: bool) -> usize {
    HEADER_LEN + if sealed { AUTH_LEN } else { 0 }
}

/// The group address of a job's GATHER: [`GROUP_NETWORK`] with the job's id in its lower half.
pub fn group_address(job: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(GROUP_NETWORK.to_bits() | u32::from(job))
}

/// A check of the number of a bucket's entries, 1 to 15. Coding pads buckets, so different lengths can have equal slots.
pub fn length_check(entries: usize) -> u8 {
    (entries % usize::from(LENGTH_CHECK_MAX)) as u8 + 1
}

/// The 16 bytes that follow the header when the AUTH flag is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Auth {
    /// The first half of the payload's MAC, as it was sent.
    pub payload_digest: u64,
    /// The first half of the MAC of the digest and the header. The bytes that switches write (3 to 11) and the packet
    /// number (20 to 23) count as zero.
    pub tag: u64,
}

impl Auth {
    pub(crate) fn from_bytes(bytes: &[u8; AUTH_LEN]) -> Self {
        let [digest @ .., _, _, _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, tag @ ..] = *bytes;
        Self {
            payload_digest: u64::from_be_bytes(digest),
            tag: u64::from_be_bytes(tag),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; AUTH_LEN] {
        let mut bytes = [0; AUTH_LEN];
        bytes[..8].copy_from_slice(&self.payload_digest.to_be_bytes());
        bytes[8..].copy_from_slice(&self.tag.to_be_bytes());
        bytes
    }
}

/// The header, version 1. `docs/packet.md` has the byte table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The kind of the packet.
    pub kind: Kind,
    /// Written by switches.
    pub switch_flags: SwitchFlags,
    /// The time that receivers will still wait for the packet. Every switch subtracts the time in its queue.
    pub budget: Ticks,
    /// The longest time that the packet spent in one queue.
    pub path_queue: Ticks,
    /// The job's id in its fabric.
    pub job: u16,
    /// The job's membership epoch. Packets of other epochs are rejected.
    pub epoch: u16,
    /// The sender's rank.
    pub source: u16,
    /// The rank that owns the shard.
    pub owner: u16,
    /// Counts all packets from this source to its switch for this job, wrapping. Gaps are losses before that
    /// switch.
    pub packet_number: u32,
    /// The training step; with `bucket` it names the operation.
    pub step: u32,
    /// The gradient bucket within the step.
    pub bucket: u16,
    /// Written by the sending host.
    pub host_flags: HostFlags,
    /// SCATTER, GATHER and REPAIR: the [`length_check`] of the bucket; 0 if the sender states none.
    pub length_check: u8,
    /// The type of the payload's elements.
    pub dtype: Dtype,
    /// The number of ranks that may send to this packet's sender at a time, up to [`INCAST_MAX`]; 0 for all.
    pub incast: u8,
    /// The slot within the owner's shard, from 0.
    pub slot: u32,
    /// Slots in the owner's shard.
    pub slots: u32,
    /// GATHER: contributions in the aggregate.
    pub contributions: u16,
    /// The sender's early-close time t_C, in 2^16 ns; 0 for none.
    pub shared_tc: u16,
    /// The sender's clock at the time of sending.
    pub sent_at: Ticks,
    /// FEEDBACK and CONTROL: the `sent_at` of the packet that this one answers; 0 for none. Other kinds: see
    /// [`Header::sequence`].
    pub echoed: Ticks,
    /// Digest and tag, where the job uses them.
    pub auth: Option<Auth>,
}

/// The reason that bytes are not an Ultima header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the header has.
    #[error("{got} bytes: expected at least {need}, the length of an Ultima header")]
    Short {
        /// Available bytes.
        got: usize,
        /// Needed bytes.
        need: usize,
    },
    /// The magic of another protocol.
    #[error("magic {0:#06x}: expected {MAGIC:#06x}")]
    Magic(u16),
    /// An unknown version.
    #[error("version {0}: expected {VERSION}")]
    Version(u8),
    /// A kind that version 1 does not assign.
    #[error("kind {0}: expected 1 to 7")]
    Kind(u8),
    /// An element type that version 1 does not assign.
    #[error("element type {0}: expected 0 to 3")]
    Dtype(u8),
}

impl Header {
    /// A header of `kind` from `source` about `owner`'s shard, everything else zero.
    pub fn new(kind: Kind, job: u16, epoch: u16, source: u16, owner: u16) -> Self {
        Self {
            kind,
            switch_flags: SwitchFlags::default(),
            budget: Ticks(0),
            path_queue: Ticks(0),
            job,
            epoch,
            source,
            owner,
            packet_number: 0,
            step: 0,
            bucket: 0,
            host_flags: HostFlags::default(),
            length_check: 0,
            dtype: Dtype::None,
            incast: 0,
            slot: 0,
            slots: 0,
            contributions: 0,
            shared_tc: 0,
            sent_at: Ticks(0),
            echoed: Ticks(0),
            auth: None,
        }
    }

    /// Length of this header in bytes.
    #[allow(clippy::len_without_is_empty)] // a header is never empty
    pub fn len(&self) -> usize {
        header_len(self.auth.is_some())
    }

    /// SCATTER, GATHER and REPAIR: counts such packets of this source for the job, whatever their receiver,
    /// wrapping from 2^32 − 1 to 1. None without flow control.
    pub fn sequence(&self) -> Option<u32> {
        match self.kind {
            Kind::Scatter | Kind::Gather | Kind::Repair => Some(self.echoed.0),
            _ => None,
        }
        .filter(|sequence| *sequence != 0)
    }

    /// Parses a header from the front of a UDP payload. Returns it and the bytes after it.
    ///
    /// # Errors
    /// [`ParseError`] names the bytes that are not version 1's. Field values are not checked further.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let need = |need| ParseError::Short {
            got: datagram.len(),
            need,
        };
        let (bytes, mut rest) = datagram
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(need(HEADER_LEN))?;
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };

        if u16_at(0) != MAGIC {
            return Err(ParseError::Magic(u16_at(0)));
        }
        if bytes[KIND_AT] >> 4 != VERSION {
            return Err(ParseError::Version(bytes[KIND_AT] >> 4));
        }
        let auth = if bytes[HOST_FLAGS_AT] & HostFlags::AUTH != 0 {
            let (auth, payload) = rest
                .split_first_chunk::<AUTH_LEN>()
                .ok_or(need(HEADER_LEN + AUTH_LEN))?;
            rest = payload;
            Some(Auth::from_bytes(auth))
        } else {
            None
        };
        let header = Self {
            kind: Kind::from_bits(bytes[KIND_AT] & KIND_MASK)
                .ok_or(ParseError::Kind(bytes[KIND_AT] & KIND_MASK))?,
            switch_flags: SwitchFlags::from_bits(bytes[SWITCH_FLAGS_AT]),
            budget: Ticks(u32_at(4)),
            path_queue: Ticks(u32_at(8)),
            job: u16_at(12),
            epoch: u16_at(14),
            source: u16_at(16),
            owner: u16_at(18),
            packet_number: u32_at(PACKET_NUMBER_AT),
            step: u32_at(24),
            bucket: u16_at(28),
            host_flags: HostFlags::from_bits(bytes[HOST_FLAGS_AT]),
            length_check: bytes[HOST_FLAGS_AT] & LENGTH_CHECK_MAX,
            dtype: Dtype::from_bits(bytes[31] >> 4).ok_or(ParseError::Dtype(bytes[31] >> 4))?,
            incast: bytes[31] & INCAST_MAX,
            slot: u32_at(SLOT_AT),
            slots: u32_at(36),
            contributions: u16_at(40),
            shared_tc: u16_at(42),
            sent_at: Ticks(u32_at(44)),
            echoed: Ticks(u32_at(48)),
            auth,
        };
        Ok((header, rest))
    }

    /// Writes the header to the front of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Header::len`]: the caller sizes its buffers.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let auth = if self.auth.is_some() {
            HostFlags::AUTH
        } else {
            0
        };
        buf[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        buf[KIND_AT] = (VERSION << 4) | self.kind as u8;
        buf[SWITCH_FLAGS_AT] = self.switch_flags.to_bits();
        buf[4..8].copy_from_slice(&self.budget.0.to_be_bytes());
        buf[8..12].copy_from_slice(&self.path_queue.0.to_be_bytes());
        buf[12..14].copy_from_slice(&self.job.to_be_bytes());
        buf[14..16].copy_from_slice(&self.epoch.to_be_bytes());
        buf[16..18].copy_from_slice(&self.source.to_be_bytes());
        buf[18..20].copy_from_slice(&self.owner.to_be_bytes());
        buf[PACKET_NUMBER_AT..PACKET_NUMBER_AT + 4]
            .copy_from_slice(&self.packet_number.to_be_bytes());
        buf[24..28].copy_from_slice(&self.step.to_be_bytes());
        buf[28..30].copy_from_slice(&self.bucket.to_be_bytes());
        buf[HOST_FLAGS_AT] =
            self.host_flags.to_bits() | auth | self.length_check.min(LENGTH_CHECK_MAX);
        buf[31] = ((self.dtype as u8) << 4) | self.incast.min(INCAST_MAX);
        buf[SLOT_AT..SLOT_AT + 4].copy_from_slice(&self.slot.to_be_bytes());
        buf[36..40].copy_from_slice(&self.slots.to_be_bytes());
        buf[40..42].copy_from_slice(&self.contributions.to_be_bytes());
        buf[42..44].copy_from_slice(&self.shared_tc.to_be_bytes());
        buf[44..48].copy_from_slice(&self.sent_at.0.to_be_bytes());
        buf[48..52].copy_from_slice(&self.echoed.0.to_be_bytes());
        if let Some(auth) = self.auth {
            buf[HEADER_LEN..HEADER_LEN + AUTH_LEN].copy_from_slice(&auth.to_bytes());
        }
        self.len()
    }
}
