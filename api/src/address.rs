//! A controller's address: a TCP address, or a path in the file system, which all network namespaces
//! share.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The default address: the port next to P4Runtime's 9559.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9555);

/// The prefix of a socket's path.
pub const UNIX: &str = "unix:";

/// A server's address, written `127.0.0.1:9555` or `unix:/run/ultima.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket, which is removed when the server stops.
    Unix(PathBuf),
}

/// The error for a malformed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:9555, or unix:PATH")]
pub struct ListenError;

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        match text.strip_prefix(UNIX) {
            Some("") => Err(ListenError),
            Some(path) => Ok(Listen::Unix(path.into())),
            None => text.parse().map(Listen::Tcp).map_err(|_| ListenError),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Listen::Tcp(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_text() {
        for text in ["127.0.0.1:9555", "[::1]:0", "unix:/run/a.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for wrong in ["", "unix:", "localhost:9555", "127.0.0.1"] {
            assert_eq!(wrong.parse::<Listen>(), Err(ListenError), "{wrong}");
        }
    }
}
