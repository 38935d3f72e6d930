//! Client connections to gRPC servers, and texts of connection errors.

use std::error::Error;

use tonic::transport::Endpoint;

use crate::tls::ClientTls;

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

/// Returns the innermost cause on one line: "Connection refused" is more useful than "transport error".
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string())
}

/// Returns an error and all its causes on one line.
pub fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    one_line(&text)
}

/// Returns a server's message on one line of limited length.
pub fn one_line(text: &str) -> String {
    const MOST: usize = 300;
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MOST) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}
