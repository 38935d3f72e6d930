//! Ultima's controller: it plans a fabric's jobs and keeps the switches in that state over
//! P4Runtime.
//!
//! - [`fabric`]: switches, hosts and links, read from YAML and validated; [`target`]: the limits of
//!   each kind of switch; [`settings`]: a link's settings; [`chassis`]: a switch's port
//!   configuration.
//! - [`job`]: jobs and the placement of their members on hosts.
//! - [`routing`]: paths to hosts while elements are down; [`tree`]: multicast trees.
//! - [`plan`]: a switch's desired entries, as pure functions of fabric, routes and jobs;
//!   [`ledger`]: the resources that jobs have taken and that are left.
//! - [`membership`]: changes of a job's members while it runs.
//! - [`moves`]: the order of writes from one plan to another while packets pass.
//! - [`reconcile`]: the difference between a switch's entries and the desired ones.
//! - [`p4rt`]: the P4Runtime client; [`program`]: the pipeline that it installs; [`update`]: the
//!   updates of planned entities.
//! - [`store`]: the committed state on disk.
//! - [`check`]: the fault behind a failed connectivity check.
//! - [`metrics`]: the controller's counters and measurements.
//! - [`server`]: the controller itself, behind the control API ([`ultima_api`]).

pub mod chassis;
pub mod chassis_push;
pub mod check;
pub mod fabric;
pub mod job;
pub mod ledger;
pub mod membership;
pub mod metrics;
pub mod moves;
mod names;
pub mod p4rt;
pub mod plan;
pub mod program;
pub mod reconcile;
pub mod routing;
pub mod server;
pub mod settings;
pub mod store;
pub mod target;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod update;
pub mod yaml;

pub use yaml::{LoadError, Place};
