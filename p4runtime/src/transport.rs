//! How clients reach a gRPC server, and what to say when they do not.

use std::error::Error;

use tonic::transport::Endpoint;

use crate::tls::ClientTls;

/// The server at `authority`, `HOST:PORT`, over TLS or in plain text. Nothing is sent yet. With TLS, the
/// server's certificate must name HOST.
///
/// # Errors
/// `authority` is none.
pub fn endpoint(
    authority: &str,
    tls: Option<&ClientTls>,
) -> Result<Endpoint, tonic::transport::Error> {
    let Some(tls) = tls else {
        return Endpoint::from_shared(format!("http://{authority}"));
    };
    let endpoint = Endpoint::from_shared(format!("https://{authority}"))?;
    // A certificate names `::1` without the brackets of an URI.
    let host = endpoint.uri().host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let config = tls.config(host);
    endpoint.tls_config(config)
}

/// The innermost reason, in one line: "Connection refused" says more than "transport error".
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string())
}

/// An error with all that caused it, in one line.
pub fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    one_line(&text)
}

/// What a server said, without line breaks and not endlessly.
pub fn one_line(text: &str) -> String {
    const MOST: usize = 300;
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MOST) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}
