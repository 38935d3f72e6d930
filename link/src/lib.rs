//! What a link does to the frames that cross it, as people configure it: rate, delay, jitter, loss, queue and ECN.
//!
//! - [`WireConfig`] is one direction of a link; [`WireChange`] is what is said of one, by name and as text, on a
//!   command line, in a fabric's YAML or over gRPC.
//! - [`Loss`], [`Jitter`] and [`EcnThreshold`] are its models; [`units`] reads and shows quantities.
//!
//! - [`LossProcess`] says of one frame after the other whether it is lost.
//!
//! Nothing here moves a frame: the embedded switch's traffic manager, `ultima wire` and the simulator do what these
//! values say, and the controller reads them in a fabric.

mod change;
mod ecn;
mod jitter;
mod loss;
mod process;
pub mod units;
mod wire;

pub use change::{ChangeError, WireChange};
pub use ecn::{EcnError, EcnThreshold};
pub use jitter::{Jitter, JitterError};
pub use loss::{Loss, LossError};
pub use process::LossProcess;
pub use wire::{MAX_DELAY, MAX_LINE, MIN_CHARGE, WireConfig, WireError, product};
