//! Write: batches of updates (P4Runtime §12).

use tonic::Status;
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::write_request::Atomicity;
use ultima_p4runtime::v1::{TableEntry, Update, WriteRequest, WriteResponse};

use super::direct::{self, Direct};
use super::error::batch_status;
use super::table_entry::{check_default, entry, key};
use super::{Service, arrays, check_count, digests, no_pipeline, profile, replication, value_set};
use crate::datapath::Datapath;
use crate::engine::{EntryRef, TableMut};
use crate::pipeline::Pipeline;
use crate::target::Refusal;

impl Service {
    pub(super) async fn write(&self, request: WriteRequest) -> Result<WriteResponse, Status> {
        let WriteRequest {
            device_id,
            role,
            election_id,
            updates,
            atomicity,
            ..
        } = request;
        check_count(updates.len(), "updates")?;
        check_atomicity(atomicity)?;
        let apply = move |datapath: &mut Datapath| {
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            let updates = updates.into_iter();
            Ok(updates.map(|one| apply(pipeline, one)).collect::<Vec<_>>())
        };
        let sender = (device_id, role, election_id);
        let results: Result<_, Status> = self.between_reads(sender, apply).await?;
        batch_status(&results?)?;
        Ok(WriteResponse {})
    }
}

/// Checks the atomicity of a batch (§12.3). Servers need not support more than CONTINUE_ON_ERROR.
fn check_atomicity(atomicity: i32) -> Result<(), Status> {
    match Atomicity::try_from(atomicity) {
        Ok(Atomicity::ContinueOnError) => Ok(()),
        Ok(other) => Err(Status::unimplemented(format!(
            "atomicity {}: expected CONTINUE_ON_ERROR",
            other.as_str_name()
        ))),
        Err(_) => Err(Status::invalid_argument(format!(
            "atomicity {atomicity} is unknown"
        ))),
    }
}

/// Applies one update. A failed update changes nothing.
pub(crate) fn apply(pipeline: &mut Pipeline, update: Update) -> Result<(), Refusal> {
    let kind = match UpdateType::try_from(update.r#type) {
        Ok(kind) if kind != UpdateType::Unspecified => kind,
        _ => {
            return Err(Refusal::invalid(
                "update type: expected INSERT, MODIFY or DELETE",
            ));
        }
    };
    let entity = update.entity.and_then(|entity| entity.entity);
    let Some(mut entity) = entity else {
        return Err(Refusal::invalid(
            "the entity is empty: expected a table entry or another entity",
        ));
    };
    if let Some(target) = &pipeline.target {
        target.admit(&mut pipeline.groups.values(), kind, &mut entity)?;
    }
    match entity {
        Entity::TableEntry(entry) => write_table_entry(pipeline, kind, entry),
        Entity::PacketReplicationEngineEntry(entry) => replication::write(pipeline, kind, entry),
        Entity::DirectCounterEntry(entry) => {
            only_modify(kind, "direct counter")?;
            direct::write_counter(pipeline, &entry)
        }
        Entity::DirectMeterEntry(entry) => {
            only_modify(kind, "direct meter")?;
            direct::write_meter(pipeline, &entry)
        }
        Entity::CounterEntry(entry) => {
            only_modify(kind, "counter")?;
            arrays::write_counter(&mut pipeline.engine, &entry)
        }
        Entity::MeterEntry(entry) => {
            only_modify(kind, "meter")?;
            arrays::write_meter(&mut pipeline.engine, &entry)
        }
        Entity::RegisterEntry(entry) => {
            only_modify(kind, "register")?;
            arrays::write_register(&mut pipeline.engine, &entry)
        }
        Entity::ActionProfileMember(member) => {
            profile::write_member(&mut pipeline.engine, kind, &member)
        }
        Entity::ActionProfileGroup(group) => {
            profile::write_group(&mut pipeline.engine, kind, &group)
        }
        Entity::ValueSetEntry(entry) => {
            only_modify(kind, "value set")?;
            value_set::write(&mut pipeline.engine, entry)
        }
        Entity::DigestEntry(entry) => digests::write(&mut pipeline.digests, kind, &entry),
        Entity::ExternEntry(_) => Err(Refusal::unimplemented(
            "this switch has no externs beyond v1model's",
        )),
    }
}

fn only_modify(kind: UpdateType, what: &str) -> Result<(), Refusal> {
    if kind == UpdateType::Modify {
        return Ok(());
    }
    let kind = kind.as_str_name();
    Err(Refusal::invalid(format!(
        "{kind} of a {what}: expected MODIFY, since it always exists"
    )))
}

fn write_table_entry(
    pipeline: &mut Pipeline,
    kind: UpdateType,
    message: TableEntry,
) -> Result<(), Refusal> {
    let mut table = pipeline.engine.table_mut(message.table_id)?;
    if message.is_const {
        return Err(Refusal::invalid(
            "is_const: only the program makes entries constant",
        ));
    }
    if message.is_default_action {
        return write_default_entry(&mut table, kind, message);
    }
    // §9.1: of an entry to delete, only the key is looked at.
    if kind == UpdateType::Delete {
        return Ok(table.delete(&key(message.r#match)?, message.priority)?);
    }
    if message.time_since_last_hit.is_some() {
        return Err(Refusal::invalid(
            "time_since_last_hit: it can only be read, leave it unset",
        ));
    }
    let direct = Direct::of(&table, &message)?;
    let new = entry(message)?;
    let of = direct
        .writes(&table)
        .then(|| (new.key.clone(), new.priority));
    match kind {
        UpdateType::Insert => table.insert(new)?,
        // Of a constant entry, only direct resources can change.
        _ => table.modify(new)?,
    }
    match of {
        Some((key, priority)) => direct.write(&mut table, EntryRef::Keyed(&key, priority)),
        None => Ok(()),
    }
}

/// Writes the default entry, which always exists. Without an action it returns to the program's (§9.1.3).
fn write_default_entry(
    table: &mut TableMut,
    kind: UpdateType,
    message: TableEntry,
) -> Result<(), Refusal> {
    if kind != UpdateType::Modify {
        let kind = kind.as_str_name();
        return Err(Refusal::invalid(format!(
            "{kind} of a default entry: expected MODIFY, since it always exists"
        )));
    }
    check_default(&message)?;
    if message.idle_timeout_ns != 0 || message.time_since_last_hit.is_some() {
        return Err(Refusal::invalid("a default entry has no idle timeout"));
    }
    let direct = Direct::of(table, &message)?;
    let is_set = message.action.is_some();
    let new = is_set.then(|| entry(message)).transpose()?;
    table.set_default(new)?;
    direct.write(table, EntryRef::Default)
}
