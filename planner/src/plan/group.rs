//! A job's multicast group on one switch.

use std::fmt;

use ultima_p4::names::replica::TRUNK_RID;

use crate::job::{GroupId, Rank};
use crate::target::PortNumber;

/// A replica of the replication engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Copy {
    /// The egress port.
    pub port: PortNumber,
    /// The RID in egress: the receiver's rank, or [`TRUNK_RID`] for all ranks behind a trunk.
    pub rid: u16,
}

impl Copy {
    /// True if the replica goes to another switch.
    pub(crate) fn is_branch(&self) -> bool {
        self.rid == TRUNK_RID
    }

    /// A replica for a rank on this switch.
    pub(crate) fn to_rank(port: PortNumber, rank: Rank) -> Self {
        Copy { port, rid: rank.0 }
    }

    /// A replica for all ranks behind a trunk.
    pub(crate) fn to_switch(port: PortNumber) -> Self {
        Copy {
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
    pub copies: Vec<Copy>,
}

impl Group {
    /// The replication nodes of the group: one per RID.
    pub fn nodes(&self) -> usize {
        let ranks = self.copies.iter().filter(|copy| !copy.is_branch()).count();
        ranks + usize::from(ranks < self.copies.len())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "multicast group {} with {} replicas",
            self.id.0,
            self.copies.len()
        )
    }
}
