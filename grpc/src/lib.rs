//! gRPC connections, whatever they carry.
//!
//! - `calls` (feature `server`): limits on calls.
//! - `connections`, `server` (feature `http`): HTTP servers, and limits on their connections.
//! - `fair` (feature `http`): limits on calls in progress that clients share.
//! - `metrics` (feature `http`): a server of metrics.
//! - `receive` (feature `server`): limits on requests that are being received.
//! - [`tls`]: certificate and key files, and TLS configurations.
//! - [`transport`]: endpoints, and texts of connection errors.

#[cfg(feature = "server")]
pub mod calls;
#[cfg(feature = "http")]
pub mod connections;
#[cfg(feature = "http")]
pub mod fair;
#[cfg(feature = "http")]
pub mod metrics;
mod reasons;
#[cfg(feature = "server")]
pub mod receive;
#[cfg(feature = "http")]
pub mod server;
pub mod tls;
pub mod transport;
