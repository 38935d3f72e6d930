//! Helpers for end-to-end tests.
//!
//! - [`stage`] is the setup of most tests: running switches with a [`controller`] and its [`job`]s.
//! - [`testbed`] builds a [`fabric`] of embedded switches or of BMv2s ([`bmv2`]), on Unix sockets or in a network
//!   namespace ([`netns`]). It sends frames and collects the frames that arrive.
//! - [`generator`] builds frames. [`scenario`] has frames with their expected effects, which [`fuzz`] mutates.
//! - [`counters`] reads the switches' counters, and [`stamps`] the times that switches write into headers.
//! - [`operator`] is a P4Runtime client that replaces the controller as a switch's primary.
//! - [`needs`] finds root, packages and programs, and prints what is missing.

pub mod bmv2;
pub mod controller;
pub mod counters;
mod embedded;
pub mod fabric;
pub mod fuzz;
pub mod generator;
pub mod host_end;
pub mod job;
pub mod needs;
pub mod netns;
pub mod operator;
pub mod scenario;
pub mod stage;
pub mod stamps;
pub mod testbed;
