//! gRPC connections, whatever they carry.
//!
//! - `receive` (feature `server`): limits on requests that are being received.
//! - [`tls`]: certificate and key files, and TLS configurations.
//! - [`transport`]: endpoints, and texts of connection errors.

mod reasons;
#[cfg(feature = "server")]
pub mod receive;
pub mod tls;
pub mod transport;
