//! `ultima agent`: ranks of a job on this host, over kernel UDP sockets.
//!
//! | file | |
//! | --- | --- |
//! | `options.rs` | the command line |
//! | `run.rs` | joins, waits until all are there, runs every rank, leaves |
//! | `rank.rs` | one rank's operations |
//! | `data.rs` | what is averaged, and the exact mean to compare with |
//! | `report.rs` | what is printed |

mod data;
mod options;
mod rank;
mod report;
mod run;

pub use options::Options;
pub use run::run;
