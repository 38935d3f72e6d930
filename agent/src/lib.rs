//! What stands between the controller and a rank's collective, whatever the process around it does.
//!
//! - [`Membership`]: a rank that a job has given, as the collective's configuration and addresses.
//! - [`Probes`]: a rank's part in the checks of its job; see [`ultima_controller::attend`].

mod kernel;
mod membership;
mod probes;

pub use membership::{JoinError, Membership, Seat};
pub use probes::Probes;
