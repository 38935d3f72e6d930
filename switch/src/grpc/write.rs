//! Write: batches of updates (P4Runtime §12).
//!
//! The server translates a request to [`Edit`]s. The forwarding thread only applies them.

use std::pin::Pin;
use std::sync::Arc;

use prost::Message;
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::write_request::Atomicity;
use ultima_p4runtime::v1::{TableEntry, Update, WriteResponse};
use ultima_p4runtime::write::EncodedWriteRequest;

use super::direct::{self, Direct};
use super::error::batch_status;
use super::table_entry::{check_default, entry, key};
use super::{Service, arrays, check_count, digests, no_pipeline, profile, replication, value_set};
use crate::engine::{EncodedEntry, EntryKey, EntryRef, Schema, TableDeclaration};
use crate::pipeline::Pipeline;
use crate::target::{Refusal, Target};

/// An update in the engine's types.
pub(crate) enum Edit {
    /// Inserts or modifies a table entry.
    Entry {
        table: u32,
        inserts: bool,
        entry: EncodedEntry,
        direct: Option<Direct>,
    },
    /// Deletes the entry of a table.
    Delete(u32, EntryKey),
    /// Any other update.
    Other(Apply),
}

/// Applies an update that was translated.
type Apply = Box<dyn FnOnce(&mut Pipeline) -> Result<(), Refusal> + Send>;

impl Service {
    pub(super) async fn write(
        &self,
        request: EncodedWriteRequest,
    ) -> Result<WriteResponse, Status> {
        check_count(request.updates.len(), "updates")?;
        check_atomicity(request.atomicity)?;
        let sender = (request.device_id, request.role, request.election_id);
        let schema = self.schema.read().await;
        self.controllers().check_primary(&sender)?;
        let translated = schema.clone().ok_or_else(no_pipeline)?;
        let target = self.loader.target.as_deref();
        let mut edits = Vec::with_capacity(request.updates.len());
        for update in request.updates {
            // The gRPC specification assigns INTERNAL to messages that cannot be parsed.
            let update = Update::decode(update);
            let update = update.map_err(|error| Status::internal(error.to_string()))?;
            edits.push(translate(&translated, target, update));
        }
        let applied = self.send_as_primary(&sender, move |datapath| {
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            apply_all(pipeline, &translated, edits)
        })?;
        batch_status(&applied.wait().await??)?;
        Ok(WriteResponse {})
    }
}

/// The call `Write`.
pub(super) struct Write(pub(super) Arc<Service>);

impl UnaryService<EncodedWriteRequest> for Write {
    type Response = WriteResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<WriteResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<EncodedWriteRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { service.write(request.into_inner()).await.map(Response::new) })
    }
}

/// Applies the updates of a request, which were translated with `schema`.
pub(super) fn apply_all(
    pipeline: &mut Pipeline,
    schema: &Arc<Schema>,
    edits: Vec<Result<Edit, Refusal>>,
) -> Result<Vec<Result<(), Refusal>>, Status> {
    if !Arc::ptr_eq(pipeline.engine.schema(), schema) {
        return Err(Status::aborted(
            "the forwarding pipeline config changed during the write; write again",
        ));
    }
    let edits = edits.into_iter();
    Ok(edits.map(|edit| edit?.apply(pipeline)).collect())
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

/// Translates and applies one update. A failed update changes nothing.
pub(crate) fn apply(pipeline: &mut Pipeline, update: Update) -> Result<(), Refusal> {
    let target = pipeline.target.as_deref();
    translate(pipeline.engine.schema(), target, update)?.apply(pipeline)
}

impl Edit {
    /// Returns an edit of something other than a table entry.
    pub(super) fn new(
        apply: impl FnOnce(&mut Pipeline) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<Edit, Refusal> {
        Ok(Edit::Other(Box::new(apply)))
    }

    fn apply(self, pipeline: &mut Pipeline) -> Result<(), Refusal> {
        let engine = &mut pipeline.engine;
        match self {
            Edit::Entry {
                table,
                inserts,
                entry,
                direct,
            } => {
                let mut table = engine.table_mut(table)?;
                let direct = direct.and_then(|direct| Some((direct, entry.key()?.clone())));
                match inserts {
                    true => table.insert_encoded(entry)?,
                    // Of a constant entry, only direct resources can change.
                    false => table.modify_encoded(entry)?,
                }
                direct.map_or(Ok(()), |(direct, key)| {
                    direct.write(&mut table, EntryRef::Keyed(&key))
                })
            }
            Edit::Delete(table, key) => Ok(engine.table_mut(table)?.delete_encoded(&key)?),
            Edit::Other(apply) => apply(pipeline),
        }
    }
}

/// Translates an update to the engine's types.
pub(super) fn translate(
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
    let direct = Direct::of(table, &message)?;
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
    check_default(&message)?;
    if message.idle_timeout_ns != 0 || message.time_since_last_hit.is_some() {
        return Err(Refusal::invalid("a default entry has no idle timeout"));
    }
    let direct = Direct::of(table, &message)?;
    let is_set = message.action.is_some();
    let new = is_set.then(|| entry(message)).transpose()?;
    let table = table.id();
    Edit::new(move |pipeline| {
        let mut table = pipeline.engine.table_mut(table)?;
        table.set_default(new)?;
        direct.write(&mut table, EntryRef::Default)
    })
}
