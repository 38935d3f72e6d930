//! Encodes entries with a table's declaration, without its entries: other threads can do it.

use super::super::p4info::ActionScope;
use super::{
    ActionCall, ControlError, EntryAction, EntryKey, FieldMatch, Owner, TableDeclaration,
    TableEntry, Target,
};

/// An entry in the table's form: key and arguments as packets compare and read them. A part that is invalid for the table
/// is an error, which a write reports.
#[derive(Debug)]
pub struct EncodedEntry {
    pub(super) key: Result<EntryKey, ControlError>,
    /// The key as reads return it, once the key is valid.
    pub(super) written: Vec<FieldMatch>,
    pub(super) action: Option<Result<EncodedAction, ControlError>>,
    pub(super) controller_metadata: u64,
    pub(super) metadata: Vec<u8>,
    pub(super) idle_timeout_ns: u64,
}

#[derive(Debug)]
pub(super) enum EncodedAction {
    Own(Target),
    /// A member, a group or a set, whose profile knows more.
    Shared(EntryAction),
}

impl EncodedEntry {
    /// Returns the key, if it is valid.
    pub fn key(&self) -> Option<&EntryKey> {
        self.key.as_ref().ok()
    }
}

impl TableDeclaration {
    /// True if entries of this table have a priority.
    pub fn has_priority(&self) -> bool {
        self.key.has_priority()
    }

    /// True if entries have a direct counter.
    pub fn has_counter(&self) -> bool {
        self.has_counter
    }

    /// True if entries have a direct meter.
    pub fn has_meter(&self) -> bool {
        self.meter.is_some()
    }

    /// True if the table supports idle timeouts.
    pub fn has_idle_timeouts(&self) -> bool {
        self.idle_timeouts
    }

    /// Returns a key as entries have it in reads: fields in order of the table's key, with canonical values.
    ///
    /// # Errors
    /// The key or priority is invalid for the table.
    pub fn canonical(
        &self,
        key: Vec<FieldMatch>,
        priority: i32,
    ) -> Result<Vec<FieldMatch>, ControlError> {
        self.encode_key(&key, priority)?;
        Ok(self.key.canonical(key))
    }

    /// Encodes a key with its priority.
    ///
    /// # Errors
    /// The key or priority is invalid for the table.
    pub fn encode_key(&self, key: &[FieldMatch], priority: i32) -> Result<EntryKey, ControlError> {
        self.key.encode(self.owner(), key, priority)
    }

    /// Encodes an entry other than the default entry.
    pub fn encode_entry(&self, entry: TableEntry) -> EncodedEntry {
        let key = self.encode_key(&entry.key, entry.priority);
        let written = match key {
            Ok(_) => self.key.canonical(entry.key),
            Err(_) => Vec::new(),
        };
        let action = entry.action.map(|action| match action {
            EntryAction::Call(call) if self.indirect.is_none() => self
                .own(&call, ActionScope::DefaultOnly)
                .map(EncodedAction::Own),
            action => Ok(EncodedAction::Shared(action)),
        });
        EncodedEntry {
            key,
            written,
            action,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata,
            idle_timeout_ns: entry.idle_timeout_ns,
        }
    }

    pub(super) fn check_idle_timeout(&self, timeout_ns: u64) -> Result<(), ControlError> {
        if timeout_ns == 0 || self.idle_timeouts {
            return Ok(());
        }
        Err(ControlError::invalid(format!(
            "table {} does not support idle timeouts: expected idle_timeout_ns 0",
            self.name
        )))
    }

    /// Resolves an action in an entry.
    pub(super) fn own(
        &self,
        call: &ActionCall,
        forbidden: ActionScope,
    ) -> Result<Target, ControlError> {
        let owner = self.owner();
        let found = self
            .actions
            .iter()
            .position(|known| known.signature.id == call.action);
        let action = found.ok_or_else(|| {
            let action = call.action;
            ControlError::invalid(format!(
                "{owner}: action {action:#010x}: it is not an action of this table"
            ))
        })?;
        let signature = &self.actions[action].signature;
        signature.check_scope(owner, forbidden)?;
        let args = signature.arguments(owner, call)?;
        Ok(Target::Own { action, args })
    }

    fn owner(&self) -> Owner<'_> {
        Owner("table", &self.name)
    }
}
