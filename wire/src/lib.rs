//! Ultima's packet format, version 1: the only definition of the header in Rust. No I/O.
//!
//! [`Header`] is the 52-byte header (68 with [`Auth`]) between UDP and the payload; `docs/packet.md` is its
//! byte table. [`Header::parse`] and [`Header::emit`] convert between bytes and plain values, without
//! allocation. [`frame`] adds the Ethernet, IPv4 and UDP headers for programs that write whole frames
//! (virtual switch ports, packet generators).
//!
//! Times in packets are [`Ticks`] of 2^10 ns: a shift on Tofino, about a microsecond.

mod auth;
pub mod bitmap;
mod control;
mod feedback;
pub mod frame;
mod header;
mod report;
mod ticks;
mod types;

pub use auth::{Key, Sealer, VerifyError};
pub use control::{Check, Credit, RepairRequest, Requested};
pub use feedback::Feedback;
pub use header::{
    AUTH_LEN, Auth, GROUP_NETWORK, HEADER_LEN, Header, INCAST_MAX, KIND_AT, KIND_MASK, MAGIC,
    PACKET_NUMBER_AT, ParseError, SLOT_AT, UDP_PORT, VERSION, group_address, header_len,
    length_check,
};
pub use report::Report;
pub use ticks::Ticks;
pub use types::{Dtype, HostFlags, Kind, SwitchFlags};
