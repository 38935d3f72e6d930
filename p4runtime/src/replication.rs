//! Entries of the packet replication engine: multicast groups and clone sessions (P4Runtime §9.5).

use crate::bytestring::{BytestringError, decode};
use crate::v1::{self, replica::PortKind};
use std::collections::BTreeSet;

/// One copy of a packet. In egress its RID (`egress_rid` in v1model, `instance` in PSA) distinguishes copies to the same
/// port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    /// Egress port.
    pub port: u32,
    /// The copy's RID.
    pub instance: u32,
}

/// Why replicas do not form a valid entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicationError {
    /// Zero means "all" in a read (§9.5.1.1, §9.5.2.1).
    #[error("{kind} 0: expected an id of 1 or more (0 means all in a read)")]
    ZeroId {
        /// Multicast group or clone session.
        kind: &'static str,
    },
    /// Two replicas with equal port and RID (§9.5.1).
    #[error(
        "{kind} {id}: two replicas with port {} and instance {}, expected each pair once",
        replica.port, replica.instance
    )]
    Repeated {
        /// Multicast group or clone session.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// The copy.
        replica: Replica,
    },
}

/// Why a received replica has no valid port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Neither `port` nor `egress_port` is set.
    #[error("replica with instance {instance} has no port")]
    Missing {
        /// The replica's RID.
        instance: u32,
    },
    /// `port` is not a 32-bit number.
    #[error("replica with instance {instance} has an invalid port: {source}")]
    Invalid {
        /// The replica's RID.
        instance: u32,
        /// The problem.
        source: BytestringError,
    },
}

/// Returns a multicast group with these replicas, sorted, so that equal groups are equal messages.
///
/// # Errors
/// [`ReplicationError`] when the id is 0 or a pair of port and RID occurs twice.
pub fn multicast_group(
    id: u32,
    replicas: impl IntoIterator<Item = Replica>,
) -> Result<v1::MulticastGroupEntry, ReplicationError> {
    let replicas = entry_replicas("multicast group", id, replicas)?;
    Ok(v1::MulticastGroupEntry {
        multicast_group_id: id,
        replicas,
        ..Default::default()
    })
}

/// Returns a clone session with these replicas, sorted. It copies whole packets, in class of service 0.
///
/// # Errors
/// [`ReplicationError`] when the id is 0 or a pair of port and RID occurs twice.
pub fn clone_session(
    id: u32,
    replicas: impl IntoIterator<Item = Replica>,
) -> Result<v1::CloneSessionEntry, ReplicationError> {
    let replicas = entry_replicas("clone session", id, replicas)?;
    Ok(v1::CloneSessionEntry {
        session_id: id,
        replicas,
        ..Default::default()
    })
}

fn entry_replicas(
    kind: &'static str,
    id: u32,
    replicas: impl IntoIterator<Item = Replica>,
) -> Result<Vec<v1::Replica>, ReplicationError> {
    if id == 0 {
        return Err(ReplicationError::ZeroId { kind });
    }
    let mut sorted = BTreeSet::new();
    for replica in replicas {
        if !sorted.insert(replica) {
            return Err(ReplicationError::Repeated { kind, id, replica });
        }
    }
    Ok(sorted.into_iter().map(v1::Replica::from).collect())
}

impl From<Replica> for v1::Replica {
    fn from(replica: Replica) -> Self {
        // `port` supersedes `egress_port` since 1.4, but all servers, BMv2's among them, read `egress_port`.
        #[allow(deprecated)]
        let port = PortKind::EgressPort(replica.port);
        v1::Replica {
            port_kind: Some(port),
            instance: replica.instance,
            ..Default::default()
        }
    }
}

/// Reads a replica with a port in either form. Ignores backup replicas.
impl TryFrom<&v1::Replica> for Replica {
    type Error = PortError;

    fn try_from(replica: &v1::Replica) -> Result<Self, PortError> {
        let instance = replica.instance;
        #[allow(deprecated)]
        let port = match &replica.port_kind {
            Some(PortKind::EgressPort(port)) => *port,
            Some(PortKind::Port(bytes)) => {
                decode(bytes).map_err(|source| PortError::Invalid { instance, source })?
            }
            None => return Err(PortError::Missing { instance }),
        };
        Ok(Replica { port, instance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(pairs: &[(u32, u32)]) -> Vec<Replica> {
        pairs
            .iter()
            .map(|&(port, instance)| Replica { port, instance })
            .collect()
    }

    #[test]
    fn groups_with_equal_copies_are_equal() {
        let one = multicast_group(5, copies(&[(3, 1), (1, 2), (3, 0)])).unwrap();
        let other = multicast_group(5, copies(&[(3, 0), (3, 1), (1, 2)])).unwrap();
        assert_eq!(one, other);
        let read: Result<Vec<_>, _> = one.replicas.iter().map(Replica::try_from).collect();
        assert_eq!(read.unwrap(), copies(&[(1, 2), (3, 0), (3, 1)]));
    }

    #[test]
    fn repeated_copies_and_zero_ids_are_refused() {
        assert_eq!(
            multicast_group(5, copies(&[(3, 1), (3, 1)]))
                .unwrap_err()
                .to_string(),
            "multicast group 5: two replicas with port 3 and instance 1, expected each pair once"
        );
        assert_eq!(
            clone_session(0, copies(&[])),
            Err(ReplicationError::ZeroId {
                kind: "clone session"
            })
        );
    }

    #[test]
    fn ports_are_read_both_ways() {
        let with = |port_kind| v1::Replica {
            port_kind,
            instance: 9,
            ..Default::default()
        };
        let bytes = with(Some(PortKind::Port(vec![0, 1, 2])));
        assert_eq!(
            Replica::try_from(&bytes),
            Ok(Replica {
                port: 258,
                instance: 9
            })
        );
        let empty = with(Some(PortKind::Port(vec![])));
        assert_eq!(
            Replica::try_from(&empty),
            Err(PortError::Invalid {
                instance: 9,
                source: BytestringError::Empty
            })
        );
        assert_eq!(
            Replica::try_from(&with(None)),
            Err(PortError::Missing { instance: 9 })
        );
    }
}
