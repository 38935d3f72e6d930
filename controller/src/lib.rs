//! Ultima's controller: fabric, jobs, groups and rules over P4Runtime.
//!
//! - [`fabric`]: switches, hosts and links, read from YAML and checked; [`target`]: what each kind
//!   of switch can do.
//! - [`job`]: who takes part, placed on hosts.

pub mod fabric;
pub mod job;
mod mac;
pub mod target;
mod yaml;

pub use mac::{MacAddr, ParseMacError};
pub use yaml::{LoadError, Place};
