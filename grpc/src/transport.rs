//! Client connections to gRPC servers, and texts of connection errors.

use tonic::transport::Endpoint;

use crate::tls::ClientTls;

pub use crate::reasons::{one_line, reasons, root_cause};

/// Returns the endpoint of the server at `authority` (`HOST:PORT`), with TLS or in plain text, without connecting. With TLS,
/// the server's certificate must name HOST.
///
/// # Errors
/// `authority` is not `HOST:PORT`.
pub fn endpoint(
    authority: &str,
    tls: Option<&ClientTls>,
) -> Result<Endpoint, tonic::transport::Error> {
    let Some(tls) = tls else {
        return Endpoint::from_shared(format!("http://{authority}"));
    };
    let endpoint = Endpoint::from_shared(format!("https://{authority}"))?;
    // A certificate names `::1` without the brackets of a URI.
    let host = endpoint.uri().host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let config = tls.config(host);
    endpoint.tls_config(config)
}
