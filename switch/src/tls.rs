//! TLS for the gRPC server.

use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Server, ServerTlsConfig};
use ultima_grpc::tls;
pub use ultima_grpc::tls::{IdentityFiles, TlsError};

/// How long a client has for its part of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The files of a server that speaks TLS only, all in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and key.
    pub identity: IdentityFiles,
    /// The authorities of clients' certificates. With them, only clients that have one are served
    /// (mutual TLS).
    pub client_ca: Option<PathBuf>,
}

/// Makes a server speak TLS.
pub(crate) fn secure(server: Server, files: &TlsFiles) -> Result<Server, TlsError> {
    let mut config = ServerTlsConfig::new()
        .identity(files.identity.read()?)
        .timeout(HANDSHAKE);
    if let Some(path) = &files.client_ca {
        config = config.client_ca_root(tls::authorities(path)?);
    }
    let secured = server.tls_config(config);
    secured.map_err(|error| files.identity.mismatch(&error))
}
