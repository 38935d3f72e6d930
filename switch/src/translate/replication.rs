//! Multicast groups and clone sessions (P4Runtime §9.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::Code;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    self, CloneSessionEntry, MulticastGroupEntry, PacketReplicationEngineEntry,
};

use super::edit::Edit;
use super::query::{Query, Row, cost_of};
use crate::config::MAX_PORT;
use crate::pipeline::{Pipeline, Written};
use crate::target::Refusal;
use ultima_engine::{CloneSession, Replica};

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
    let new = (update != UpdateType::Delete).then(|| replicas(&group.replicas));
    let new = new.transpose()?;
    let message = Arc::new(PreType::MulticastGroupEntry(group));
    Edit::new(move |pipeline| {
        let pre = pipeline.engine.pre_mut();
        let Some(new) = new else {
            pre.delete_group(id)?;
            pipeline.groups.remove(&id);
            return Ok(());
        };
        if let Some(target) = &pipeline.target {
            target.check_room(
                &mut pre.groups().filter(|(other, _)| *other != id),
                (id, &new),
            )?;
        }
        let replicas = new.len();
        match update {
            UpdateType::Insert => pre.insert_group(id, new)?,
            _ => pre.modify_group(id, new)?,
        }
        pipeline.groups.insert(id, Written { replicas, message });
        Ok(())
    })
}

fn write_session(update: UpdateType, session: CloneSessionEntry) -> Result<Edit, Refusal> {
    let id = session.session_id;
    let new = (update != UpdateType::Delete).then(|| clone_session(&session));
    let new = new.transpose()?;
    let message = Arc::new(PreType::CloneSessionEntry(session));
    Edit::new(move |pipeline| {
        let pre = pipeline.engine.pre_mut();
        let Some(new) = new else {
            pre.delete_session(id)?;
            pipeline.sessions.remove(&id);
            return Ok(());
        };
        let replicas = new.replicas.len();
        match update {
            UpdateType::Insert => pre.insert_session(id, new)?,
            _ => pre.modify_session(id, new)?,
        }
        pipeline.sessions.insert(id, Written { replicas, message });
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
pub(super) fn read(request: &PacketReplicationEngineEntry) -> Result<Query, Refusal> {
    type All = fn(&Pipeline) -> &BTreeMap<u32, Written>;
    let (kind, id, all): (_, _, All) = match &request.r#type {
        Some(PreType::MulticastGroupEntry(group)) => {
            ("multicast group", group.multicast_group_id, |pipeline| {
                &pipeline.groups
            })
        }
        Some(PreType::CloneSessionEntry(session)) => {
            ("clone session", session.session_id, |pipeline| {
                &pipeline.sessions
            })
        }
        None => return Err(empty()),
    };
    Ok(Box::new(move |pipeline, scan, found| {
        let row = |entry: &Written| Row::Replication(entry.message.clone());
        let entries = all(pipeline);
        if id != 0 {
            let missing = || Refusal::new(Code::NotFound, format!("there is no {kind} {id}"));
            found.push(row(entries.get(&id).ok_or_else(missing)?));
            return Ok(());
        }
        let first = u32::try_from(scan.first(0)).unwrap_or(u32::MAX);
        for (id, entry) in entries.range(first..) {
            if !scan.admits(0, u64::from(*id), cost_of(entry.replicas)) {
                break;
            }
            found.push(row(entry));
        }
        Ok(())
    }))
}

fn empty() -> Refusal {
    Refusal::invalid(
        "packet replication engine entry: expected a multicast group or a clone session",
    )
}
