//! gRPC connections, whatever they carry.
//!
//! - `calls` (feature `server`): limits on calls.
//! - `connections`, `server` (feature `server`): HTTP servers, and limits on their connections.
//! - `fair` (feature `server`): limits on calls in progress that clients share.
//! - `receive` (feature `server`): limits on requests that are being received.
//! - [`tls`]: certificate and key files, and TLS configurations.
//! - [`transport`]: endpoints, and texts of connection errors.

#[cfg(feature = "server")]
pub mod calls;
#[cfg(feature = "server")]
pub mod connections;
#[cfg(feature = "server")]
pub mod fair;
mod reasons;
#[cfg(feature = "server")]
pub mod receive;
#[cfg(feature = "server")]
pub mod server;
pub mod tls;
pub mod transport;
