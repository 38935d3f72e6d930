//! The controller's integration tests, in one binary.

mod bed;
mod chaos;
mod crew;
mod group;
mod several;
mod target;

mod away;
mod chassis_push;
mod control_api;
mod embedded;
mod epochs;
mod fabrics;
mod faults;
mod grids;
mod hangs;
mod install;
mod long_answers;
mod moves;
mod orders;
mod program;
mod restart;
mod schema;
mod spans;
mod standby;
mod targets;
mod unkept;
