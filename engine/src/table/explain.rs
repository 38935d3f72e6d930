//! Describes a table lookup in terms of entries, for traces.

use std::fmt::Write;

use super::super::action::{Action, Machine};
use super::super::key::word_count;
use super::super::octets::hex;
use super::super::profile::Profile;
use super::{EntryAction, Match, Table, Target};

impl Table {
    /// Describes the lookup of a packet by [`Table::apply`], without changing the table: the result, then lines with the key, the
    /// direct counter and the action.
    pub(crate) fn explain(
        &self,
        profiles: &[Profile],
        actions: &[Action],
        machine: &mut Machine,
    ) -> String {
        let mut key = Vec::new();
        self.declared.key.build(machine.phv, &mut key);
        let hit = self.matcher.lookup(&key, &mut machine.state.masked);
        let entry = hit.map_or(&self.default, |at| self.live(at));
        let result = if hit.is_some() { "hit" } else { "miss" };
        let mut text = format!("table {}: {result}", self.name());
        if let Some(key) = entry.key.as_ref().filter(|_| self.has_priority()) {
            let _ = write!(text, ", priority {}", key.priority);
        }
        let mut rest = key.as_slice();
        for field in &self.declared.key.fields {
            let words;
            (words, rest) = rest.split_at(word_count(field.slot.width));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let written = entry.written.iter().find(|given| given.field == field.id);
            let matched = written.map_or_else(String::new, |given| matched(&given.matches));
            let kind = format!("{:?}", field.kind).to_lowercase();
            let (name, value) = (&field.name, hex(&bytes));
            let _ = write!(text, "\n  {name} = {value} ({kind}{matched})");
        }
        if self.declared.has_counter {
            let mut counter = entry.counter;
            counter.count(machine.verdict.ingress_length);
            let _ = write!(text, "\n  counter {counter}");
        }
        if let Target::Shared { asked, .. } = &entry.target {
            text.push_str(&match asked {
                EntryAction::Member(member) => format!("\n  member {member}"),
                EntryAction::Group(group) => format!("\n  group {group}"),
                EntryAction::OneShot(_) | EntryAction::Call(_) => "\n  the entry's set".to_owned(),
            });
        }
        let (action, args) = match &entry.target {
            Target::Own { action, args } => (Some(*action), &args[..]),
            target => self.declared.shared(target, profiles, machine),
        };
        match action {
            Some(action) => {
                let action = &actions[self.declared.actions[action].action];
                let params = action.params.iter();
                let params =
                    params.map(|it| format!("{}={}", it.name, hex(&it.slot.canonical(args))));
                let params = params.collect::<Vec<_>>().join(" ");
                let _ = write!(text, "\n  action {}({params})", action.name);
            }
            None => text.push_str("\n  no action"),
        }
        text
    }
}

/// Describes an entry's match on a field.
fn matched(given: &Match) -> String {
    match given {
        Match::Exact(value) | Match::Optional(value) => format!(" {}", hex(value)),
        Match::Lpm { value, prefix_len } => format!(" {}/{prefix_len}", hex(value)),
        Match::Ternary { value, mask } => format!(" {} &&& {}", hex(value), hex(mask)),
        Match::Range { low, high } => format!(" {}..{}", hex(low), hex(high)),
    }
}
