//! Updates in the engine's types, which the forwarding thread applies.

use std::sync::Arc;

use tonic::Status;

use crate::pipeline::Pipeline;
use crate::target::Refusal;
use ultima_engine::{
    CounterCell, EncodedEntry, EntryKey, EntryRef, MeterConfig, Schema, TableDeclaration, TableMut,
};

/// An update in the engine's types.
pub(crate) enum Edit {
    Entry {
        table: u32,
        inserts: bool,
        entry: EncodedEntry,
        direct: Option<Direct>,
    },
    Delete(u32, EntryKey),
    Other(Apply),
}

type Apply = Box<dyn FnOnce(&mut Pipeline) -> Result<(), Refusal> + Send>;

/// Applies the updates of a request, which were translated with `schema`.
pub(crate) fn apply_all(
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

impl Edit {
    /// Returns an edit of something other than a table entry.
    pub(super) fn new(
        apply: impl FnOnce(&mut Pipeline) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<Edit, Refusal> {
        Ok(Edit::Other(Box::new(apply)))
    }

    pub(super) fn apply(self, pipeline: &mut Pipeline) -> Result<(), Refusal> {
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

/// The direct resources of a written table entry.
pub(crate) struct Direct {
    pub(super) counter: Option<CounterCell>,
    pub(super) meter: Option<MeterConfig>,
}

impl Direct {
    /// True if [`Direct::write`] changes something.
    pub(super) fn writes(&self, table: &TableDeclaration) -> bool {
        self.counter.is_some() || table.has_meter()
    }

    /// Writes the direct resources. A missing meter configuration resets the meter; a missing counter keeps its value.
    pub(super) fn write(&self, table: &mut TableMut, of: EntryRef) -> Result<(), Refusal> {
        if let Some(value) = self.counter {
            table.set_counter(of, value)?;
        }
        if table.has_meter() {
            table.set_meter(of, self.meter)?;
        }
        Ok(())
    }
}
