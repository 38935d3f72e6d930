//! `ultima agent`: ranks of a job on this host, over kernel UDP sockets.
//!
//! | file | |
//! | --- | --- |
//! | `options.rs` | the command line |
//! | `run.rs` | the agent: joins, waits for all members, runs the ranks, leaves |
//! | `seat.rs` | a joined rank: its session in one job, or in a row and a column of a grid |
//! | `averager.rs` | the collective of a rank, or the two of a grid |
//! | `rank.rs` | the operations of one rank |
//! | `data.rs` | the generated data and the exact mean |
//! | `report.rs` | the report |

mod averager;
mod data;
mod options;
mod rank;
mod report;
mod run;
mod seat;
mod verdict;

pub use options::Options;
pub use run::run;
