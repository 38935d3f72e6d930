//! What brings word of lossy operations to the controller: a digest, and a clone session for what egress sees.

use std::fmt;
use std::time::Duration;

use ultima_p4::names::loss;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::{CloneSessionEntry, DigestEntry, digest_entry};

use super::SchemaError;
use crate::target::{PortNumber, Target};

/// Longest that a loss waits for others to be told with.
const MAX_WAIT: Duration = Duration::from_millis(10);
/// Most that are told at once.
const MAX_LIST: i32 = 64;
/// When a list that nobody acknowledged is forgotten; until then BMv2 does not tell the same loss again.
const ACK_WAIT: Duration = Duration::from_secs(1);

/// The subscription to the digest of lossy operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LossDigest;

/// The clone session that brings a lossy operation from egress back to ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LossSession {
    /// Where it leads, which is the target's to say: packets that leave there come in again.
    pub port: PortNumber,
    /// Bytes that stay of a packet; all where there is no number.
    pub bytes: Option<u16>,
}

impl LossDigest {
    /// The digest's entry.
    pub(super) fn entry(self, names: &Names) -> Result<DigestEntry, SchemaError> {
        let nanoseconds = |time: Duration| time.as_nanos() as i64;
        Ok(names.digest(loss::DIGEST)?.entry(digest_entry::Config {
            max_timeout_ns: nanoseconds(MAX_WAIT),
            max_list_size: MAX_LIST,
            ack_timeout_ns: nanoseconds(ACK_WAIT),
        }))
    }
}

impl LossSession {
    /// That of a target.
    pub(crate) fn of(target: &Target) -> Self {
        LossSession {
            port: target.loss_session,
            bytes: target.loss_bytes,
        }
    }

    /// The session's entry.
    pub(crate) fn entry(self) -> Result<CloneSessionEntry, SchemaError> {
        let recirculated = Replica {
            port: self.port.0.into(),
            instance: 0,
        };
        Ok(CloneSessionEntry {
            packet_length_bytes: self.bytes.unwrap_or_default().into(),
            ..clone_session(loss::SESSION, [recirculated])?
        })
    }
}

impl fmt::Display for LossDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "digest {}", loss::DIGEST)
    }
}

impl fmt::Display for LossSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clone session {}", loss::SESSION)
    }
}
