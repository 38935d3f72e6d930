//! `ultima lab` and the Mininet launcher, as a user runs them: real hosts, kernel sockets.
//!
//! Everything happens in namespaces that the labs make, and each lab here has a name of its own.

#[path = "../common/mod.rs"]
mod common;

mod agents;
mod blackhole;
mod bmv2;
mod check;
mod ends;
mod epochs;
mod hosts;
mod incast;
mod links;
mod mininet;
mod programs;
mod refused;
mod shipped;
mod stage;
mod strange;
