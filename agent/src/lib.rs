//! What stands between the controller and a rank's collective, whatever the process around it does.
//!
//! - [`Membership`]: a rank that a job has given, as the collective's configuration and addresses.
//! - [`Limits`]: what the fabric has room for of what the rank sends.
//! - [`Epochs`]: its operations where the job's members change; [`Follower`]: what it hears of that.
//! - [`ask`]: what the first switch knows of an operation.
//! - [`meet`]: all ranks hear each other before the first operation.
//! - [`Quiet`]: the pause in a job's operations that a check asks for.
//! - [`Probes`]: a rank's part in the checks of its job; see [`ultima_controller::attend`].
//! - [`Metrics`]: what the ranks of a process counted and measured, which [`Exporter`] serves to Prometheus.

mod ask;
mod epochs;
mod exporter;
mod kernel;
mod limits;
mod membership;
mod metrics;
mod probes;
mod quiet;
mod rendezvous;

pub use ask::ask;
pub use epochs::{Epochs, Follower, Go, Next, Open};
pub use exporter::{Exporter, Source};
pub use limits::{Limits, PACING_BURST};
pub use membership::{JoinError, Membership, Seat, SocketError};
pub use metrics::{Metrics, WatchedRank};
pub use probes::Probes;
pub use quiet::Quiet;
pub use rendezvous::{RENDEZVOUS, meet};
