//! A P4Runtime client for one switch: the primary role, the program, writes and reads.

mod call;
mod cause;
mod change_deadline;
mod client;
mod device;
mod dial;
mod election;
mod error;
mod heartbeat;
mod owner;
mod program;
mod read;
mod session;
mod unanswered;

pub use call::BATCH;
pub use cause::Cause;
pub(crate) use change_deadline::{ChangeDeadline, ChangeQueue, Waiting};
#[cfg(test)]
pub(crate) use client::IN_FLIGHT;
pub use client::{Order, SwitchClient};
pub use device::Device;
pub(crate) use dial::Deadline;
pub use election::{ELECTION_ID, election_id_of};
pub(crate) use error::is_gone;
pub use error::{ConnectError, RpcError, WriteError, describe, failed};
pub(crate) use owner::Checks;
pub use owner::Owner;
pub use read::read;
pub use session::Mastership;
pub(crate) use unanswered::Unanswered;
