//! Errors of a switch.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ultima_grpc::tls::TlsError;
use ultima_p4runtime::text::TextError;

use crate::pipeline::ConfigError;

/// Why a switch does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// Port numbers, attachments or wires are invalid.
    #[error("{0}")]
    Ports(String),
    /// A port's attachment cannot be opened.
    #[error("port {port}: cannot attach to {attachment}: {source}")]
    Attach {
        /// The port.
        port: u16,
        /// The attachment.
        attachment: String,
        /// The reason.
        source: io::Error,
    },
    /// The P4Info file cannot be parsed.
    #[error("P4Info: {0}")]
    P4Info(#[from] TextError),
    /// The program does not load.
    #[error("program: {0}")]
    Program(#[from] ConfigError),
    /// The folder for captures is not writable.
    #[error("captures in {dir}: {source}")]
    Capture {
        /// The folder.
        dir: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// TLS cannot be configured.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The gRPC server cannot listen at the address.
    #[error("cannot serve gRPC at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// The forwarding thread cannot start, or ended by itself.
    #[error("forwarding: {0}")]
    Forwarding(io::Error),
}
