//! The packet generator: frames of every kind, valid and forged, built by libpnet's packet types.
//!
//! Frames are values. An expected frame is the sent one with changed fields and newly computed checksums, unlike in a switch,
//! which updates checksums.

mod arp;
mod datagram;
mod ipv4;

pub use arp::Arp;
pub use datagram::{Datagram, UdpChecksum, ultima};
pub use ipv4::Ipv4;
