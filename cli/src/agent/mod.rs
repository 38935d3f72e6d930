//! `ultima agent`: ranks of a job on this host, over kernel UDP sockets.
//!
//! | file | |
//! | --- | --- |
//! | `options.rs` | the command line |
//! | `run.rs` | the agent: its ranks from join to report |
//! | `operations.rs` | the operations of one rank |
//! | `data.rs` | the generated data and the exact mean |
//! | `report.rs` | the report |
//! | `verdict.rs` | the exit code, and what explains it |
//!
//! [`ultima_agent::rank`] joins the job and follows its changes.

mod data;
mod operations;
mod options;
mod report;
mod run;
mod verdict;

pub use options::Options;
pub use run::run;
