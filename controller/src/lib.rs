//! Ultima's controller: fabric, jobs, groups and rules over P4Runtime.
//!
//! - [`fabric`]: switches, hosts and links, read from YAML and checked; [`target`]: what each kind
//!   of switch can do; [`settings`]: what a link does to frames; [`chassis`]: a switch's ports, as its own software is told of them.
//! - [`job`]: who takes part, placed on hosts.
//! - [`routing`]: which way packets to a host take while parts of the fabric are down; [`tree`]: which way a job's
//!   multicast takes.
//! - [`plan`]: what each switch should hold, as pure functions of fabric, routes and jobs; [`ledger`]: what jobs have
//!   taken, and whether another fits.
//! - [`membership`]: other members while a job runs.
//! - [`moves`]: from one plan to another while packets go by both.
//! - [`reconcile`]: what a switch holds against what it should.
//! - [`p4rt`]: the P4Runtime client; [`program`]: what it puts on switches; [`install`]: all or
//!   nothing.
//! - [`store`]: what a controller knows again when it is started again.
//! - [`check`]: where a job's packets stop, from what members and switches saw; [`attend`]: a
//!   member that takes part in checks.
//! - [`metrics`]: what it counts and measures.
//! - [`server`]: the controller at work, behind the control API ([`api`]); [`client`]: the other end.

pub mod api;
pub mod attend;
pub mod chassis;
pub mod chassis_push;
pub mod check;
pub mod client;
pub mod codes;
pub mod fabric;
pub mod install;
pub mod job;
pub mod ledger;
mod mac;
pub mod membership;
pub mod metrics;
pub mod moves;
mod names;
pub mod p4rt;
pub mod plan;
pub mod program;
pub mod reconcile;
mod route;
pub mod routing;
pub mod server;
pub mod settings;
pub mod store;
pub mod target;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod yaml;

pub use mac::{MacAddr, ParseMacError};
pub use yaml::{LoadError, Place};
