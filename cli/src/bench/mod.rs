//! `ultima bench`: compares collectives in one interleaved run in labs, and writes a report.
//!
//! [`options`] parses, `plan` lists the measurements, `bed` has the lab and its links, `workers` the ranks' processes, `tail` calibrates
//! tails, `run` takes the measurements in turns, `statistics` reduces them, and `report` writes them.

mod bed;
mod method;
mod options;
mod plan;
mod report;
mod run;
mod statistics;
mod tail;
mod workers;

pub use options::Options;
pub use run::run;
