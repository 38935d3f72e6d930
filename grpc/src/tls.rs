//! TLS: certificate and key files, and configurations of clients and servers.

#[cfg(feature = "http")]
pub use tokio_rustls::TlsAcceptor;

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
#[cfg(feature = "http")]
use {
    std::sync::Arc,
    tokio_rustls::rustls::server::WebPkiClientVerifier,
    tokio_rustls::rustls::{RootCertStore, ServerConfig},
};

use crate::reasons::reasons;

/// Why TLS cannot be configured.
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
    /// A file has the wrong content.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem, and what was expected.
        what: String,
    },
    /// Certificate and key do not match.
    #[error("{cert} and {key}: {what}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The problem.
        what: String,
    },
}

/// The files of a certificate and its private key, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate and its intermediate certificates.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl IdentityFiles {
    /// Reads both files.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content.
    pub fn read(&self) -> Result<Identity, TlsError> {
        let (cert, key) = (certificates(&self.cert)?, private_key(&self.key)?);
        Ok(Identity::from_pem(cert, key))
    }

    /// Returns the error for a certificate and key that do not match.
    pub fn mismatch(&self, error: &dyn Error) -> TlsError {
        TlsError::Pair {
            cert: self.cert.clone(),
            key: self.key.clone(),
            what: reasons(error),
        }
    }
}

/// Reads the certificates in a PEM file.
///
/// # Errors
/// The file cannot be read or contains no certificate.
pub fn authorities(path: &Path) -> Result<Certificate, TlsError> {
    certificates(path).map(Certificate::from_pem)
}

/// A client's TLS configuration: trusted authorities and its own identity. Each connection uses the present content of the
/// files.
#[derive(Clone)]
pub struct ClientTls {
    ca: PathBuf,
    identity: Option<IdentityFiles>,
    /// For connections while the files are incomplete.
    loaded: ClientTlsConfig,
}

impl ClientTls {
    /// Reads the files. The client trusts servers with a certificate of an authority in the PEM file `ca`, and presents
    /// `identity` to servers that ask for it (mutual TLS).
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content, or certificate and key do not match.
    pub fn load(ca: &Path, identity: Option<&IdentityFiles>) -> Result<Self, TlsError> {
        Ok(ClientTls {
            ca: ca.to_owned(),
            identity: identity.cloned(),
            loaded: Self::read(ca, identity)?,
        })
    }

    fn read(ca: &Path, identity: Option<&IdentityFiles>) -> Result<ClientTlsConfig, TlsError> {
        let mut config = ClientTlsConfig::new().ca_certificate(authorities(ca)?);
        if let Some(files) = identity {
            config = config.identity(files.read()?);
            // tonic checks the pair only when the configuration is used.
            let anywhere = Endpoint::from_static("https://localhost");
            let used = anywhere.tls_config(config.clone());
            used.map_err(|error| files.mismatch(&error))?;
        }
        Ok(config)
    }

    /// Returns the configuration for a server with the name `host`.
    pub(crate) fn config(&self, host: &str) -> ClientTlsConfig {
        let now = Self::read(&self.ca, self.identity.as_ref());
        let config = now.unwrap_or_else(|_| self.loaded.clone());
        config.domain_name(host)
    }
}

/// The files of a server that speaks TLS only, all in PEM format.
#[cfg(feature = "http")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// The server's certificate and key.
    pub identity: IdentityFiles,
    /// The authorities of clients' certificates. With them, only clients that have one are served
    /// (mutual TLS).
    pub client_ca: Option<PathBuf>,
}

/// The states of files: two are equal if no file was replaced or written in between.
#[cfg(feature = "http")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStates(Vec<Option<[i64; 4]>>);

#[cfg(feature = "http")]
impl ServerTls {
    /// The present states of the files.
    pub fn states(&self) -> FileStates {
        use std::os::unix::fs::MetadataExt as _;
        let own = [Some(&self.identity.cert), Some(&self.identity.key)];
        let files = own.into_iter().chain([self.client_ca.as_ref()]);
        let state = |path: &PathBuf| {
            let file = fs::metadata(path).ok()?;
            let (inode, size) = (file.ino() as i64, file.size() as i64);
            Some([inode, size, file.mtime(), file.mtime_nsec()])
        };
        FileStates(files.flatten().map(state).collect())
    }

    /// Accepts connections that speak TLS, HTTP/2 or HTTP/1.1, with the present content of the files.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content, or certificate and key do not match.
    pub fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let chain = |path: &Path| {
            let pem = certificates(path)?;
            let all = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
            Ok::<Vec<_>, TlsError>(all.collect())
        };
        let builder = ServerConfig::builder();
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(chain(path)?);
                let verifier = WebPkiClientVerifier::builder(roots.into()).build();
                let verifier = verifier.map_err(|error| TlsError::Content {
                    path: path.clone(),
                    what: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let IdentityFiles { cert, key } = &self.identity;
        let key = PrivateKeyDer::from_pem_slice(&private_key(key)?);
        let key = key.map_err(|error| self.identity.mismatch(&error))?;
        let config = builder.with_single_cert(chain(cert)?, key);
        let mut config = config.map_err(|error| self.identity.mismatch(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Omits the key.
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
        return Err(wrong("no certificate".to_owned()));
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
