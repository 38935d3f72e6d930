//! The header's small typed fields.

/// The kind of a packet. Four bits in the header; 0 and 8–15 are unassigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A source's contribution to one slot, unicast to the slot's owner.
    Scatter = 1,
    /// An owner's aggregate of one slot, to every other rank.
    Gather = 2,
    /// A sender's state of an operation: how long it will wait, whether its last slot is sent.
    Feedback = 3,
    /// A request for the counters of the first switch.
    Probe = 4,
    /// The counters of a switch, in reply to a PROBE.
    Report = 5,
    /// An aggregate sent again to a rank that missed it.
    Repair = 6,
    /// Messages between ranks.
    Control = 7,
}

impl Kind {
    /// All kinds, by number.
    pub const ALL: [Kind; 7] = [
        Kind::Scatter,
        Kind::Gather,
        Kind::Feedback,
        Kind::Probe,
        Kind::Report,
        Kind::Repair,
        Kind::Control,
    ];

    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        Kind::ALL.get(usize::from(bits).checked_sub(1)?).copied()
    }
}

/// The type of the payload's elements. They are little-endian, so most hosts copy them unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// No elements: the kind defines the payload.
    #[default]
    None = 0,
    /// IEEE 754 binary32.
    F32 = 1,
    /// bfloat16: the upper half of a binary32.
    Bf16 = 2,
    /// IEEE 754 binary16.
    F16 = 3,
}

impl Dtype {
    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Dtype::None,
            1 => Dtype::F32,
            2 => Dtype::Bf16,
            3 => Dtype::F16,
            _ => return None,
        })
    }

    /// Bytes of one element; 0 for [`Dtype::None`].
    pub const fn size(self) -> usize {
        match self {
            Dtype::None => 0,
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
        }
    }
}

/// Flags that switches set, and the number of switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SwitchFlags {
    /// The payload was removed because of a full queue: this slot will not arrive.
    pub trimmed: bool,
    /// The budget was used up on the path: no rank waits for this packet.
    pub late: bool,
    /// A queue on the path exceeded its marking threshold.
    pub congestion: bool,
    /// Number of switches passed, 0–31, saturating.
    pub hops: u8,
}

impl SwitchFlags {
    const TRIMMED: u8 = 0x80;
    const LATE: u8 = 0x40;
    const CE: u8 = 0x20;
    const HOPS: u8 = 0x1f;

    pub(crate) fn from_bits(bits: u8) -> Self {
        Self {
            trimmed: bits & Self::TRIMMED != 0,
            late: bits & Self::LATE != 0,
            congestion: bits & Self::CE != 0,
            hops: bits & Self::HOPS,
        }
    }

    pub(crate) fn to_bits(self) -> u8 {
        (u8::from(self.trimmed) * Self::TRIMMED)
            | (u8::from(self.late) * Self::LATE)
            | (u8::from(self.congestion) * Self::CE)
            | self.hops.min(Self::HOPS)
    }
}

/// Flags of the sending host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostFlags {
    /// True for the last packets of its sender in this phase of the operation.
    pub last: bool,
    /// The payload is coefficients of the randomized Hadamard transform, not gradient entries.
    pub hadamard: bool,
    /// The operation is exact: it is complete or has no result.
    pub exact: bool,
}

impl HostFlags {
    const LAST: u8 = 0x80;
    const HADAMARD: u8 = 0x40;
    const EXACT: u8 = 0x10;
    /// An [`crate::Auth`] follows the header. Not part of this type: it is the `Option` in the header.
    pub(crate) const AUTH: u8 = 0x20;

    pub(crate) fn from_bits(bits: u8) -> Self {
        Self {
            last: bits & Self::LAST != 0,
            hadamard: bits & Self::HADAMARD != 0,
            exact: bits & Self::EXACT != 0,
        }
    }

    pub(crate) fn to_bits(self) -> u8 {
        (u8::from(self.last) * Self::LAST)
            | (u8::from(self.hadamard) * Self::HADAMARD)
            | (u8::from(self.exact) * Self::EXACT)
    }
}
