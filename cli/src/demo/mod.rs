//! `ultima demo`: a model trained data-parallel, every gradient of it through the switch.
//!
//! `run` is the main process, `worker` the others; `link` is what they say to each other beside the
//! network that is measured.

mod accounting;
mod agreement;
mod collect;
mod deadline;
mod link;
mod options;
mod report;
mod run;
mod table;
mod worker;

pub use options::Options;
pub use run::run;
pub use worker::{WorkerArguments, work};
