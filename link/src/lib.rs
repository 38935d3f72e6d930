//! The configuration of a link's effects on frames: rate, background flows, delay, jitter, loss, queue and ECN. It moves no
//! frame.
//!
//! - [`WireConfig`] is one direction of a link. [`WireChange`] changes some of its settings, by name and as text, from a
//!   command line, a fabric's YAML or gRPC.
//! - [`Background`], [`Loss`], [`Jitter`] and [`EcnThreshold`] are its models. [`units`] parses and formats quantities.
//! - [`LossProcess`] decides for each frame whether it is lost, [`JitterSampler`] draws its jitter, [`Flows`] share the rate.
//!
//! The embedded switch's traffic manager, `ultima wire` and the simulator apply these values, and the controller reads
//! them in a fabric.

mod background;
mod change;
mod ecn;
mod jitter;
mod loss;
mod process;
mod sampler;
pub mod units;
mod wire;

pub use background::{Background, BackgroundError, FlowLengths, Flows};
pub use change::{ChangeError, WireChange};
pub use ecn::{EcnError, EcnThreshold};
pub use jitter::{Jitter, JitterError, MAX_DELAY};
pub use loss::{Loss, LossError};
pub use process::LossProcess;
pub use sampler::JitterSampler;
pub use wire::{MAX_LINE, MIN_CHARGE, WireConfig, WireError, product};
