//! Multicast groups and clone sessions (P4Runtime §9.5).

use std::collections::BTreeMap;

use tonic::Code;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    self, CloneSessionEntry, MulticastGroupEntry, PacketReplicationEngineEntry, entity::Entity,
};

use super::scan::{Scan, cost_of};
use super::write::Edit;
use crate::config::MAX_PORT;
use crate::engine::{CloneSession, Replica};
use crate::pipeline::Pipeline;
use crate::target::Refusal;

pub(super) fn write(
    update: UpdateType,
    entry: PacketReplicationEngineEntry,
) -> Result<Edit, Refusal> {
    match entry.r#type {
        Some(PreType::MulticastGroupEntry(group)) => write_group(update, group),
        Some(PreType::CloneSessionEntry(session)) => write_session(update, session),
        None => Err(empty()),
    }
}

fn write_group(update: UpdateType, group: MulticastGroupEntry) -> Result<Edit, Refusal> {
    let id = group.multicast_group_id;
    let written = (update != UpdateType::Delete).then(|| replicas(&group.replicas));
    let written = written.transpose()?;
    Edit::new(move |pipeline| {
        let pre = pipeline.engine.pre_mut();
        let Some(replicas) = written else {
            pre.delete_group(id)?;
            pipeline.groups.remove(&id);
            return Ok(());
        };
        if let Some(target) = &pipeline.target {
            target.check_room(&mut pipeline.groups.values(), &group)?;
        }
        match update {
            UpdateType::Insert => pre.insert_group(id, replicas)?,
            _ => pre.modify_group(id, replicas)?,
        }
        pipeline.groups.insert(id, group);
        Ok(())
    })
}

fn write_session(update: UpdateType, session: CloneSessionEntry) -> Result<Edit, Refusal> {
    let id = session.session_id;
    let written = (update != UpdateType::Delete).then(|| clone_session(&session));
    let written = written.transpose()?;
    Edit::new(move |pipeline| {
        let pre = pipeline.engine.pre_mut();
        let Some(new) = written else {
            pre.delete_session(id)?;
            pipeline.sessions.remove(&id);
            return Ok(());
        };
        match update {
            UpdateType::Insert => pre.insert_session(id, new)?,
            _ => pre.modify_session(id, new)?,
        }
        pipeline.sessions.insert(id, session);
        Ok(())
    })
}

fn clone_session(session: &CloneSessionEntry) -> Result<CloneSession, Refusal> {
    let id = session.session_id;
    Ok(CloneSession {
        replicas: replicas(&session.replicas)?,
        class_of_service: u8::try_from(session.class_of_service).map_err(|_| {
            let class = session.class_of_service;
            Refusal::invalid(format!(
                "clone session {id}: class of service {class}, expected 0 to 7"
            ))
        })?,
        packet_length_bytes: u32::try_from(session.packet_length_bytes).map_err(|_| {
            Refusal::invalid(format!(
                "clone session {id}: packet_length_bytes is negative"
            ))
        })?,
    })
}

fn replicas(messages: &[v1::Replica]) -> Result<Vec<Replica>, Refusal> {
    messages.iter().map(replica).collect()
}

fn replica(message: &v1::Replica) -> Result<Replica, Refusal> {
    if !message.backup_replicas.is_empty() {
        return Err(Refusal::unimplemented(
            "backup_replicas: this switch has none, leave it empty",
        ));
    }
    let port = ultima_p4runtime::replication::Replica::try_from(message)
        .map_err(|error| Refusal::invalid(error.to_string()))?
        .port;
    let port = u16::try_from(port)
        .ok()
        .filter(|port| *port <= MAX_PORT)
        .ok_or_else(|| {
            Refusal::invalid(format!("replica: port {port}, expected 0 to {MAX_PORT}"))
        })?;
    let rid = u16::try_from(message.instance).map_err(|_| {
        let instance = message.instance;
        Refusal::invalid(format!(
            "replica: instance {instance}, expected 0 to 65535 (egress_rid)"
        ))
    })?;
    Ok(Replica { port, rid })
}

/// Reads a group or session, or all of them with id 0. An unknown id is an error.
pub(super) fn read(
    pipeline: &Pipeline,
    request: &PacketReplicationEngineEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let mut push = |entry: PreType| {
        found.push(Entity::PacketReplicationEngineEntry(
            PacketReplicationEngineEntry {
                r#type: Some(entry),
            },
        ));
    };
    match &request.r#type {
        Some(PreType::MulticastGroupEntry(group)) => select(
            ("multicast group", group.multicast_group_id),
            &pipeline.groups,
            |group| group.replicas.len(),
            scan,
            |group| push(PreType::MulticastGroupEntry(group.clone())),
        ),
        Some(PreType::CloneSessionEntry(session)) => select(
            ("clone session", session.session_id),
            &pipeline.sessions,
            |session| session.replicas.len(),
            scan,
            |session| push(PreType::CloneSessionEntry(session.clone())),
        ),
        None => Err(empty()),
    }
}

/// Passes on the entry of an id, or with id 0 all entries from the walk's position.
fn select<T>(
    (kind, id): (&str, u32),
    entries: &BTreeMap<u32, T>,
    replicas: impl Fn(&T) -> usize,
    scan: &mut Scan,
    mut each: impl FnMut(&T),
) -> Result<(), Refusal> {
    if id != 0 {
        let missing = || Refusal::new(Code::NotFound, format!("there is no {kind} {id}"));
        each(entries.get(&id).ok_or_else(missing)?);
        return Ok(());
    }
    let first = u32::try_from(scan.first(0)).unwrap_or(u32::MAX);
    for (id, entry) in entries.range(first..) {
        if !scan.admits(0, u64::from(*id), cost_of(replicas(entry))) {
            break;
        }
        each(entry);
    }
    Ok(())
}

fn empty() -> Refusal {
    Refusal::invalid(
        "packet replication engine entry: expected a multicast group or a clone session",
    )
}
