//! gNMI messages, stubs and paths: a switch's state outside its P4 program, such as its ports.
//!
//! [`v0`] has the messages and stubs, compiled from our own `proto/gnmi/gnmi.proto` with the names and numbers of the
//! specification. [`path`] compares and formats paths.

pub mod path;

/// Messages and stubs of the package `gnmi`.
#[allow(missing_docs)] // tonic's own items carry no comments.
pub mod v0 {
    tonic::include_proto!("gnmi");
}

/// The version of the specification.
pub const VERSION: &str = "0.10.0";
