//! `ultima demo`: a model trained data-parallel, every gradient of it through the switch.
//!
//! `run` is the main process, `worker` the others; `link` is what they say to each other beside the
//! network that is measured.

mod accounting;
mod agreement;
pub mod baseline;
mod collect;
mod deadline;
pub mod digits;
mod link;
pub mod metrics;
pub mod mlp;
mod options;
mod random;
mod report;
mod run;
pub mod shards;
mod table;
pub mod training;
mod worker;

pub use options::Options;
pub use run::run;
pub use worker::{WorkerArguments, work};
