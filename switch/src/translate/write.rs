//! Updates of all entities.

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{TableEntry, Update};

use super::edit::Edit;
use super::table_entry::{check_default, entry, key};
use super::{arrays, digests, direct, profile, replication, value_set};
use crate::pipeline::Pipeline;
use crate::target::{Refusal, Target};
use ultima_engine::{EntryRef, Schema, TableDeclaration};

/// Translates and applies one update. A failed update changes nothing.
pub(crate) fn apply(pipeline: &mut Pipeline, update: Update) -> Result<(), Refusal> {
    let target = pipeline.target.as_deref();
    translate(pipeline.engine.schema(), target, update)?.apply(pipeline)
}

/// Translates an update to the engine's types.
pub(crate) fn translate(
    schema: &Schema,
    target: Option<&dyn Target>,
    update: Update,
) -> Result<Edit, Refusal> {
    let kind = UpdateType::try_from(update.r#type).ok();
    let Some(kind) = kind.filter(|kind| *kind != UpdateType::Unspecified) else {
        let what = "update type: expected INSERT, MODIFY or DELETE";
        return Err(Refusal::invalid(what));
    };
    let entity = update.entity.and_then(|entity| entity.entity);
    let Some(mut entity) = entity else {
        return Err(Refusal::invalid(
            "the entity is empty: expected a table entry or another entity",
        ));
    };
    if let Some(target) = target {
        target.admit(kind, &mut entity)?;
    }
    let permanent = match &entity {
        Entity::DirectCounterEntry(_) => Some("direct counter"),
        Entity::DirectMeterEntry(_) => Some("direct meter"),
        Entity::CounterEntry(_) => Some("counter"),
        Entity::MeterEntry(_) => Some("meter"),
        Entity::RegisterEntry(_) => Some("register"),
        Entity::ValueSetEntry(_) => Some("value set"),
        _ => None,
    };
    if let Some(what) = permanent {
        only_modify(kind, what)?;
    }
    match entity {
        Entity::TableEntry(entry) => translate_entry(schema, kind, entry),
        Entity::PacketReplicationEngineEntry(entry) => replication::write(kind, entry),
        Entity::DirectCounterEntry(entry) => direct::write_counter(schema, entry),
        Entity::DirectMeterEntry(entry) => direct::write_meter(schema, entry),
        Entity::CounterEntry(entry) => arrays::write_counter(&entry),
        Entity::MeterEntry(entry) => arrays::write_meter(&entry),
        Entity::RegisterEntry(entry) => arrays::write_register(entry),
        Entity::ActionProfileMember(member) => profile::write_member(kind, member),
        Entity::ActionProfileGroup(group) => profile::write_group(kind, &group),
        Entity::ValueSetEntry(entry) => value_set::write(entry),
        Entity::DigestEntry(entry) => digests::write(kind, &entry),
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

fn translate_entry(
    schema: &Schema,
    kind: UpdateType,
    message: TableEntry,
) -> Result<Edit, Refusal> {
    let table = schema.table(message.table_id)?;
    if message.is_const {
        return Err(Refusal::invalid(
            "is_const: only the program makes entries constant",
        ));
    }
    if message.is_default_action {
        return translate_default_entry(table, kind, message);
    }
    // §9.1: of an entry to delete, only the key is looked at.
    if kind == UpdateType::Delete {
        let key = table.encode_key(&key(message.r#match)?, message.priority)?;
        return Ok(Edit::Delete(table.id(), key));
    }
    if message.time_since_last_hit.is_some() {
        return Err(Refusal::invalid(
            "time_since_last_hit: it can only be read, leave it unset",
        ));
    }
    let direct = direct::resources(table, &message)?;
    let direct = direct.writes(table).then_some(direct);
    Ok(Edit::Entry {
        table: table.id(),
        inserts: kind == UpdateType::Insert,
        entry: table.encode_entry(entry(message)?),
        direct,
    })
}

/// Translates an update of the default entry, which always exists. Without an action it returns to the program's (§9.1.3).
fn translate_default_entry(
    table: &TableDeclaration,
    kind: UpdateType,
    message: TableEntry,
) -> Result<Edit, Refusal> {
    only_modify(kind, "default entry")?;
    check_default(&message.r#match, message.priority)?;
    if message.idle_timeout_ns != 0 || message.time_since_last_hit.is_some() {
        return Err(Refusal::invalid("a default entry has no idle timeout"));
    }
    let direct = direct::resources(table, &message)?;
    let is_set = message.action.is_some();
    let new = is_set.then(|| entry(message)).transpose()?;
    let table = table.id();
    Edit::new(move |pipeline| {
        let mut table = pipeline.engine.table_mut(table)?;
        table.set_default(new)?;
        direct.write(&mut table, EntryRef::Default)
    })
}
