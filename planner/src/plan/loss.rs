//! The loss reports of a switch: a digest, and a clone session for losses that egress detects.

use std::time::Duration;

use ultima_p4::names::loss;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::{self, CloneSessionEntry, digest_entry};

use super::SchemaError;
use super::entity::Kind;
use crate::target::{PortNumber, Target};

/// The longest time for which a loss report waits for others to share a list.
const MAX_WAIT: Duration = Duration::from_millis(10);
/// The most reports in a list.
const MAX_LIST: i32 = 64;
/// The timeout of an unacknowledged list. Until then BMv2 does not report the same loss again.
const ACK_WAIT: Duration = Duration::from_secs(1);

/// The subscription to the digest of lossy operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LossDigest;

/// The clone session that brings a lossy operation from egress back to ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LossSession {
    /// The target's egress port whose packets come back to ingress.
    pub port: PortNumber,
    /// The bytes that are kept of a packet; none for all.
    pub bytes: Option<u16>,
}

impl LossSession {
    /// The session of a target.
    pub fn of(target: &Target) -> Self {
        LossSession {
            port: target.loss_session,
            bytes: target.loss_bytes,
        }
    }

    /// The session's P4Runtime entry.
    pub fn entry(self) -> Result<CloneSessionEntry, SchemaError> {
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

impl Kind for LossDigest {
    fn entity(&self, names: &Names) -> Result<v1::Entity, SchemaError> {
        let nanoseconds = |time: Duration| time.as_nanos() as i64;
        let entry = names.digest(loss::DIGEST)?.entry(digest_entry::Config {
            max_timeout_ns: nanoseconds(MAX_WAIT),
            max_list_size: MAX_LIST,
            ack_timeout_ns: nanoseconds(ACK_WAIT),
        });
        Ok(entry.into())
    }
}

impl Kind for LossSession {
    fn entity(&self, _: &Names) -> Result<v1::Entity, SchemaError> {
        Ok(self.entry()?.into())
    }
}
