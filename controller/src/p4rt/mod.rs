//! A P4Runtime client for one switch: the primary role, the program, writes and reads.

mod change_deadline;
mod client;
mod dial;
mod error;
mod heartbeat;
mod observer;
mod session;
mod term;
mod unanswered;

pub(crate) use change_deadline::{ChangeDeadline, ChangeQueue};
#[cfg(test)]
pub(crate) use client::IN_FLIGHT;
pub use client::{BATCH, Order, SwitchClient};
pub use dial::Device;
pub(crate) use error::may_pass;
pub use error::{ConnectError, RpcError, WriteError, describe, failed};
pub use observer::Observer;
pub use session::Mastership;
pub use term::Term;
pub(crate) use unanswered::Unanswered;

/// The election id of a controller without peers: Ultima's magic number, `0x554c`. All such
/// controllers use the same id, so that a second one is rejected instead of taking over jobs that
/// it does not know. Other clients can connect as backup with any other id; most use 1. Controllers
/// with peers bid higher ids, see [`Term`].
pub const ELECTION_ID: u128 = ultima_wire::MAGIC as u128;
