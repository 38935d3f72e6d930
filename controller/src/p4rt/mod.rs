//! A P4Runtime client for one switch: mastership, the program, writes, reads.

mod client;
mod error;
mod session;

pub use client::{Device, SwitchClient};
pub use error::{ConnectError, RpcError, WriteError, describe, failed};
pub use session::Mastership;

/// The election id that controllers use, `0x554c` as everything of ours. All use the same: while
/// one is a switch's primary, a second is refused instead of taking over jobs that it knows
/// nothing of. Other clients can look in with any other id; 1, which most use, stays a backup.
pub const ELECTION_ID: u128 = ultima_wire::MAGIC as u128;
