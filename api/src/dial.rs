//! Connecting to a controller.

use std::error::Error;
use std::io;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use ultima_grpc::tls::ClientTls;
use ultima_grpc::transport;

use crate::address::UNIX;
use crate::error::{ClientError, sources};

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);

/// Interval of keepalive pings. Members listen for hours, and nothing else detects a machine that
/// vanished.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Timeout of a keepalive ping; a busy controller needs a while.
const ALIVE: Duration = Duration::from_secs(5);

/// True if the system denies this user the connection, as to a socket in another user's folder.
fn is_denied(error: &(dyn Error + 'static)) -> bool {
    sources(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Returns the endpoint of a controller at `address`, `HOST:PORT` or `unix:PATH`. A Unix socket needs no TLS: its file
/// has an owner.
///
/// # Errors
/// The address is malformed.
pub fn endpoint(
    address: &str,
    tls: Option<&ClientTls>,
) -> Result<Endpoint, tonic::transport::Error> {
    match address.starts_with(UNIX) {
        true => Endpoint::from_shared(address.to_owned()),
        false => transport::endpoint(address, tls),
    }
}

/// Connects to the controller at `address`.
pub(crate) async fn dial(address: &str, tls: Option<&ClientTls>) -> Result<Channel, ClientError> {
    let no_answer =
        |error: tonic::transport::Error| match address.starts_with(UNIX) && is_denied(&error) {
            true => ClientError::NotOurs {
                address: address.to_owned(),
            },
            false => ClientError::no_answer(&error, address),
        };
    let endpoint = endpoint(address, tls).map_err(no_answer)?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(ALIVE)
        .keep_alive_while_idle(true)
        // gRPC sends a rejection's message in a header, percent-encoded.
        .http2_max_header_list_size(64 << 10);
    endpoint.connect().await.map_err(no_answer)
}
