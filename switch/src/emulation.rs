//! A switch that presents itself as a Tofino behind Stratum: its ports, its limits, what it takes and what it keeps.
//!
//! An emulation for tests of controllers, and no more: what forwards is a program for v1model. Of Stratum it has what a
//! controller meets (`stratum/hal/lib/barefoot`): programs come as BfPipelineConfig; batches continue on error; wildcards of
//! meters and counters need their id; a clone session is one mirror to one port; of a digest's subscription its timeout is
//! kept, and of meters what the chip's floating point holds.

use std::collections::BTreeSet;

use tonic::Code;
use ultima_p4runtime::tofino::{Chip, METER};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    CloneSessionEntry, MulticastGroupEntry, Replica, digest_entry, write_request::Atomicity,
};

use crate::engine::Limits;

/// What is emulated, and with what.
#[derive(Debug, Clone)]
pub struct Emulation {
    /// The chip.
    pub chip: &'static Chip,
    /// What forwards, as p4c's BMv2 backend printed it: the same program, compiled for v1model.
    pub program: Vec<u8>,
}

impl Emulation {
    /// Limits of a switch that has room for all that the chip has.
    pub fn limits(&self, limits: Limits) -> Limits {
        Limits {
            groups: usize::from(u16::MAX),
            replicas: usize::from(u16::MAX),
            ..limits
        }
    }
}

/// What Stratum would not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{chip}: {what}")]
pub struct Refusal {
    chip: &'static str,
    what: String,
    /// As which it is answered.
    pub code: Code,
}

/// The highest class of service of a clone session, and one more.
const CLASSES: u32 = 8;

fn refusal(chip: &Chip, code: Code, what: impl Into<String>) -> Refusal {
    Refusal {
        chip: chip.name,
        what: what.into(),
        code,
    }
}

/// Whether a batch is taken.
///
/// # Errors
/// It is not.
pub fn check_batch(chip: &Chip, atomicity: i32) -> Result<(), Refusal> {
    match atomicity == i32::from(Atomicity::ContinueOnError) {
        true => Ok(()),
        false => Err(refusal(
            chip,
            Code::Unimplemented,
            "batches are CONTINUE_ON_ERROR only",
        )),
    }
}

/// Whether `entity` can be read as it is asked for.
///
/// # Errors
/// It cannot.
pub fn check_read(chip: &Chip, entity: &Entity) -> Result<(), Refusal> {
    let (what, id) = match entity {
        Entity::MeterEntry(entry) => ("meter", entry.meter_id),
        Entity::CounterEntry(entry) => ("counter", entry.counter_id),
        Entity::DigestEntry(entry) => ("digest", entry.digest_id),
        _ => return Ok(()),
    };
    match id {
        0 => Err(refusal(
            chip,
            Code::InvalidArgument,
            format!("a wildcard of all {what}s; name one by its id"),
        )),
        _ => Ok(()),
    }
}

/// Whether an update is taken by a chip that holds these groups; what is not kept of it is taken out.
///
/// # Errors
/// It is not.
pub fn admit<'a>(
    chip: &Chip,
    groups: impl Iterator<Item = &'a MulticastGroupEntry>,
    kind: UpdateType,
    entity: &mut Entity,
) -> Result<(), Refusal> {
    match entity {
        Entity::PacketReplicationEngineEntry(entry) => match &entry.r#type {
            _ if kind == UpdateType::Delete => Ok(()),
            Some(PreType::MulticastGroupEntry(group)) => check_group(chip, groups, group),
            Some(PreType::CloneSessionEntry(session)) => check_session(chip, session),
            None => Ok(()),
        },
        Entity::MeterEntry(entry) => {
            entry.config = entry.config.as_ref().map(|config| METER.kept(config));
            Ok(())
        }
        Entity::DigestEntry(entry) => match (&mut entry.config, kind) {
            (_, UpdateType::Delete) => Ok(()),
            (None, _) => Err(refusal(
                chip,
                Code::InvalidArgument,
                "a digest entry without its config",
            )),
            (Some(config), _) => {
                *config = digest_entry::Config {
                    max_timeout_ns: config.max_timeout_ns,
                    ..Default::default()
                };
                Ok(())
            }
        },
        Entity::DirectMeterEntry(_) | Entity::ValueSetEntry(_) => Err(refusal(
            chip,
            Code::Unimplemented,
            "direct meters and value sets are not served",
        )),
        _ => Ok(()),
    }
}

fn check_group<'a>(
    chip: &Chip,
    groups: impl Iterator<Item = &'a MulticastGroupEntry>,
    group: &MulticastGroupEntry,
) -> Result<(), Refusal> {
    let id = group.multicast_group_id;
    for replica in &group.replicas {
        check_port(chip, replica)?;
    }
    let others = groups.filter(|other| other.multicast_group_id != id);
    let needed: usize = others.map(nodes).sum::<usize>() + nodes(group);
    match needed > chip.nodes as usize {
        false => Ok(()),
        true => Err(refusal(
            chip,
            Code::ResourceExhausted,
            format!(
                "multicast group {id}: {needed} nodes are needed, and there are {}",
                chip.nodes
            ),
        )),
    }
}

/// A node for each RID of a group.
fn nodes(group: &MulticastGroupEntry) -> usize {
    let rids: BTreeSet<u32> = group
        .replicas
        .iter()
        .map(|replica| replica.instance)
        .collect();
    rids.len()
}

fn check_session(chip: &Chip, session: &CloneSessionEntry) -> Result<(), Refusal> {
    let id = session.session_id;
    let wrong = |what: String| {
        let what = format!("clone session {id}: {what}");
        Err(refusal(chip, Code::InvalidArgument, what))
    };
    if id > chip.sessions {
        return wrong(format!("ids are 1 to {}", chip.sessions));
    }
    if session.class_of_service >= CLASSES {
        return wrong(format!("classes of service are 0 to {}", CLASSES - 1));
    }
    let [replica] = session.replicas.as_slice() else {
        return wrong(format!("{} replicas, expected 1", session.replicas.len()));
    };
    if replica.instance != 0 {
        return wrong(format!("instance {}, expected 0", replica.instance));
    }
    match check_port(chip, replica)? {
        0 => wrong("it leads to port 0".into()),
        _ => Ok(()),
    }
}

/// The port of a replica, if the chip has it. One that is no number at all is left to be refused as on any target.
fn check_port(chip: &Chip, replica: &Replica) -> Result<u32, Refusal> {
    let Ok(read) = ultima_p4runtime::replication::Replica::try_from(replica) else {
        return Ok(u32::MAX);
    };
    match u16::try_from(read.port) {
        Ok(port) if chip.has_port(port) => Ok(read.port),
        _ => Err(refusal(
            chip,
            Code::InvalidArgument,
            format!("there is no device port {}", read.port),
        )),
    }
}
