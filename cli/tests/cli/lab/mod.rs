//! `ultima lab` and the Mininet launcher: hosts as network namespaces, with kernel sockets.
//!
//! Each lab has its own name and its own namespaces.

pub mod agents;
mod bad_input;
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
mod shared;
mod shipped;
mod spine;
pub mod stage;
mod unusual;
