//! Loads tables and the control flow between them.

use std::cell::Cell;
use std::collections::HashSet;

use num_bigint::{BigInt, Sign};

use super::super::action::{Action, Param};
use super::super::bits::{MAX_KEY_BITS, big_mask, low_bits};
use super::super::error::LoadError;
use super::super::json;
use super::super::key::words_of;
use super::super::limits::Limits;
use super::super::p4info::{ActionInfo, ActionScope, MatchKind, P4Info, TableInfo};
use super::super::pipeline::{Flow, Node, NodeNames};
use super::super::primitive::Names;
use super::super::profile::Profile;
use super::super::table::{
    ActionCall, DirectMeter, FieldMatch, Indirect, Key, KeyField, Match, Signature, Table,
    TableAction, TableDeclaration, TableEntry, TableMut, TableParam,
};
use super::arrays::unit;
use super::check_size;
use super::profile::Profiles;

/// Parameters of the actions of all tables together.
const MAX_PARAMS: u64 = 1 << 20;

pub(super) struct Loader<'a> {
    pub file: &'a json::Program,
    /// `None` if the program is loaded without one.
    pub p4info: Option<&'a P4Info>,
    pub names: &'a Names<'a>,
    pub actions: &'a [Action],
    /// Parameters of the tables' actions so far.
    pub params: Cell<u64>,
}

impl Loader<'_> {
    /// The pipelines, their tables with their initial entries, and the tables' action profiles.
    pub fn flow(&self, limits: &Limits) -> Result<(Flow, Vec<Table>, Vec<Profile>), LoadError> {
        let (mut flow, mut tables) = (Flow::default(), Vec::new());
        let mut profiles = Profiles::new(self.file, self.p4info)?;
        for pipeline in &self.file.pipelines {
            let nodes = NodeNames::new(pipeline, flow.nodes.len())?;
            for table in &pipeline.tables {
                let table = self.table(table, &nodes, &mut profiles, limits)?;
                match table.only_action() {
                    Some((action, args, next)) => {
                        flow.nodes.push(Node::Action { action, args, next })
                    }
                    None => {
                        flow.nodes.push(Node::Table(tables.len()));
                        tables.push(table);
                    }
                }
            }
            flow.add_branches(pipeline, &nodes, self.names, self.actions)?;
            let start = nodes.find(pipeline.init_table.as_deref())?;
            match pipeline.name.as_str() {
                "ingress" => flow.ingress = start,
                "egress" => flow.egress = start,
                other => return Err(LoadError::unsupported(format!("pipeline {other}"), "file")),
            }
        }
        flow.check_acyclic(&tables)?;
        let profiles = profiles.build(self.names.layout, limits)?;
        Ok((flow, tables, profiles))
    }

    fn table(
        &self,
        table: &json::Table,
        nodes: &NodeNames,
        profiles: &mut Profiles,
        limits: &Limits,
    ) -> Result<Table, LoadError> {
        let at = format!("table {}", table.name);
        let is_indirect = match table.kind.as_str() {
            "simple" => false,
            "indirect" | "indirect_ws" => true,
            other => return Err(LoadError::unsupported(format!("table type {other}"), at)),
        };
        if !["exact", "lpm", "ternary", "range"].contains(&table.match_type.as_str()) {
            return Err(LoadError::unsupported(
                format!("match type {}", table.match_type),
                at,
            ));
        }
        let listed = self.p4info.and_then(|it| it.tables.get(&table.name));
        let may_be_unlisted = self.p4info.is_none() || !table.entries.is_empty();
        if listed.is_none() && !table.key.is_empty() && !may_be_unlisted {
            return Err(LoadError::p4info(format!(
                "the P4Info has no table {}",
                table.name
            )));
        }
        let size = listed.map_or(table.max_size, |listed| listed.size);
        let size = size.max(table.entries.len() as u64);
        // A table without a key has no entries, even if the compiler gives it a size.
        if !table.key.is_empty() {
            check_size("number of entries", size, limits.table_entries, &at)?;
        }
        let key = self.key(table, listed, &at)?;
        let actions = self.table_actions(table, listed, nodes, &at)?;
        let (default, indirect) = match is_indirect {
            true => (
                None,
                Some(self.indirect(table, listed, &actions, nodes, profiles, &at)?),
            ),
            false => (Some(self.default(table, listed, &actions, &at)?), None),
        };
        let default_is_const = table
            .default_entry
            .as_ref()
            .is_none_or(|default| default.action_const || default.action_entry_const);
        let declaration = TableDeclaration {
            id: listed.map_or(0, |listed| listed.id),
            name: table.name.clone(),
            key,
            actions,
            indirect,
            default,
            default_is_const: default_is_const
                || listed.is_none_or(|listed| listed.default_is_const),
            is_const: listed.is_none_or(|listed| listed.is_const),
            size: size as usize,
            has_counter: self.has_counter(table, &at)?,
            idle_timeouts: listed.is_some_and(|listed| listed.idle_timeouts),
            meter: self.direct_meter(table, &at)?,
        };
        let initial = self.initial_entries(table, &declaration, &at)?;
        let malformed = |error| LoadError::malformed(error, &at);
        let mut built = Table::new(declaration).map_err(malformed)?;
        let mut writable = TableMut::new(&mut built, &mut []);
        for entry in initial {
            writable.insert_initial(entry).map_err(malformed)?;
        }
        Ok(built)
    }

    /// The default action of a table, and its arguments.
    fn default(
        &self,
        table: &json::Table,
        listed: Option<&TableInfo>,
        actions: &[TableAction],
        at: &str,
    ) -> Result<(usize, Vec<Vec<u8>>), LoadError> {
        if listed.is_some_and(|listed| listed.profile.is_some()) {
            let what = format!("{at} has no action profile, but one in the P4Info");
            return Err(LoadError::p4info(what));
        }
        let default = table.default_entry.as_ref();
        let default = default.ok_or_else(|| LoadError::malformed("no default entry", at))?;
        let action = self.find_action(actions, default.action_id, at)?;
        let args = self.hex_args(&actions[action], &default.action_data, at)?;
        Ok((action, args))
    }

    /// Returns a table's action profile with its actions, and the nodes that follow a hit and a miss.
    fn indirect(
        &self,
        table: &json::Table,
        listed: Option<&TableInfo>,
        actions: &[TableAction],
        nodes: &NodeNames,
        profiles: &mut Profiles,
        at: &str,
    ) -> Result<Indirect, LoadError> {
        // BMv2 has neither for such tables, and p4c leaves them out of what it prints.
        if table.default_entry.is_some() || !table.entries.is_empty() {
            let what = "an entry of the program's in a table with an action profile";
            return Err(LoadError::unsupported(what, at));
        }
        let profile = listed.and_then(|listed| listed.profile);
        let attached = profiles.attach(table, profile, actions, at)?;
        let base = nodes.find(table.base_default_next.as_deref())?;
        let next = |label: &str| match table.next_tables.get(label) {
            Some(next) => nodes.find(next.as_str()),
            None => Ok(base),
        };
        Ok(Indirect {
            profile: attached.profile,
            actions: attached.actions,
            on_hit: next("__HIT__")?,
            on_miss: next("__MISS__")?,
        })
    }

    fn key(
        &self,
        table: &json::Table,
        listed: Option<&TableInfo>,
        at: &str,
    ) -> Result<Key, LoadError> {
        if let Some(listed) = listed.filter(|listed| listed.fields.len() != table.key.len()) {
            let (have, want) = (table.key.len(), listed.fields.len());
            let what = format!("{at} has {have} key fields, its P4Info {want}");
            return Err(LoadError::p4info(what));
        }
        let mut fields = Vec::new();
        let mut bits = 0;
        for (index, part) in table.key.iter().enumerate() {
            let (header, field) = &part.target;
            let slot = self.names.layout.field(header, field, at)?;
            bits += u64::from(slot.width);
            LoadError::check("width of the key in bits", bits, MAX_KEY_BITS, at)?;
            let written = kind_of(&part.match_type, at)?;
            let (id, name, kind) = match listed.map(|listed| &listed.fields[index]) {
                Some(known) => {
                    let renamed = part.name.as_ref().is_some_and(|name| *name != known.name);
                    // The format has no optional match: p4c prints it as ternary.
                    let kind = match known.kind {
                        MatchKind::Optional => MatchKind::Ternary,
                        other => other,
                    };
                    if renamed || kind != written {
                        let what = format!(
                            "{at}, key field {index} is {} ({}), its P4Info has {} ({:?})",
                            part.name.as_deref().unwrap_or(field),
                            part.match_type,
                            known.name,
                            known.kind,
                        );
                        return Err(LoadError::p4info(what));
                    }
                    (known.id, known.name.clone(), known.kind)
                }
                None => {
                    let target = || format!("{header}.{field}");
                    let name = part.name.clone().unwrap_or_else(target);
                    (index as u32 + 1, name, written)
                }
            };
            let mask = match &part.mask {
                Some(mask) => {
                    let value = low_bits(&json::hex(mask, at)?, slot.width);
                    Some(words_of(&value, slot.width))
                }
                None => None,
            };
            let instance = self.names.layout.find(header, at)?;
            let header = (field != "$valid$").then_some(instance);
            let known = listed.map(|listed| &listed.fields[index]);
            if let Some(known) = known.filter(|known| known.width != 0) {
                let what = format!("{at}, match field {name}");
                check_width(&what, slot.width, known.width, known.is_translated)?;
            }
            let outer_width = known.map(|known| known.width);
            fields.push(KeyField {
                id,
                name,
                kind,
                slot,
                outer_width: outer_width.filter(|outer| ![0, slot.width].contains(outer)),
                header,
                mask,
            });
        }
        Ok(Key::new(fields))
    }

    /// Counts the parameters of the actions of all tables: each table has its own list.
    fn count_params(&self, more: usize, at: &str) -> Result<(), LoadError> {
        self.params.set(self.params.get() + more as u64);
        let what = "number of action parameters, with those of the tables before,";
        LoadError::check(what, self.params.get(), MAX_PARAMS, at)
    }

    fn table_actions(
        &self,
        table: &json::Table,
        listed: Option<&TableInfo>,
        nodes: &NodeNames,
        at: &str,
    ) -> Result<Vec<TableAction>, LoadError> {
        let mut actions = Vec::new();
        let mut seen = HashSet::new();
        for id in &table.action_ids {
            if !seen.insert(id) {
                return Err(LoadError::malformed(
                    format!("action {id} is there twice"),
                    at,
                ));
            }
            let found = self.actions.iter().position(|action| action.id == *id);
            let at_action = LoadError::found(found, "action", id, at)?;
            let action = &self.actions[at_action];
            self.count_params(action.params.len(), at)?;
            let (p4info_id, scope, params) = match listed {
                Some(listed) => self.listed_action(listed, action, at)?,
                // The control plane cannot see the table, so no id will ever be asked for.
                None => (*id, ActionScope::Everywhere, with_ids(action, 1..)),
            };
            let next = |label: &str| match table.next_tables.get(label) {
                Some(next) => nodes.find(next.as_str()).map(Some),
                None => Ok(None),
            };
            let base = nodes.find(table.base_default_next.as_deref())?;
            let own = next(&action.name)?;
            actions.push(TableAction {
                signature: Signature {
                    id: p4info_id,
                    params,
                    args_bytes: action.args_bytes,
                    scope,
                },
                action: at_action,
                on_hit: next("__HIT__")?.or(own).unwrap_or(base),
                on_miss: next("__MISS__")?.or(own).unwrap_or(base),
            });
        }
        let known = |label: &&String| {
            ["__HIT__", "__MISS__"].contains(&label.as_str())
                || actions
                    .iter()
                    .any(|action| self.actions[action.action].name == **label)
        };
        if let Some(label) = table.next_tables.keys().find(|label| !known(label)) {
            return Err(LoadError::malformed(format!("next_tables has {label}"), at));
        }
        Ok(actions)
    }

    fn listed_action(
        &self,
        listed: &TableInfo,
        action: &Action,
        at: &str,
    ) -> Result<(u32, ActionScope, Vec<TableParam>), LoadError> {
        let named = |(id, scope): &(u32, ActionScope)| {
            let known = self.p4info?.actions.get(id)?;
            (known.name == action.name).then_some((*id, *scope, known))
        };
        let Some((id, scope, known)) = listed.actions.iter().find_map(named) else {
            let what = format!("{at} has action {}, its P4Info has not", action.name);
            return Err(LoadError::p4info(what));
        };
        Ok((id, scope, params(action, known)?))
    }

    fn find_action(&self, actions: &[TableAction], id: u32, at: &str) -> Result<usize, LoadError> {
        let found = actions
            .iter()
            .position(|action| self.actions[action.action].id == id);
        found.ok_or_else(|| LoadError::malformed(format!("it has no action {id}"), at))
    }

    /// Arguments that the file gives, as big-endian bytes.
    fn hex_args(
        &self,
        action: &TableAction,
        data: &[String],
        at: &str,
    ) -> Result<Vec<Vec<u8>>, LoadError> {
        let params = &action.signature.params;
        if data.len() != params.len() {
            let (have, want) = (data.len(), params.len());
            let what = format!("an action has {have} arguments, it takes {want}");
            return Err(LoadError::malformed(what, at));
        }
        let args = data.iter().zip(params);
        args.map(|(digits, param)| hex_bytes(digits, param.slot.width, at))
            .collect()
    }

    fn initial_entries(
        &self,
        table: &json::Table,
        declaration: &TableDeclaration,
        at: &str,
    ) -> Result<Vec<TableEntry>, LoadError> {
        // In the file the lowest number wins, in P4Runtime the highest.
        let highest = table
            .entries
            .iter()
            .filter_map(|entry| entry.priority)
            .max()
            .unwrap_or(0);
        let mut entries = Vec::new();
        for entry in &table.entries {
            if entry.match_key.len() != declaration.key.fields.len() {
                let (have, want) = (entry.match_key.len(), declaration.key.fields.len());
                let what = format!("an entry has {have} match fields, the key {want}");
                return Err(LoadError::malformed(what, at));
            }
            let mut key = Vec::new();
            for (written, field) in entry.match_key.iter().zip(&declaration.key.fields) {
                if let Some(matches) = initial_match(written, field, at)? {
                    key.push(FieldMatch {
                        field: field.id,
                        matches,
                    });
                }
            }
            let id = entry.action_entry.action_id;
            let action = &declaration.actions[self.find_action(&declaration.actions, id, at)?];
            let args = self.hex_args(action, &entry.action_entry.action_data, at)?;
            let params = action
                .signature
                .params
                .iter()
                .map(|param| param.id)
                .zip(args)
                .collect();
            let priority = match declaration.key.has_priority() {
                true => {
                    let lower = highest.saturating_sub(entry.priority.unwrap_or(highest));
                    i32::try_from(lower.saturating_add(1))
                        .map_err(|_| LoadError::malformed("priorities are too far apart", at))?
                }
                false => 0,
            };
            let call = ActionCall {
                action: action.signature.id,
                params,
            };
            entries.push(TableEntry {
                key,
                priority,
                action: Some(call.into()),
                ..TableEntry::default()
            });
        }
        Ok(entries)
    }

    fn has_counter(&self, table: &json::Table, at: &str) -> Result<bool, LoadError> {
        let bound = |counter: &&json::CounterArray| {
            counter.is_direct && counter.binding.as_deref() == Some(table.name.as_str())
        };
        let found = self.file.counter_arrays.iter().find(bound);
        if table.with_counters && found.is_none() {
            return Err(LoadError::malformed(
                "its direct counter is not declared",
                at,
            ));
        }
        Ok(found.is_some())
    }

    fn direct_meter(
        &self,
        table: &json::Table,
        at: &str,
    ) -> Result<Option<DirectMeter>, LoadError> {
        let Some(name) = &table.direct_meters else {
            return Ok(None);
        };
        let found = self
            .file
            .meter_arrays
            .iter()
            .find(|m| m.is_direct && m.name == *name);
        let of_table = |meter: &&json::MeterArray| meter.binding.as_ref() == Some(&table.name);
        let meter = LoadError::found(found.filter(of_table), "direct meter", name, at)?;
        let (header, field) = meter.result_target.as_ref().ok_or_else(|| {
            LoadError::malformed(format!("direct meter {name} has no result_target"), at)
        })?;
        let color = self.names.layout.field(header, field, at)?;
        if color.width > 64 {
            return Err(LoadError::unsupported("a colour of more than 64 bits", at));
        }
        Ok(Some(DirectMeter {
            unit: unit(meter)?,
            color,
        }))
    }
}

/// The parameters of an action: the file knows their widths, P4Info their ids.
fn params(action: &Action, known: &ActionInfo) -> Result<Vec<TableParam>, LoadError> {
    let same = action.params.len() == known.params.len()
        && action
            .params
            .iter()
            .zip(&known.params)
            .all(|(own, known)| own.name == known.name);
    if !same {
        let what = format!("action {} has other parameters in the P4Info", action.name);
        return Err(LoadError::p4info(what));
    }
    for (own, known) in action.params.iter().zip(&known.params) {
        let what = format!("action {}, parameter {}", action.name, known.name);
        check_width(&what, own.slot.width, known.width, known.is_translated)?;
    }
    Ok(with_ids(action, known.params.iter().map(|known| known.id)))
}

/// Checks the P4Info's width of a match field or parameter.
fn check_width(what: &str, own: u32, outer: u32, is_translated: bool) -> Result<(), LoadError> {
    if outer == own || is_translated {
        return Ok(());
    }
    let what = format!("{what} has {own} bits, {outer} in the P4Info");
    Err(LoadError::p4info(what))
}

fn with_ids(action: &Action, ids: impl IntoIterator<Item = u32>) -> Vec<TableParam> {
    let params = action.params.iter().zip(ids);
    let param = |(param, id): (&Param, u32)| TableParam {
        id,
        name: param.name.clone(),
        slot: param.slot,
    };
    params.map(param).collect()
}

fn kind_of(name: &str, at: &str) -> Result<MatchKind, LoadError> {
    Ok(match name {
        "exact" => MatchKind::Exact,
        "lpm" => MatchKind::Lpm,
        "ternary" | "optional" => MatchKind::Ternary,
        "range" => MatchKind::Range,
        other => return Err(LoadError::unsupported(format!("match type {other}"), at)),
    })
}

/// A match field as the control plane would write it; `None` if it does not matter.
fn initial_match(
    written: &json::MatchKey,
    field: &KeyField,
    at: &str,
) -> Result<Option<Match>, LoadError> {
    let width = field.slot.width;
    let number = |digits: &str| -> Result<BigInt, LoadError> {
        Ok(BigInt::from(low_bits(&json::hex(digits, at)?, width)))
    };
    let bytes = |value: &BigInt| value.to_bytes_be().1;
    let all = BigInt::from(big_mask(width));
    Ok(match written {
        json::MatchKey::Exact { key } => Some(Match::Exact(bytes(&number(key)?))),
        json::MatchKey::Lpm {
            prefix_length: 0, ..
        } => None,
        json::MatchKey::Lpm { key, prefix_length } if *prefix_length <= width => {
            let kept = all - BigInt::from(big_mask(width - prefix_length));
            let value = bytes(&(number(key)? & kept));
            Some(Match::Lpm {
                value,
                prefix_len: *prefix_length,
            })
        }
        json::MatchKey::Lpm { .. } => {
            return Err(LoadError::malformed(
                "a prefix is longer than its field",
                at,
            ));
        }
        json::MatchKey::Ternary { key, mask } | json::MatchKey::Optional { key, mask } => {
            let mask = number(mask)?;
            let value = bytes(&(number(key)? & &mask));
            match field.kind {
                _ if mask.sign() == Sign::NoSign => None,
                MatchKind::Optional if mask == all => Some(Match::Optional(value)),
                _ => Some(Match::Ternary {
                    value,
                    mask: bytes(&mask),
                }),
            }
        }
        json::MatchKey::Range { start, end } => {
            let (low, high) = (number(start)?, number(end)?);
            let everything = low.sign() == Sign::NoSign && high == all;
            let range = Match::Range {
                low: bytes(&low),
                high: bytes(&high),
            };
            (!everything).then_some(range)
        }
    })
}

/// A number of the file as big-endian bytes of at most `width` bits.
fn hex_bytes(digits: &str, width: u32, at: &str) -> Result<Vec<u8>, LoadError> {
    Ok(low_bits(&json::hex(digits, at)?, width).to_bytes_be())
}
