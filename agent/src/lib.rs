//! A rank's part in a job: the API to embed, and the rank's session with the controller.
//!
//! - [`job`]: the API to embed. [`job::Job`] averages gradients; its rendezvous is a controller, torch's TCPStore or a list
//!   of addresses.
//! - [`Membership`]: a rank of a job, as the collective's configuration and addresses.
//! - [`Session`]: a rank in one epoch of a job, with its link open; [`Settings`]: what a user chooses of it.
//! - [`Limits`]: the fabric's limits on the rank's packets.
//! - [`rank`]: a rank of a job or grid from its join to its end, through all changes of members.
//! - [`Epochs`]: the rank's operations while the job's members change; [`Follower`] handles the controller's
//!   messages about that.
//! - [`ask`]: the first switch's counters of an operation.
//! - [`meet`]: the rendezvous of all ranks before the first operation.
//! - [`Quiet`]: the pause in a job's operations that a check requests.
//! - [`Probes`]: a rank's part in the checks of its job; see [`ultima_api::member_session`].
//! - [`Metrics`]: counters and durations of a process's ranks, which [`Exporter`] serves to Prometheus.

mod ask;
mod deadline;
mod epochs;
mod exporter;
mod fingerprint;
mod held;
pub mod job;
mod kernel;
mod limits;
mod membership;
mod metrics;
mod probes;
mod quiet;
pub mod rank;
mod rendezvous;
mod session;
mod settings;

pub use ask::ask;
pub use epochs::{Epochs, Follower, Go, Next, Open};
pub use exporter::Exporter;
pub use held::Held;
pub use limits::Limits;
pub use membership::{JoinError, Membership, Seat, SocketError, Token};
pub use metrics::{Metrics, WatchedRank};
pub use probes::Probes;
pub use quiet::Quiet;
pub use rendezvous::{RENDEZVOUS, meet};
pub use session::{Configure, Context, Departure, Link, Session, SessionError, Start, give_up};
pub use settings::Settings;
