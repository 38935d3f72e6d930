//! `ultima agent`: ranks of a job on this host, over kernel UDP sockets.
//!
//! | file | |
//! | --- | --- |
//! | `options.rs` | the command line |
//! | `run.rs` | joins, waits until all are there, runs every rank, leaves |
//! | `seat.rs` | a rank of this host: its session in one job, or in a row and a column |
//! | `averager.rs` | what averages: a collective, or a grid's two |
//! | `rank.rs` | one rank's operations |
//! | `data.rs` | what is averaged, and the exact mean to compare with |
//! | `report.rs` | what is printed |

mod averager;
mod data;
mod options;
mod rank;
mod report;
mod run;
mod seat;

pub use options::Options;
pub use run::run;
