//! gRPC connections, whatever they carry.
//!
//! - [`tls`]: certificate and key files, and TLS configurations.
//! - [`transport`]: endpoints, and texts of connection errors.

mod reasons;
pub mod tls;
pub mod transport;
