//! The packet generator: frames of every kind, valid and forged, built by libpnet's packet types.
//!
//! Frames are values until they are sent, so that what should arrive is said as what was sent with a
//! field changed, and all checksums are computed anew, not updated as a switch updates them.

mod arp;
mod datagram;
mod ipv4;

pub use arp::Arp;
pub use datagram::{Datagram, UdpChecksum, ultima};
pub use ipv4::Ipv4;
