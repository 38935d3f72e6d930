//! A job's multicast group on one switch.

use ultima_p4::names::replica::TRUNK_RID;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, multicast_group};
use ultima_p4runtime::v1::{self, Update};

use super::SchemaError;
use super::entity::Kind;
use crate::job::{GroupId, Rank};
use crate::target::PortNumber;

/// A replica of the replication engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupReplica {
    /// The egress port.
    pub port: PortNumber,
    /// The RID in egress: the receiver's rank, or [`TRUNK_RID`] for all ranks behind a trunk.
    pub rid: u16,
}

impl GroupReplica {
    /// True if the replica goes to another switch.
    pub(crate) fn is_branch(&self) -> bool {
        self.rid == TRUNK_RID
    }

    /// A replica for a rank on this switch.
    pub(crate) fn to_rank(port: PortNumber, rank: Rank) -> Self {
        GroupReplica { port, rid: rank.0 }
    }

    /// A replica for all ranks behind a trunk.
    pub(crate) fn to_switch(port: PortNumber) -> Self {
        GroupReplica {
            port,
            rid: TRUNK_RID,
        }
    }
}

/// A multicast group. A port may repeat, for several ranks behind it; a pair of port and RID may
/// not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The group's id.
    pub id: GroupId,
    /// The replicas.
    pub replicas: Vec<GroupReplica>,
}

impl Group {
    /// The replication nodes of the group: one per RID.
    pub fn nodes(&self) -> usize {
        let ranks = self
            .replicas
            .iter()
            .filter(|replica| !replica.is_branch())
            .count();
        ranks + usize::from(ranks < self.replicas.len())
    }
}

impl Kind for Group {
    fn entity(&self, _: &Names) -> Result<v1::Entity, SchemaError> {
        let replicas = self.replicas.iter().map(|replica| Replica {
            port: replica.port.0.into(),
            instance: replica.rid.into(),
        });
        Ok(multicast_group(self.id.0.into(), replicas)?.into())
    }

    fn removal(&self, _: &Names) -> Result<Option<Update>, SchemaError> {
        let key = multicast_group(self.id.0.into(), [])?;
        Ok(Some(Update::delete(key)))
    }
}
