//! Helpers for Ultima's end-to-end tests.
//!
//! - [`stage`] is what tests start from: switches of one make with our controller at work
//!   ([`controller`]) and its jobs installed ([`job`]).
//! - [`testbed`] builds a [`fabric`] of embedded switches or of BMv2s ([`bmv2`]), over Unix sockets or in
//!   a network namespace of its own ([`netns`]), sends frames in and collects what comes out.
//! - [`crew`] are members of a job at work, on embedded switches.
//! - [`generator`] makes frames, [`scenario`] says what must come of them, [`fuzz`] mutates them,
//!   [`counters`] reads what was counted, [`stamps`] what switches write.
//! - [`accounts`] sends packets of every fate through several switches and has every count add up.
//! - [`operator`] and [`third_party`] are other P4Runtime clients at the same switches, [`scripted`] runs
//!   more of them, each at a switch of its own.
//! - [`vectors`] are packets and what must come of them, as data.
//! - [`needs`] says what is missing on this machine.

pub mod accounts;
pub mod bmv2;
pub mod controller;
pub mod counters;
pub mod crew;
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
pub mod scripted;
pub mod stage;
pub mod stamps;
pub mod testbed;
pub mod third_party;
mod threads;
pub mod vectors;
