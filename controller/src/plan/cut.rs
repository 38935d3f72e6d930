//! Where packets that are cut go on, on chips that cut only what they mirror: for each port two mirror sessions, which lead
//! back out of it and keep as many bytes as a header has, and a header with digest and tag.

use std::fmt;

use ultima_p4::names::cut;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::CloneSessionEntry;

use super::{Entity, SchemaError, table};
use crate::fabric::{Fabric, SwitchId};
use crate::target::PortNumber;

/// The first session; below it is the one that tells of losses.
const FIRST: u32 = 2;

/// A session that cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CutSession {
    /// Its number.
    pub id: u32,
    /// The port that packets were on their way to.
    pub port: PortNumber,
    /// Bytes that stay, those in front of the frame included.
    pub bytes: u16,
}

impl CutSession {
    /// The session's entry.
    pub(super) fn entry(self) -> Result<CloneSessionEntry, SchemaError> {
        let back = Replica {
            port: self.port.0.into(),
            instance: 0,
        };
        Ok(CloneSessionEntry {
            packet_length_bytes: self.bytes.into(),
            ..clone_session(self.id, [back])?
        })
    }
}

impl fmt::Display for CutSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clone session {} to port {}", self.id, self.port)
    }
}

/// The device port to which Stratum takes no session (`BfrtPreManager::WriteCloneSessionEntry`): what leaves by it is not cut, only
/// marked.
const UNCUT: PortNumber = PortNumber(0);

/// What to say of a switch with a link at a port by which it can cut nothing; none if there is no such link.
pub fn uncut(fabric: &Fabric, names: &Names, switch: SwitchId) -> Option<String> {
    names.table(cut::TABLE).ok()?;
    fabric.ports_of(switch).find(|port| *port == UNCUT)?;
    let switch = fabric.switch(switch);
    let label = switch.port_label(UNCUT);
    Some(format!(
        "switch {}: port {label} is device port {UNCUT}, to which Stratum takes no mirror session, so that what leaves by it is marked and never \
         cut; give the port to a host that takes part in no job",
        switch.name
    ))
}

/// What a switch needs to cut, if its program has to be told of it.
pub fn cuts(fabric: &Fabric, names: &Names, switch: SwitchId) -> Vec<Entity> {
    if names.table(cut::TABLE).is_err() {
        return Vec::new();
    }
    let mut ports: Vec<PortNumber> = fabric
        .ports_of(switch)
        .filter(|port| *port != UNCUT)
        .collect();
    ports.sort_unstable();
    let of_port = |(index, egress): (u16, PortNumber)| {
        let first = FIRST + 2 * u32::from(index);
        let kinds = [(false, cut::PLAIN_BYTES), (true, cut::SEALED_BYTES)];
        (kinds.into_iter().zip(first..)).flat_map(move |((sealed, bytes), id)| {
            let session = CutSession {
                id,
                port: egress,
                bytes,
            };
            let row = table::Cut {
                egress,
                sealed,
                session: id,
            };
            [Entity::CutSession(session), Entity::Cut(row)]
        })
    };
    (0..).zip(ports).flat_map(of_port).collect()
}
