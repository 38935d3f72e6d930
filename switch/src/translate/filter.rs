//! The table entries that a read requests (P4Runtime §9.1.6).

use ultima_p4runtime::v1::{self, table_action};

use super::query::{ENTRY, EntryRow, Scan};
use super::table_entry::{check_default, key};
use crate::pipeline::Pipeline;
use crate::target::Refusal;
use ultima_engine::{EntryAction, EntryView, ErrorKind, FieldMatch, Table};

/// Selects entries. A field with its default value filters nothing.
pub(super) struct Filter {
    /// 0 for all tables.
    pub(super) table: u32,
    pub(super) key: Vec<FieldMatch>,
    priority: i32,
    action: u32,
    controller_metadata: u64,
    metadata: Vec<u8>,
    is_default: bool,
}

impl Filter {
    #[expect(deprecated, reason = "clients still filter by controller_metadata")]
    pub(super) fn new(request: v1::TableEntry) -> Result<Filter, Refusal> {
        let action = match request.action.and_then(|action| action.r#type) {
            Some(table_action::Type::Action(action)) => action.action_id,
            Some(_) => {
                return Err(Refusal::invalid(
                    "entries can be filtered by action id only",
                ));
            }
            None => 0,
        };
        if request.table_id == 0 && !request.r#match.is_empty() {
            return Err(Refusal::invalid(
                "match fields without a table id: expected a table id",
            ));
        }
        if request.is_default_action {
            check_default(&request.r#match, request.priority)?;
        }
        Ok(Filter {
            table: request.table_id,
            key: key(request.r#match)?,
            priority: request.priority,
            action,
            controller_metadata: request.controller_metadata,
            metadata: request.metadata,
            is_default: request.is_default_action,
        })
    }

    /// Iterates over the tables, in order of ids, from the walk's position.
    pub(super) fn for_tables(
        &self,
        pipeline: &Pipeline,
        scan: &mut Scan,
        mut each: impl FnMut(&Table, &mut Scan) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if self.table != 0 {
            return each(pipeline.engine.table(self.table)?, scan);
        }
        for table in pipeline.engine.tables() {
            if scan.is_past(table.id()) {
                continue;
            }
            each(table, scan)?;
            if scan.is_paused() {
                break;
            }
        }
        Ok(())
    }

    /// Passes on the entries of a table from the walk's position.
    pub(super) fn select(
        &self,
        table: &Table,
        scan: &mut Scan,
        mut each: impl FnMut(EntryRow),
    ) -> Result<(), Refusal> {
        let mut pass = |view: EntryView| {
            if self.passes(&view) {
                let (table, is_default) = (table.id(), self.is_default);
                each(EntryRow {
                    table,
                    is_default,
                    view,
                });
            }
        };
        if self.is_default {
            pass(table.default_entry());
        } else if self.key.is_empty() {
            walk(table, scan, pass);
        } else if self.priority == 0 && table.has_priority() {
            // Without the priority that the table's entries have, several entries may have the key.
            let key = table.canonical(self.key.clone(), 1)?;
            walk(table, scan, |view| {
                if view.entry.key == key {
                    pass(view);
                }
            });
        } else {
            match table.get(&self.key, self.priority) {
                Ok(view) => pass(view),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn passes(&self, EntryView { entry, .. }: &EntryView) -> bool {
        let runs = |action: &EntryAction| matches!(action, EntryAction::Call(call) if call.action == self.action);
        (self.action == 0 || entry.action.as_ref().is_some_and(runs))
            && (self.priority == 0 || entry.priority == self.priority)
            && (self.controller_metadata == 0
                || entry.controller_metadata == self.controller_metadata)
            && (self.metadata.is_empty() || entry.metadata == self.metadata)
    }
}

/// Passes on the entries of a table from the walk's position.
fn walk(table: &Table, scan: &mut Scan, mut each: impl FnMut(EntryView)) {
    let first = usize::try_from(scan.first(table.id())).unwrap_or(usize::MAX);
    for (place, view) in table.entries_from(first) {
        if !scan.admits(table.id(), place as u64, ENTRY) {
            return;
        }
        each(view);
    }
}
