//! The controller's tests against switches that are Tofinos to it: with their ports and limits, and what Stratum takes and
//! keeps there. What says on which target a test runs is `target`. All that have a switch are here; the others are of files and
//! messages alone, or, as `program`, of a refusal by v1model's.

// Each of these is a test by itself, too, and brings the server that it tests against.
#![allow(clippy::duplicate_mod)]

#[path = "away.rs"]
mod away;
#[path = "control_api.rs"]
mod control_api;
#[path = "embedded.rs"]
mod embedded;
#[path = "epochs.rs"]
mod epochs;
#[path = "fabrics.rs"]
mod fabrics;
#[path = "faults.rs"]
mod faults;
#[path = "hangs.rs"]
mod hangs;
#[path = "install.rs"]
mod install;
#[path = "moves.rs"]
mod moves;
#[path = "orders.rs"]
mod orders;
#[path = "restart.rs"]
mod restart;
#[path = "spans.rs"]
mod spans;
#[path = "standby.rs"]
mod standby;
#[path = "unkept.rs"]
mod unkept;
