//! All integration tests of the crate, in one binary: each binary costs time and disk to link.

mod grpc;
mod names;
mod wire_compat;
