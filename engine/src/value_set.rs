//! Parser value sets: what a `select` compares with, and the control plane changes.

use super::bits::Slot;
use super::error::{ControlError, ErrorKind};
use super::p4info::FieldInfo;
use super::table::entry::FieldMatch;
use super::table::key::{Key, KeyField, Owner};
use super::table::matcher::Matcher;

/// A parser value set. It starts empty. BMv2 compares all of its fields exactly.
#[derive(Debug)]
pub struct ValueSet {
    pub(super) id: u32,
    pub(super) name: String,
    size: usize,
    key: Key,
    widths: Vec<u32>,
    members: Vec<Vec<FieldMatch>>,
    matcher: Matcher,
}

/// Members need no order (P4Runtime §9.6), so all have one priority where their matcher wants one.
const PRIORITY: i32 = 1;

impl ValueSet {
    pub(super) fn new(id: u32, name: String, size: usize, fields: &[FieldInfo]) -> ValueSet {
        let widths = fields.iter().map(|field| field.width).collect();
        let fields = fields.iter().map(|field| KeyField {
            id: field.id,
            name: field.name.clone(),
            kind: field.kind,
            // The parser builds the key: nothing is read from here.
            slot: Slot::new(0, field.width, false),
            outer_width: None,
            header: None,
            mask: None,
        });
        let key = Key::new(fields.collect());
        let matcher = key.matcher();
        ValueSet {
            id,
            name,
            size,
            key,
            widths,
            members: Vec::new(),
            matcher,
        }
    }

    /// Members it has room for.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bits of each of its fields.
    pub(super) fn widths(&self) -> &[u32] {
        &self.widths
    }

    /// Its members, values canonical, in the order in which they were given.
    pub fn members(&self) -> &[Vec<FieldMatch>] {
        &self.members
    }

    /// Replaces all members. A field that does not matter is left out of a member.
    ///
    /// # Errors
    /// There are more members than it has room for, two are the same, or one has fields that are
    /// not the set's; then nothing has changed.
    pub fn set(&mut self, members: &[Vec<FieldMatch>]) -> Result<(), ControlError> {
        if members.len() > self.size {
            let (set, found, size) = (&self.name, members.len(), self.size);
            return Err(ControlError::new(
                ErrorKind::ResourceExhausted,
                format!("value set {set}: {found} members, there is room for {size}"),
            ));
        }
        let priority = if self.key.has_priority() { PRIORITY } else { 0 };
        let (mut matcher, mut canonical) = (self.key.matcher(), Vec::new());
        for (at, member) in members.iter().enumerate() {
            let owner = Owner("value set", &self.name);
            let key = self.key.encode(owner, member, priority)?;
            if matcher.find(&key).is_some() {
                let text = format!("value set {}: member {at} is there twice", self.name);
                return Err(ControlError::new(ErrorKind::AlreadyExists, text));
            }
            matcher.insert(&key, at as u32);
            canonical.push(self.key.canonical(member.clone()));
        }
        self.members = canonical;
        self.matcher = matcher;
        Ok(())
    }

    /// True if a member matches. `key` has the words of the set's fields; `scratch` is working
    /// memory.
    #[inline]
    pub(super) fn holds(&self, key: &[u64], scratch: &mut Vec<u64>) -> bool {
        self.matcher.lookup(key, scratch).is_some()
    }
}
