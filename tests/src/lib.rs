//! Helpers for Ultima's end-to-end tests: switches with hosts' ends of links, our controller, a packet
//! generator, and what must come of what is sent.
//!
//! - [`fabric`] and [`job`] say what there is; [`testbed`] builds it, of embedded switches or BMv2's
//!   ([`bmv2`]), over Unix sockets or in a network namespace of its own ([`netns`]).
//! - [`generator`] makes frames, [`scenario`] says what must come of them, [`counters`] reads what was
//!   counted.
//! - [`needs`] says what is missing on this machine.

pub mod bmv2;
pub mod controller;
pub mod counters;
mod embedded;
pub mod fabric;
pub mod fuzz;
pub mod generator;
mod host_end;
pub mod job;
pub mod needs;
pub mod netns;
pub mod operator;
pub mod scenario;
pub mod stage;
pub mod testbed;
pub mod third_party;
