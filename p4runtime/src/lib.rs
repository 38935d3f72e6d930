//! P4Runtime v1: messages, tonic stubs, P4Info lookup by name.
//!
//! - [`v1`], [`config::v1`] and [`rpc`] are generated from `proto/`: the messages of P4Runtime,
//!   P4Info and `google.rpc.Status`, with client and server stubs
//!   ([`v1::p4_runtime_client`], [`v1::p4_runtime_server`]).
//! - [`names`] finds the objects of a P4Info by name and builds entries from names and values, so
//!   that controllers need no numeric ids.
//! - [`bmv2`] finds the program in a device config. [`tofino`] packs a program for Tofino in the form of Stratum or of PI. [`stratum`] has Stratum's messages.
//! - [`text`] reads and prints P4Info (and any other message) in protobuf's text format.
//! - [`bounded`] rejects messages that would take too much memory; all stubs use it. [`write`] has write requests for servers.
//! - [`bytestring`] encodes numbers, [`replication`] builds multicast groups and clone sessions, and [`batch`] builds
//!   the status of a failed batch.

pub mod batch;
pub mod bmv2;
pub mod bounded;
pub mod bytestring;
mod entity;
mod generated;
pub mod names;
pub mod replication;
pub mod text;
pub mod tofino;
pub mod write;

pub use generated::google::rpc;
pub use generated::p4::{config, v1};
pub use generated::stratum::hal as stratum;

/// Descriptors of every message and service in this crate and of what they import, as an encoded
/// `google.protobuf.FileDescriptorSet`: for text format, gRPC reflection, and comparison with
/// other implementations.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
