//! A job's multicast group on one switch.

use std::fmt;

use ultima_p4::names::replica::TRUNK_RID;

use crate::job::{GroupId, Rank};
use crate::target::PortNumber;

/// One copy that the replication engine makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Copy {
    /// Where it leaves.
    pub port: PortNumber,
    /// What egress knows it by: the receiver's rank, or [`TRUNK_RID`] for all behind a trunk.
    pub rid: u16,
}

impl Copy {
    /// Whether it goes on to another switch.
    pub fn is_branch(&self) -> bool {
        self.rid == TRUNK_RID
    }

    /// A copy for one rank on this switch.
    pub fn to_rank(port: PortNumber, rank: Rank) -> Self {
        Copy { port, rid: rank.0 }
    }

    /// A copy for all ranks behind a trunk.
    pub fn to_switch(port: PortNumber) -> Self {
        Copy {
            port,
            rid: TRUNK_RID,
        }
    }
}

/// A multicast group. Ports repeat where several ranks sit behind one, pairs of port and RID don't.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Its number on the switch.
    pub id: GroupId,
    /// Its copies.
    pub copies: Vec<Copy>,
}

impl Group {
    /// How many nodes it takes of the replication engine: one for each RID.
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
