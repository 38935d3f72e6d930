//! TLS between controllers and switches: its files, and what can be wrong with them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::transport;

/// Why there can be no TLS.
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

/// One's own certificate and its key, each in a file in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, and those between it and the authority that the other side trusts.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl IdentityFiles {
    /// Reads both.
    ///
    /// # Errors
    /// One cannot be read, or is none.
    pub fn read(&self) -> Result<Identity, TlsError> {
        let (cert, key) = (certificates(&self.cert)?, private_key(&self.key)?);
        Ok(Identity::from_pem(cert, key))
    }

    /// That the two do not go together, as `error` says.
    pub fn mismatch(&self, error: &tonic::transport::Error) -> TlsError {
        TlsError::Pair {
            cert: self.cert.clone(),
            key: self.key.clone(),
            what: transport::reasons(error),
        }
    }
}

/// The certificates in a file in PEM format.
///
/// # Errors
/// It cannot be read, or there are none in it.
pub fn authorities(path: &Path) -> Result<Certificate, TlsError> {
    certificates(path).map(Certificate::from_pem)
}

/// How a client speaks TLS: whom it trusts, and who it is.
#[derive(Clone)]
pub struct ClientTls(ClientTlsConfig);

impl ClientTls {
    /// Trusts servers whose certificate is of one of the authorities in the file `ca`, in PEM format,
    /// and shows them `identity`, which those want to see that serve known clients only (mutual TLS).
    /// The files are read now.
    ///
    /// # Errors
    /// A file cannot be read, is not what it should be, or the two of the identity do not go
    /// together.
    pub fn load(ca: &Path, identity: Option<&IdentityFiles>) -> Result<Self, TlsError> {
        let mut config = ClientTlsConfig::new().ca_certificate(authorities(ca)?);
        if let Some(files) = identity {
            config = config.identity(files.read()?);
            // What does not go together shows when it is used.
            let anywhere = Endpoint::from_static("https://localhost");
            let used = anywhere.tls_config(config.clone());
            used.map_err(|error| files.mismatch(&error))?;
        }
        Ok(ClientTls(config))
    }

    /// For a server that is called `host`.
    pub(crate) fn config(&self, host: &str) -> ClientTlsConfig {
        self.0.clone().domain_name(host)
    }
}

/// Without the key.
impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
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
