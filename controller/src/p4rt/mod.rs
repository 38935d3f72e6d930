//! A P4Runtime client for one switch: mastership, the program, writes, reads.

mod client;
mod dial;
mod error;
mod heartbeat;
mod hurry;
mod observer;
mod session;
mod strays;
mod term;

#[cfg(test)]
pub(crate) use client::IN_FLIGHT;
pub use client::{BATCH, Order, SwitchClient};
pub use dial::Device;
pub(crate) use error::may_pass;
pub use error::{ConnectError, RpcError, WriteError, describe, failed};
pub use hurry::HURRIED;
pub(crate) use hurry::{Hurry, Queue};
pub use observer::Observer;
pub use session::Mastership;
pub(crate) use strays::Strays;
pub use term::Term;

/// The election id of a controller that leads alone, `0x554c` as everything of ours. All such use the same: while
/// one is a switch's primary, a second is refused instead of taking over jobs that it knows
/// nothing of. Other clients can look in with any other id; 1, which most use, stays a backup. Controllers that
/// stand by for each other bid higher ones, see [`Term`].
pub const ELECTION_ID: u128 = ultima_wire::MAGIC as u128;
