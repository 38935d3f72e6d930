//! Write: updates of tables, arrays and the replication engine (P4Runtime §12).

use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::write_request::Atomicity;
use ultima_p4runtime::v1::{
    DirectCounterEntry, DirectMeterEntry, TableEntry, Update, WriteRequest, WriteResponse,
};

use super::error::{EntityError, batch_status};
use super::table_entry::{counter_cell, entry, key, meter_config};
use super::{Service, arrays, digests, no_pipeline, profile, replication, value_set};
use crate::engine::{Table, TableMut};
use crate::pipeline::Pipeline;

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
        let answer = self.send_as_primary(device_id, &role, election_id, move |datapath| {
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            check_atomicity(atomicity)?;
            Ok(updates
                .into_iter()
                .map(|one| apply(pipeline, one))
                .collect::<Vec<_>>())
        })?;
        let results: Result<_, Status> = answer.wait().await?;
        batch_status(&results?)?;
        Ok(WriteResponse {})
    }
}

fn check_atomicity(atomicity: i32) -> Result<(), Status> {
    match Atomicity::try_from(atomicity) {
        Ok(Atomicity::ContinueOnError) => Ok(()),
        Ok(other) => {
            let other = other.as_str_name();
            Err(Status::unimplemented(format!(
                "atomicity {other}: expected CONTINUE_ON_ERROR"
            )))
        }
        Err(_) => Err(Status::invalid_argument(format!(
            "atomicity {atomicity} is unknown"
        ))),
    }
}

/// Applies one update; one that fails changes nothing.
pub(crate) fn apply(pipeline: &mut Pipeline, update: Update) -> Result<(), EntityError> {
    let kind = match UpdateType::try_from(update.r#type) {
        Ok(kind) if kind != UpdateType::Unspecified => kind,
        _ => {
            return Err(EntityError::invalid(
                "update type: expected INSERT, MODIFY or DELETE",
            ));
        }
    };
    let entity = update.entity.and_then(|entity| entity.entity);
    let Some(entity) = entity else {
        return Err(EntityError::invalid("the entity is empty"));
    };
    match entity {
        Entity::TableEntry(entry) => write_table_entry(pipeline, kind, &entry),
        Entity::PacketReplicationEngineEntry(entry) => replication::write(pipeline, kind, entry),
        Entity::DirectCounterEntry(entry) => {
            only_modify(kind, "direct counter")?;
            write_direct_counter(pipeline, &entry)
        }
        Entity::DirectMeterEntry(entry) => {
            only_modify(kind, "direct meter")?;
            write_direct_meter(pipeline, &entry)
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
            value_set::write(&mut pipeline.engine, &entry)
        }
        Entity::DigestEntry(entry) => digests::write(&mut pipeline.digests, kind, &entry),
        Entity::ExternEntry(_) => Err(EntityError::unimplemented(
            "this switch has no externs beyond v1model's",
        )),
    }
}

fn only_modify(kind: UpdateType, what: &str) -> Result<(), EntityError> {
    if kind == UpdateType::Modify {
        return Ok(());
    }
    let kind = kind.as_str_name();
    Err(EntityError::invalid(format!(
        "{kind} of a {what}: it is always there, expected MODIFY"
    )))
}

fn write_table_entry(
    pipeline: &mut Pipeline,
    kind: UpdateType,
    message: &TableEntry,
) -> Result<(), EntityError> {
    let mut table = pipeline.engine.table_mut(message.table_id)?;
    if message.is_const {
        return Err(EntityError::invalid(
            "is_const: only the program makes entries constant",
        ));
    }
    if message.is_default_action {
        write_default_entry(&mut table, kind, message)?;
        if message.action.is_some() {
            pipeline.defaults_set.insert(message.table_id);
        } else {
            pipeline.defaults_set.remove(&message.table_id);
        }
        return Ok(());
    }
    match kind {
        // §9.1: of an entry to delete, only the key is looked at.
        UpdateType::Delete => Ok(table.delete(&key(message)?, message.priority)?),
        UpdateType::Insert => {
            check_extras(message)?;
            insert(&mut table, message)
        }
        _ => {
            check_extras(message)?;
            modify(&mut table, message)
        }
    }
}

/// Refuses what a table entry may carry and this switch does not have.
fn check_extras(message: &TableEntry) -> Result<(), EntityError> {
    arrays::refuse_meter_counters(message.meter_counter_data.is_some())?;
    if message.idle_timeout_ns != 0 || message.time_since_last_hit.is_some() {
        return Err(EntityError::unimplemented(
            "idle timeouts: this switch does not report idle entries, leave the fields unset",
        ));
    }
    Ok(())
}

fn insert(table: &mut TableMut, message: &TableEntry) -> Result<(), EntityError> {
    let new = entry(message)?;
    let counter = message
        .counter_data
        .as_ref()
        .map(counter_cell)
        .transpose()?;
    let meter = message
        .meter_config
        .as_ref()
        .map(meter_config)
        .transpose()?;
    let (key, priority) = (new.key.clone(), new.priority);
    table.insert(new)?;
    let mut direct = || -> Result<(), EntityError> {
        if let Some(value) = counter {
            table.set_counter(&key, priority, value)?;
        }
        if meter.is_some() {
            table.set_meter(&key, priority, meter)?;
        }
        Ok(())
    };
    direct().inspect_err(|_| {
        // The entry was inserted right above, so it is there to be removed.
        let _ = table.delete(&key, priority);
    })
}

fn modify(table: &mut TableMut, message: &TableEntry) -> Result<(), EntityError> {
    let key = key(message)?;
    let old = table.get(&key, message.priority)?;
    let counter = message
        .counter_data
        .as_ref()
        .map(counter_cell)
        .transpose()?;
    if counter.is_some() && old.counter.is_none() {
        return Err(no_direct(table, "counter"));
    }
    let meter = message
        .meter_config
        .as_ref()
        .map(meter_config)
        .transpose()?;
    if meter.is_some() && old.meter.is_none() {
        return Err(no_direct(table, "meter"));
    }
    // §9.1.7: without a configuration the meter goes back to green; a counter without data stays.
    if old.meter.is_some() {
        table.set_meter(&key, message.priority, meter)?;
    }
    // Nothing of a constant entry changes but its direct resources.
    let unchanged = old.is_const && message.action.is_none();
    if !unchanged && let Err(error) = entry(message).and_then(|new| Ok(table.modify(new)?)) {
        if let Some(config) = old.meter {
            // It had this configuration a moment ago.
            let _ = table.set_meter(&key, message.priority, config);
        }
        return Err(error);
    }
    if let Some(value) = counter {
        table.set_counter(&key, message.priority, value)?;
    }
    Ok(())
}

/// §9.1.3: the default entry is always there; without an action it goes back to the program's.
fn write_default_entry(
    table: &mut TableMut,
    kind: UpdateType,
    message: &TableEntry,
) -> Result<(), EntityError> {
    if kind != UpdateType::Modify {
        let kind = kind.as_str_name();
        return Err(EntityError::invalid(format!(
            "{kind} of a default entry: it is always there, expected MODIFY"
        )));
    }
    if !message.r#match.is_empty() || message.priority != 0 {
        return Err(EntityError::invalid(
            "a default entry has neither match fields nor a priority",
        ));
    }
    if message.idle_timeout_ns != 0 || message.time_since_last_hit.is_some() {
        return Err(EntityError::invalid("a default entry has no idle timeout"));
    }
    if message.counter_data.is_some() || message.meter_config.is_some() {
        return Err(EntityError::unimplemented(
            "direct resources of a default entry cannot be set on this switch",
        ));
    }
    let new = message
        .action
        .is_some()
        .then(|| entry(message))
        .transpose()?;
    Ok(table.set_default(new)?)
}

fn write_direct_counter(
    pipeline: &mut Pipeline,
    message: &DirectCounterEntry,
) -> Result<(), EntityError> {
    let (mut table, of) = direct_target(pipeline, message.table_entry.as_ref())?;
    let view = table.get(&key(of)?, of.priority)?;
    if view.counter.is_none() {
        return Err(no_direct(&table, "counter"));
    }
    if let Some(data) = &message.data {
        table.set_counter(&view.entry.key, of.priority, counter_cell(data)?)?;
    }
    Ok(())
}

fn write_direct_meter(
    pipeline: &mut Pipeline,
    message: &DirectMeterEntry,
) -> Result<(), EntityError> {
    arrays::refuse_meter_counters(message.counter_data.is_some())?;
    let (mut table, of) = direct_target(pipeline, message.table_entry.as_ref())?;
    let config = message.config.as_ref().map(meter_config).transpose()?;
    Ok(table.set_meter(&key(of)?, of.priority, config)?)
}

fn direct_target<'a>(
    pipeline: &'a mut Pipeline,
    of: Option<&'a TableEntry>,
) -> Result<(TableMut<'a>, &'a TableEntry), EntityError> {
    let Some(of) = of else {
        return Err(EntityError::invalid(
            "a direct resource needs the table entry that it is of",
        ));
    };
    if of.is_default_action {
        return Err(EntityError::unimplemented(
            "direct resources of a default entry cannot be set on this switch",
        ));
    }
    Ok((pipeline.engine.table_mut(of.table_id)?, of))
}

fn no_direct(table: &Table, kind: &str) -> EntityError {
    let name = table.name();
    EntityError::new(
        Code::InvalidArgument,
        format!("table {name} has no direct {kind}"),
    )
}
