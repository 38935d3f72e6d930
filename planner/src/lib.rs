//! Plans a fabric's jobs: what each switch needs, and how to get there. All of it is pure: no
//! sockets, no tasks, no store. The controller decides when to plan, commits the plan and writes it.
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
//! - [`program`]: the pipeline of the switches; [`update`]: the updates of planned entities.
//! - [`telemetry`]: a switch's loss reports; [`check`]: the fault behind a failed connectivity check.
//! - [`yaml`]: files with errors that name the line; [`names`]: lists of names in messages.

pub mod chassis;
pub mod check;
pub mod fabric;
pub mod job;
pub mod ledger;
pub mod membership;
pub mod moves;
pub mod names;
pub mod plan;
pub mod program;
pub mod reconcile;
pub mod routing;
pub mod settings;
pub mod target;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tree;
pub mod update;
pub mod yaml;
