//! Mirror sessions for trimmed packets, on chips that can only trim what they mirror. Each port has
//! two sessions back out of it, which keep a header, or a header with digest and tag.

use ultima_p4::names::cut;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session};
use ultima_p4runtime::v1::{self, CloneSessionEntry};

use super::entity::Kind;
use super::{Entity, SchemaError, table};
use crate::fabric::{Fabric, SwitchId};
use crate::target::PortNumber;

/// The first session id; the id below it is the loss session's.
const FIRST: u32 = 2;

/// A mirror session that trims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CutSession {
    /// The session's id.
    pub id: u32,
    /// The egress port of the packets.
    pub port: PortNumber,
    /// The bytes that are kept, including those in front of the frame.
    pub bytes: u16,
}

impl Kind for CutSession {
    fn entity(&self, _: &Names) -> Result<v1::Entity, SchemaError> {
        let back = Replica {
            port: self.port.0.into(),
            instance: 0,
        };
        let session = CloneSessionEntry {
            packet_length_bytes: self.bytes.into(),
            ..clone_session(self.id, [back])?
        };
        Ok(session.into())
    }
}

/// The device port for which Stratum accepts no session (`BfrtPreManager::WriteCloneSessionEntry`).
/// Packets at this port are marked but never trimmed.
const UNCUT: PortNumber = PortNumber(0);

/// A warning about a link at a port that cannot trim; none if there is no such link.
pub fn uncut(fabric: &Fabric, names: &Names, switch: SwitchId) -> Option<String> {
    names.table(cut::TABLE).ok()?;
    fabric.ports_of(switch).find(|port| *port == UNCUT)?;
    let switch = fabric.switch(switch);
    let label = switch.port_label(UNCUT);
    Some(format!(
        "switch {}: port {label} is device port {UNCUT}, for which Stratum accepts no mirror session, so its packets are never trimmed; \
         link the port to a host without jobs",
        switch.name
    ))
}

/// The entries that a switch needs to trim, if its program needs any.
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
