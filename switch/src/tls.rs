//! TLS for the gRPC server: which files, and what can be wrong with them.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

/// How long a client has for its part of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The files of a server that speaks TLS only, all in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and the authority that clients trust.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authorities of clients' certificates. With them, only clients that have one are served
    /// (mutual TLS).
    pub client_ca: Option<PathBuf>,
}

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// The files do not go together.
    #[error("{cert} and {key}: {what}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// Makes a server speak TLS.
pub(crate) fn secure(server: Server, files: &TlsFiles) -> Result<Server, TlsError> {
    let (cert, key) = (certificates(&files.cert)?, private_key(&files.key)?);
    let mut config = ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .timeout(HANDSHAKE);
    if let Some(path) = &files.client_ca {
        config = config.client_ca_root(Certificate::from_pem(certificates(path)?));
    }
    server.tls_config(config).map_err(|error| TlsError::Pair {
        cert: files.cert.clone(),
        key: files.key.clone(),
        what: reasons(&error),
    })
}

fn certificates(path: &Path) -> Result<Vec<u8>, TlsError> {
    let pem = read(path)?;
    let wrong = |what: String| TlsError::Content {
        path: path.to_owned(),
        what: format!("{what}: expected certificates in PEM format"),
    };
    let mut found = CertificateDer::pem_slice_iter(&pem).peekable();
    if found.peek().is_none() {
        return Err(wrong("there is no certificate".to_owned()));
    }
    for certificate in found {
        certificate.map_err(|error| wrong(error.to_string()))?;
    }
    Ok(pem)
}

fn private_key(path: &Path) -> Result<Vec<u8>, TlsError> {
    let pem = read(path)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(_) => Ok(pem),
        Err(error) => Err(TlsError::Content {
            path: path.to_owned(),
            what: format!("{error}: expected a private key in PEM format"),
        }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

/// An error with all that caused it, in one line.
fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text.replace('\n', " ")
}
