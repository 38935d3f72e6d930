//! `ultima demo`: trains a model data-parallel, with every gradient through an emulated switch.
//!
//! `run` is the main process, `worker` a worker process. They talk over `link`, outside the measured network.

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
