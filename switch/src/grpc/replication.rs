//! Multicast groups and clone sessions (P4Runtime §9.5).

use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    self, CloneSessionEntry, MulticastGroupEntry, PacketReplicationEngineEntry, entity::Entity,
};

use super::error::EntityError;
use super::scan::{Scan, cost_of};
use crate::config::MAX_PORT;
use crate::engine::{CloneSession, Replica};
use crate::pipeline::Pipeline;

pub(super) fn write(
    pipeline: &mut Pipeline,
    update: UpdateType,
    entry: PacketReplicationEngineEntry,
) -> Result<(), EntityError> {
    match entry.r#type {
        Some(PreType::MulticastGroupEntry(group)) => write_group(pipeline, update, group),
        Some(PreType::CloneSessionEntry(session)) => write_session(pipeline, update, session),
        None => Err(empty()),
    }
}

fn write_group(
    pipeline: &mut Pipeline,
    update: UpdateType,
    group: MulticastGroupEntry,
) -> Result<(), EntityError> {
    let id = group.multicast_group_id;
    let pre = pipeline.engine.pre_mut();
    match update {
        UpdateType::Insert => pre.insert_group(id, replicas(&group.replicas)?)?,
        UpdateType::Modify => pre.modify_group(id, replicas(&group.replicas)?)?,
        _ => {
            pre.delete_group(id)?;
            pipeline.groups.remove(&id);
            return Ok(());
        }
    }
    pipeline.groups.insert(id, group);
    Ok(())
}

fn write_session(
    pipeline: &mut Pipeline,
    update: UpdateType,
    session: CloneSessionEntry,
) -> Result<(), EntityError> {
    let id = session.session_id;
    let pre = pipeline.engine.pre_mut();
    match update {
        UpdateType::Insert => pre.insert_session(id, clone_session(&session)?)?,
        UpdateType::Modify => pre.modify_session(id, clone_session(&session)?)?,
        _ => {
            pre.delete_session(id)?;
            pipeline.sessions.remove(&id);
            return Ok(());
        }
    }
    pipeline.sessions.insert(id, session);
    Ok(())
}

fn clone_session(session: &CloneSessionEntry) -> Result<CloneSession, EntityError> {
    let id = session.session_id;
    Ok(CloneSession {
        replicas: replicas(&session.replicas)?,
        class_of_service: u8::try_from(session.class_of_service).map_err(|_| {
            let class = session.class_of_service;
            EntityError::invalid(format!(
                "clone session {id}: class of service {class}, expected 0 to 7"
            ))
        })?,
        packet_length_bytes: u32::try_from(session.packet_length_bytes).map_err(|_| {
            EntityError::invalid(format!(
                "clone session {id}: packet_length_bytes is negative"
            ))
        })?,
    })
}

fn replicas(messages: &[v1::Replica]) -> Result<Vec<Replica>, EntityError> {
    messages.iter().map(replica).collect()
}

fn replica(message: &v1::Replica) -> Result<Replica, EntityError> {
    if !message.backup_replicas.is_empty() {
        return Err(EntityError::unimplemented(
            "backup_replicas: this switch has none, leave it empty",
        ));
    }
    let port = ultima_p4runtime::replication::Replica::try_from(message)
        .map_err(|error| EntityError::invalid(error.to_string()))?
        .port;
    let port = u16::try_from(port)
        .ok()
        .filter(|port| *port <= MAX_PORT)
        .ok_or_else(|| {
            EntityError::invalid(format!("replica: port {port}, expected 0 to {MAX_PORT}"))
        })?;
    let rid = u16::try_from(message.instance).map_err(|_| {
        let instance = message.instance;
        EntityError::invalid(format!(
            "replica: instance {instance}, expected 0 to 65535 (egress_rid)"
        ))
    })?;
    Ok(Replica { port, rid })
}

/// Returns the id at which a walk continues.
fn first(scan: &Scan) -> u32 {
    u32::try_from(scan.first(0)).unwrap_or(u32::MAX)
}

/// Reads a group or session, or all of them with id 0. An unknown id is an error.
pub(super) fn read(
    pipeline: &Pipeline,
    request: &PacketReplicationEngineEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let entity = |entry: PreType| {
        Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry {
            r#type: Some(entry),
        })
    };
    match &request.r#type {
        Some(PreType::MulticastGroupEntry(MulticastGroupEntry {
            multicast_group_id: 0,
            ..
        })) => {
            for (id, group) in pipeline.groups.range(first(scan)..) {
                if !scan.admits(0, u64::from(*id), cost_of(group.replicas.len())) {
                    break;
                }
                found.push(entity(PreType::MulticastGroupEntry(group.clone())));
            }
        }
        Some(PreType::MulticastGroupEntry(group)) => {
            let id = group.multicast_group_id;
            let group = pipeline
                .groups
                .get(&id)
                .ok_or_else(|| missing("multicast group", id))?;
            found.push(entity(PreType::MulticastGroupEntry(group.clone())));
        }
        Some(PreType::CloneSessionEntry(CloneSessionEntry { session_id: 0, .. })) => {
            for (id, session) in pipeline.sessions.range(first(scan)..) {
                if !scan.admits(0, u64::from(*id), cost_of(session.replicas.len())) {
                    break;
                }
                found.push(entity(PreType::CloneSessionEntry(session.clone())));
            }
        }
        Some(PreType::CloneSessionEntry(session)) => {
            let id = session.session_id;
            let session = pipeline
                .sessions
                .get(&id)
                .ok_or_else(|| missing("clone session", id))?;
            found.push(entity(PreType::CloneSessionEntry(session.clone())));
        }
        None => return Err(empty()),
    }
    Ok(())
}

fn missing(kind: &str, id: u32) -> EntityError {
    EntityError::new(tonic::Code::NotFound, format!("there is no {kind} {id}"))
}

fn empty() -> EntityError {
    EntityError::invalid(
        "packet replication engine entry: expected a multicast group or a clone session",
    )
}
