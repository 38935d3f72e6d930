//! Describes a table lookup in terms of entries, for traces.

use super::super::action::Machine;
use super::super::counter::CounterCell;
use super::super::key::word_count;
use super::super::profile::Profile;
use super::super::trace::{KeyField, Matched, Value, Via};
use super::{EntryAction, Match, Table, TableAction, Target};

/// The result of a lookup, for a trace.
pub(crate) struct Explained<'a> {
    pub hit: bool,
    pub key: Vec<KeyField>,
    pub priority: Option<i32>,
    /// The member or group of the action, in a table with an action profile.
    pub via: Option<Via>,
    pub action: Option<&'a TableAction>,
    pub args: &'a [u8],
    /// The direct counter, before it counts.
    pub counter: Option<CounterCell>,
}

impl Table {
    /// Looks up a packet like [`Table::apply`], without changing the table.
    pub(crate) fn explain<'a>(
        &'a self,
        profiles: &'a [Profile],
        machine: &mut Machine,
    ) -> Explained<'a> {
        let mut key = Vec::new();
        self.declared.key.build(machine.phv, &mut key);
        let hit = self.matcher.lookup(&key, &mut machine.state.masked);
        let entry = hit.map_or(&self.default, |at| self.live(at));
        let mut rest = key.as_slice();
        let fields = self.declared.key.fields.iter().map(|field| {
            let words;
            (words, rest) = rest.split_at(word_count(field.slot.width));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let written = entry.written.iter().find(|given| given.field == field.id);
            KeyField {
                name: field.name.clone(),
                kind: format!("{:?}", field.kind).to_lowercase(),
                value: Value::new(&bytes),
                matched: written.map(|given| matched(&given.matches)),
            }
        });
        let fields = fields.collect();
        let (action, args) = match &entry.target {
            Target::Own { action, args } => (Some(*action), &args[..]),
            target => self.declared.shared(target, profiles, machine),
        };
        Explained {
            hit: hit.is_some(),
            key: fields,
            priority: entry
                .key
                .as_ref()
                .filter(|_| self.has_priority())
                .map(|key| key.priority),
            via: match &entry.target {
                Target::Shared { asked, .. } => via(asked),
                Target::Own { .. } | Target::Nothing => None,
            },
            action: action.map(|action| &self.declared.actions[action]),
            args,
            counter: self.declared.has_counter.then_some(entry.counter),
        }
    }
}

fn via(asked: &EntryAction) -> Option<Via> {
    match asked {
        EntryAction::Call(_) => None,
        EntryAction::Member(member) => Some(Via::Member { member: *member }),
        EntryAction::Group(group) => Some(Via::Group { group: *group }),
        EntryAction::OneShot(_) => Some(Via::Set),
    }
}

fn matched(given: &Match) -> Matched {
    match given {
        Match::Exact(value) | Match::Optional(value) => Matched::Equal {
            entry: Value::new(value),
        },
        Match::Lpm { value, prefix_len } => Matched::Prefix {
            prefix: Value::new(value),
            prefix_len: *prefix_len,
        },
        Match::Ternary { value, mask } => Matched::Masked {
            entry: Value::new(value),
            mask: Value::new(mask),
        },
        Match::Range { low, high } => Matched::Range {
            low: Value::new(low),
            high: Value::new(high),
        },
    }
}
