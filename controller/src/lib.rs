//! Ultima's controller: it keeps a fabric's switches in the state that [`ultima_planner`] plans, over
//! P4Runtime.
//!
//! - [`server`]: the controller itself, behind the control API ([`ultima_api`]).
//! - [`store`]: the committed state on disk.
//! - [`p4rt`]: the P4Runtime client; [`chassis_push`]: port configuration over gNMI.
//! - [`metrics`]: the controller's counters and measurements.

pub mod chassis_push;
pub mod metrics;
pub mod p4rt;
pub mod server;
pub mod store;
