//! The controller's integration tests, in one binary.

mod chaos;
mod group;
mod several;
mod target;
mod test_agents;
mod testbed;

mod access;
mod batches;
mod chassis_push;
mod control_api;
mod embedded;
mod epochs;
mod events;
mod faults;
mod hangs;
mod install;
mod long_answers;
mod program;
mod random_events;
mod random_fabrics;
mod reroutes;
mod restart;
mod spans;
mod standby;
mod uncommitted;
mod unreachable;
