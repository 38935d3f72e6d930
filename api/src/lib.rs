//! The controller's API, for its clients and for the controller itself.
//!
//! - [`v1`]: messages and stubs, generated from `proto/`. The controller alone enables the feature
//!   `server`.
//! - [`client`]: the client, which finds the leader among several controllers; [`address`]: a
//!   controller's address; [`codes`]: the gRPC codes of rejections.
//! - [`document`]: jobs, fabrics, events and results of calls as JSON or YAML.
//! - [`member_session`]: a member's session with the controller; [`operation_gate`]: the operations that a
//!   member may begin while the job's members change.
//! - [`identity`]: the role and name in a certificate; [`is_name`]: the names that switches, hosts and jobs may have.
//! - [`Line`]: a job of a grid, by name; [`MacAddr`].

pub mod address;
pub mod client;
pub mod codes;
mod dial;
#[cfg(feature = "documents")]
pub mod document;
mod error;
pub mod identity;
mod line;
mod mac;
pub mod member_session;
pub mod operation_gate;
mod route;
pub mod v1;

pub use identity::is_name;
pub use line::Line;
pub use mac::{MacAddr, ParseMacError};
