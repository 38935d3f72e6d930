//! A [`Target`] for tests of controllers: the embedded switch presents itself as a Tofino behind Stratum.
//!
//! The switch runs Ultima's program for v1model, whatever a controller pushes. This crate owns the ports, the limits, and
//! the rules that controllers meet in Stratum (`stratum/hal/lib/barefoot`):
//!
//! - a program is a BfPipelineConfig;
//! - a batch continues on error;
//! - a read of meters, counters or digests names one by its id;
//! - a clone session is one mirror to one port;
//! - a digest entry keeps its timeout only;
//! - a meter keeps as many bits as the chip's floating point holds.

use std::collections::BTreeSet;

use tonic::Code;
use ultima_p4runtime::tofino::{Chip, METER, TofinoProgram};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{self, CloneSessionEntry, digest_entry};
use ultima_switch::engine::{Limits, Replica};
use ultima_switch::target::{Refusal, Target};

/// Number of classes of service of a clone session.
const CLASSES: u32 = 8;

/// A switch with this chip.
#[derive(Debug, Clone, Copy)]
pub struct Tofino(pub &'static Chip);

impl Target for Tofino {
    fn limits(&self, limits: Limits) -> Limits {
        Limits {
            groups: usize::from(u16::MAX),
            replicas: usize::from(u16::MAX),
            ..limits
        }
    }

    fn check_port(&self, port: u16) -> Result<(), Refusal> {
        let checked = self.0.check_front_panel(port);
        checked.map_err(|fault| self.refusal(Code::InvalidArgument, fault.to_string()))
    }

    fn check_read(&self, entity: &Entity) -> Result<(), Refusal> {
        let (what, id) = match entity {
            Entity::MeterEntry(entry) => ("meter", entry.meter_id),
            Entity::CounterEntry(entry) => ("counter", entry.counter_id),
            Entity::DigestEntry(entry) => ("digest", entry.digest_id),
            _ => return Ok(()),
        };
        match id {
            0 => Err(self.refusal(
                Code::InvalidArgument,
                format!("wildcard read of all {what}s: expected the id of one {what}"),
            )),
            _ => Ok(()),
        }
    }

    fn admit(&self, kind: UpdateType, entity: &mut Entity) -> Result<(), Refusal> {
        match entity {
            Entity::PacketReplicationEngineEntry(entry) => match &entry.r#type {
                _ if kind == UpdateType::Delete => Ok(()),
                Some(PreType::MulticastGroupEntry(group)) => {
                    let mut replicas = group.replicas.iter();
                    replicas.try_for_each(|replica| self.check_replica(replica).map(drop))
                }
                Some(PreType::CloneSessionEntry(session)) => self.check_session(session),
                None => Ok(()),
            },
            Entity::MeterEntry(entry) => {
                entry.config = entry.config.as_ref().map(|config| METER.kept(config));
                Ok(())
            }
            Entity::DigestEntry(entry) => match (&mut entry.config, kind) {
                (_, UpdateType::Delete) => Ok(()),
                (None, _) => {
                    Err(self.refusal(Code::InvalidArgument, "digest entry: config is missing"))
                }
                (Some(config), _) => {
                    *config = digest_entry::Config {
                        max_timeout_ns: config.max_timeout_ns,
                        ..Default::default()
                    };
                    Ok(())
                }
            },
            Entity::DirectMeterEntry(_) | Entity::ValueSetEntry(_) => Err(self.refusal(
                Code::Unimplemented,
                "direct meters and value sets are not served",
            )),
            _ => Ok(()),
        }
    }

    fn check_room(
        &self,
        others: &mut dyn Iterator<Item = (u32, &[Replica])>,
        (id, replicas): (u32, &[Replica]),
    ) -> Result<(), Refusal> {
        let needed: usize = others.map(|(_, other)| nodes(other)).sum::<usize>() + nodes(replicas);
        match needed > self.0.nodes as usize {
            false => Ok(()),
            true => Err(self.refusal(
                Code::ResourceExhausted,
                format!(
                    "multicast group {id}: all groups together need {needed} nodes, the chip has {}",
                    self.0.nodes
                ),
            )),
        }
    }

    fn pipeline(&self, device_config: &[u8]) -> Result<Vec<u8>, Refusal> {
        match TofinoProgram::unpack(device_config) {
            Ok(_) => Ok(ultima_p4::v1model().device_config.to_vec()),
            Err(error) => Err(self.refusal(Code::InvalidArgument, error.to_string())),
        }
    }
}

impl Tofino {
    fn refusal(&self, code: Code, what: impl AsRef<str>) -> Refusal {
        Refusal {
            code,
            message: format!("{}: {}", self.0.name, what.as_ref()),
        }
    }

    fn check_session(&self, session: &CloneSessionEntry) -> Result<(), Refusal> {
        let id = session.session_id;
        let wrong = |what: String| {
            let what = format!("clone session {id}: {what}");
            Err(self.refusal(Code::InvalidArgument, what))
        };
        if id > self.0.sessions {
            return wrong(format!("expected an id from 1 to {}", self.0.sessions));
        }
        if session.class_of_service >= CLASSES {
            let class = session.class_of_service;
            return wrong(format!(
                "class of service {class}, expected 0 to {}",
                CLASSES - 1
            ));
        }
        let [replica] = session.replicas.as_slice() else {
            return wrong(format!("{} replicas, expected 1", session.replicas.len()));
        };
        if replica.instance != 0 {
            return wrong(format!("instance {}, expected 0", replica.instance));
        }
        match self.check_replica(replica)? {
            0 => wrong("port 0, expected another device port".into()),
            _ => Ok(()),
        }
    }

    /// Returns a replica's port if the chip has it. The switch itself rejects a malformed port.
    fn check_replica(&self, replica: &v1::Replica) -> Result<u32, Refusal> {
        let Ok(read) = ultima_p4runtime::replication::Replica::try_from(replica) else {
            return Ok(u32::MAX);
        };
        match u16::try_from(read.port) {
            Ok(port) if self.0.has_port(port) => Ok(read.port),
            _ => Err(self.refusal(
                Code::InvalidArgument,
                format!("there is no device port {}", read.port),
            )),
        }
    }
}

/// Returns the number of nodes that a group needs: one for each RID.
fn nodes(replicas: &[Replica]) -> usize {
    let rids: BTreeSet<u16> = replicas.iter().map(|replica| replica.rid).collect();
    rids.len()
}
