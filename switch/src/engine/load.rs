//! Loading: from the two files to an engine.

use std::collections::{HashMap, HashSet};

use num_bigint::{BigInt, Sign};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_p4runtime::config::v1::P4Info;

use super::action::{Action, State};
use super::bits::{Slot, low_bits};
use super::checksum::{Calculation, Checksum};
use super::counter::{Counter, CounterCell};
use super::deparser::Deparser;
use super::error::LoadError;
use super::json::{self, Term};
use super::layout::Layout;
use super::meter::{Meter, MeterCell, MeterUnit};
use super::parser::Parser;
use super::pipeline::{Flow, Node, NodeNames};
use super::pre::Pre;
use super::primitive::Names;
use super::register::Register;
use super::schema::{ActionSchema, ArraySchema, Schema, TableSchema};
use super::standard::Standard;
use super::table::{
    ActionCall, Declaration, DirectMeter, FieldMatch, Key, KeyField, Match, MatchKind, Scope,
    Table, TableAction, TableEntry, TableParam,
};
use super::{Engine, Limits, Program};

impl Engine {
    /// Loads a program: `json` is p4c's BMv2 JSON, `p4info` its P4Info.
    ///
    /// # Errors
    /// Anything the format has and this interpreter does not implement is refused by name, and so
    /// is a program whose objects are not those of the P4Info.
    pub fn load(json: &[u8], p4info: &P4Info, limits: Limits) -> Result<Engine, LoadError> {
        let file = json::parse(json)?;
        refuse(&file)?;
        let schema = Schema::new(p4info)?;
        let layout = Layout::new(&file)?;
        let standard = Standard::new(&file, &layout)?;
        let registers: Vec<_> = file
            .register_arrays
            .iter()
            .map(|r| (r.name.clone(), r.bitwidth))
            .collect();

        let calculations = file
            .calculations
            .iter()
            .map(|c| Calculation::new(c, &layout));
        let calculations = calculations.collect::<Result<Vec<_>, _>>()?;
        let (field_lists, field_list_ids) = field_lists(&file, &layout)?;
        let names = Names {
            layout: &layout,
            registers: &registers,
            counters: positions(indirect_counters(&file).map(|(counter, _)| &counter.name)),
            meters: positions(indirect_meters(&file).map(|meter| &meter.name)),
            calculations: positions(calculations.iter().map(|c| &c.name)),
            field_lists: field_list_ids,
        };
        let actions = file.actions.iter().map(|action| names.action(action));
        let actions = actions.collect::<Result<Vec<_>, _>>()?;
        let checksums = file.checksums.iter().map(|checksum| {
            let at = format!("checksum {}", checksum.name);
            Checksum::new(checksum, names.scope(&[], &at), &calculations)
        });
        let checksums = checksums.collect::<Result<Vec<_>, _>>()?;
        let parser = Parser::new(one(&file.parsers, "parser")?, &file.errors, &names)?;
        let deparser = Deparser::new(one(&file.deparsers, "deparser")?, &names)?;

        let loader = Loader {
            file: &file,
            schema: &schema,
            names: &names,
            actions: &actions,
        };
        let (flow, tables) = loader.flow(&limits)?;
        let state = loader.state(&limits)?;
        check_any_there(&file, &schema)?;

        let pre = Pre::new(limits.groups, limits.sessions, limits.replicas);
        let program = Program {
            standard,
            calculations,
            checksums,
            field_lists,
            parser,
            deparser,
            flow,
            actions,
            errors: file.errors.clone(),
            layout,
        };
        Ok(Engine::assemble(program, tables, state, pre, limits))
    }
}

/// Refuses what the file has and this switch does not.
fn refuse(file: &json::Program) -> Result<(), LoadError> {
    let (major, minor) = file.meta.version;
    if major != 2 {
        let what = format!("format version {major}.{minor}");
        return Err(LoadError::unsupported(what, "__meta__"));
    }
    let profiles = file
        .pipelines
        .iter()
        .flat_map(|pipeline| &pipeline.action_profiles);
    let unknown = [
        ("a parser value set", file.parse_vsets.first()),
        ("an extern instance", file.extern_instances.first()),
        ("an action profile", profiles.into_iter().next()),
    ];
    for (what, found) in unknown {
        if let Some(found) = found {
            return Err(LoadError::unsupported(what, &found.name));
        }
    }
    Ok(())
}

fn one<'a, T>(all: &'a [T], what: &str) -> Result<&'a T, LoadError> {
    match all {
        [one] => Ok(one),
        _ => Err(LoadError::malformed(
            format!("expected one, found {}", all.len()),
            what,
        )),
    }
}

fn positions<'a>(names: impl Iterator<Item = &'a String>) -> HashMap<String, usize> {
    names
        .enumerate()
        .map(|(at, name)| (name.clone(), at))
        .collect()
}

fn indirect_counters(file: &json::Program) -> impl Iterator<Item = (&json::CounterArray, u64)> {
    let indirect = file
        .counter_arrays
        .iter()
        .filter(|counter| !counter.is_direct);
    indirect.map(|counter| (counter, counter.size.unwrap_or(0)))
}

fn indirect_meters(file: &json::Program) -> impl Iterator<Item = &json::MeterArray> {
    file.meter_arrays.iter().filter(|meter| !meter.is_direct)
}

/// Field lists as slots, and their positions by id.
type FieldLists = (Vec<Vec<Slot>>, HashMap<u32, usize>);

fn field_lists(file: &json::Program, layout: &Layout) -> Result<FieldLists, LoadError> {
    let (mut lists, mut by_id) = (Vec::new(), HashMap::new());
    for list in &file.field_lists {
        let at = format!("field list {}", list.name);
        let slots = list
            .elements
            .iter()
            .map(|element| match Term::parse(element, &at)? {
                Term::Field(header, field) => layout.field(&header, &field, &at),
                other => Err(LoadError::unsupported(format!("{other:?}"), &at)),
            });
        by_id.insert(list.id, lists.len());
        lists.push(slots.collect::<Result<_, _>>()?);
    }
    Ok((lists, by_id))
}

/// p4c drops tables that no packet can reach from the program and keeps them in P4Info, so P4Info
/// may list more than there is. But a P4Info of which nothing is there belongs to another program.
fn check_any_there(file: &json::Program, schema: &Schema) -> Result<(), LoadError> {
    let tables = file
        .pipelines
        .iter()
        .flat_map(|p| &p.tables)
        .map(|table| &table.name);
    let arrays = (file.counter_arrays.iter().map(|counter| &counter.name))
        .chain(file.meter_arrays.iter().map(|meter| &meter.name))
        .chain(file.register_arrays.iter().map(|register| &register.name));
    let there: HashSet<_> = tables.chain(arrays).collect();
    let mut listed = (schema.tables.keys())
        .chain(schema.counters.keys())
        .chain(schema.meters.keys())
        .chain(schema.registers.keys())
        .chain(schema.direct.keys())
        .peekable();
    match listed.peek().copied() {
        Some(first) if !listed.any(|name| there.contains(name)) => {
            let what = format!("the program has nothing of what it lists, {first} for one");
            Err(LoadError::p4info(what))
        }
        _ => Ok(()),
    }
}

struct Loader<'a> {
    file: &'a json::Program,
    schema: &'a Schema,
    names: &'a Names<'a>,
    actions: &'a [Action],
}

impl Loader<'_> {
    fn flow(&self, limits: &Limits) -> Result<(Flow, Vec<Table>), LoadError> {
        let (mut flow, mut tables) = (Flow::default(), Vec::new());
        for pipeline in &self.file.pipelines {
            let nodes = NodeNames::new(pipeline, flow.nodes.len())?;
            for table in &pipeline.tables {
                flow.nodes.push(Node::Table(tables.len()));
                tables.push(self.table(table, &nodes, limits)?);
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
        Ok((flow, tables))
    }

    fn table(
        &self,
        table: &json::Table,
        nodes: &NodeNames,
        limits: &Limits,
    ) -> Result<Table, LoadError> {
        let at = format!("table {}", table.name);
        if table.kind != "simple" {
            return Err(LoadError::unsupported(
                format!("table type {}", table.kind),
                at,
            ));
        }
        if !["exact", "lpm", "ternary", "range"].contains(&table.match_type.as_str()) {
            return Err(LoadError::unsupported(
                format!("match type {}", table.match_type),
                at,
            ));
        }
        let listed = self.schema.tables.get(&table.name);
        if listed.is_none() && !table.key.is_empty() && table.entries.is_empty() {
            return Err(LoadError::p4info(format!(
                "the P4Info has no table {}",
                table.name
            )));
        }
        let size = listed.map_or(table.max_size, |listed| listed.size);
        let size = size.max(table.entries.len() as u64);
        // Without a key there are no entries, whatever size the compiler gives the table.
        if !table.key.is_empty() {
            check_size("number of entries", size, limits.table_entries, &at)?;
        }
        let key = self.key(table, listed, &at)?;
        let actions = self.table_actions(table, listed, nodes, &at)?;
        let default = table.default_entry.as_ref();
        let default = default.ok_or_else(|| LoadError::malformed("no default entry", &at))?;
        let action = self.find_action(&actions, default.action_id, &at)?;
        let args = self.hex_args(&actions[action], &default.action_data, &at)?;
        let declaration = Declaration {
            id: listed.map_or(0, |listed| listed.id),
            name: table.name.clone(),
            key,
            actions,
            default: (action, args),
            default_is_const: default.action_const
                || default.action_entry_const
                || listed.is_none_or(|listed| listed.default_is_const),
            is_const: listed.is_none_or(|listed| listed.is_const),
            size: size as usize,
            has_counter: self.has_counter(table, &at)?,
            meter: self.direct_meter(table, &at)?,
        };
        let initial = self.initial_entries(table, &declaration, &at)?;
        let malformed = |error| LoadError::malformed(error, &at);
        let mut built = Table::new(declaration).map_err(malformed)?;
        for entry in initial {
            built.insert_initial(entry).map_err(malformed)?;
        }
        Ok(built)
    }

    fn key(
        &self,
        table: &json::Table,
        listed: Option<&TableSchema>,
        at: &str,
    ) -> Result<Key, LoadError> {
        if let Some(listed) = listed.filter(|listed| listed.fields.len() != table.key.len()) {
            let (have, want) = (table.key.len(), listed.fields.len());
            let what = format!("{at} has {have} key fields, its P4Info {want}");
            return Err(LoadError::p4info(what));
        }
        let mut fields = Vec::new();
        for (index, part) in table.key.iter().enumerate() {
            let (header, field) = &part.target;
            let slot = self.names.layout.field(header, field, at)?;
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
                None => (index as u32 + 1, format!("{header}.{field}"), written),
            };
            let mask = match &part.mask {
                Some(mask) => {
                    let value = low_bits(&json::hex(mask, at)?, slot.width);
                    Some(super::key::words_of(&value, slot.width))
                }
                None => None,
            };
            let instance = self.names.layout.find(header, at)?;
            let header = (field != "$valid$").then_some(instance);
            fields.push(KeyField {
                id,
                name,
                kind,
                slot,
                header,
                mask,
            });
        }
        Ok(Key::new(fields))
    }

    fn table_actions(
        &self,
        table: &json::Table,
        listed: Option<&TableSchema>,
        nodes: &NodeNames,
        at: &str,
    ) -> Result<Vec<TableAction>, LoadError> {
        let mut actions = Vec::new();
        for id in &table.action_ids {
            let found = self.actions.iter().position(|action| action.id == *id);
            let at_action = found
                .ok_or_else(|| LoadError::malformed(format!("there is no action {id}"), at))?;
            let action = &self.actions[at_action];
            let (p4info_id, scope, params) = match listed {
                Some(listed) => self.listed_action(listed, action, at)?,
                // The control plane cannot see the table, so no id will ever be asked for.
                None => (*id, Scope::Everywhere, unlisted_params(action)),
            };
            let next = |label: &str| match table.next_tables.get(label) {
                Some(next) => nodes.find(next.as_str()).map(Some),
                None => Ok(None),
            };
            let base = nodes.find(table.base_default_next.as_deref())?;
            let own = next(&action.name)?;
            actions.push(TableAction {
                id: p4info_id,
                action: at_action,
                params,
                args_bytes: action.args_bytes,
                scope,
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
        listed: &TableSchema,
        action: &Action,
        at: &str,
    ) -> Result<(u32, Scope, Vec<TableParam>), LoadError> {
        let named = |(id, scope): &(u32, Scope)| {
            let known = self.schema.actions.get(id)?;
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
        if data.len() != action.params.len() {
            let (have, want) = (data.len(), action.params.len());
            let what = format!("an action has {have} arguments, it takes {want}");
            return Err(LoadError::malformed(what, at));
        }
        let args = data.iter().zip(&action.params);
        args.map(|(digits, param)| hex_bytes(digits, param.slot.width, at))
            .collect()
    }

    fn initial_entries(
        &self,
        table: &json::Table,
        declaration: &Declaration,
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
            let action = Some(ActionCall {
                action: action.id,
                params,
            });
            entries.push(TableEntry {
                key,
                priority,
                action,
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
        let meter = found
            .filter(|meter| meter.binding.as_deref() == Some(table.name.as_str()))
            .ok_or_else(|| LoadError::malformed(format!("there is no direct meter {name}"), at))?;
        let (header, field) = meter.result_target.as_ref().ok_or_else(|| {
            LoadError::malformed(format!("direct meter {name} has no result_target"), at)
        })?;
        let color = self.names.layout.field(header, field, at)?;
        if !color.is_narrow() {
            return Err(LoadError::unsupported("a colour of more than 128 bits", at));
        }
        Ok(Some(DirectMeter {
            unit: unit(meter)?,
            color,
        }))
    }

    fn state(&self, limits: &Limits) -> Result<State, LoadError> {
        let schema = self.schema;
        let mut cells = Cells {
            used: 0,
            limit: limits.array_cells as u64,
        };
        let mut counters = Vec::new();
        for (counter, size) in indirect_counters(self.file) {
            let id = array_id("counter", &counter.name, size, &schema.counters)?;
            let size = cells.take("counter", &counter.name, size, 1)?;
            let (name, cells) = (counter.name.clone(), vec![CounterCell::default(); size]);
            counters.push(Counter { id, name, cells });
        }
        let mut meters = Vec::new();
        for meter in indirect_meters(self.file) {
            let id = array_id("meter", &meter.name, meter.size, &schema.meters)?;
            let size = cells.take("meter", &meter.name, meter.size, 1)?;
            let (name, cells) = (meter.name.clone(), vec![MeterCell::default(); size]);
            meters.push(Meter {
                id,
                name,
                unit: unit(meter)?,
                cells,
            });
        }
        let mut registers = Vec::new();
        for register in &self.file.register_arrays {
            let (name, width) = (&register.name, register.bitwidth);
            let id = array_id("register", name, register.size, &schema.registers)?;
            let words = u64::from(width.div_ceil(64).max(1));
            let size = cells.take("register", name, register.size, words)?;
            registers.push(Register::new(id, name.clone(), size, width));
        }
        Ok(State {
            counters,
            meters,
            registers,
            rng: Xoshiro256PlusPlus::seed_from_u64(0),
            scratch: Vec::new(),
            key: Vec::new(),
            masked: Vec::new(),
        })
    }
}

/// The parameters of an action: the file knows their widths, P4Info their ids.
fn params(action: &Action, known: &ActionSchema) -> Result<Vec<TableParam>, LoadError> {
    let same = action.params.len() == known.params.len()
        && action
            .params
            .iter()
            .zip(&known.params)
            .all(|(own, (_, name))| own.name == *name);
    if !same {
        let what = format!("action {} has other parameters in the P4Info", action.name);
        return Err(LoadError::p4info(what));
    }
    let both = action.params.iter().zip(&known.params);
    let param = |(own, (id, name)): (&super::action::Param, &(u32, String))| TableParam {
        id: *id,
        name: name.clone(),
        slot: own.slot,
    };
    Ok(both.map(param).collect())
}

fn unlisted_params(action: &Action) -> Vec<TableParam> {
    let params = action.params.iter().enumerate();
    let param = |(index, param): (usize, &super::action::Param)| TableParam {
        id: index as u32 + 1,
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
    let all = BigInt::from(super::bits::big_mask(width));
    Ok(match written {
        json::MatchKey::Exact { key } => Some(Match::Exact(bytes(&number(key)?))),
        json::MatchKey::Lpm {
            prefix_length: 0, ..
        } => None,
        json::MatchKey::Lpm { key, prefix_length } if *prefix_length <= width => {
            let kept = all - BigInt::from(super::bits::big_mask(width - prefix_length));
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

fn unit(meter: &json::MeterArray) -> Result<MeterUnit, LoadError> {
    let at = format!("meter {}", meter.name);
    if meter.rate_count != 2 {
        let what = format!("a meter with {} rates", meter.rate_count);
        return Err(LoadError::unsupported(what, at));
    }
    match meter.unit.as_str() {
        "packets" => Ok(MeterUnit::Packets),
        "bytes" => Ok(MeterUnit::Bytes),
        other => Err(LoadError::unsupported(format!("a meter of {other}"), at)),
    }
}

fn array_id(
    kind: &str,
    name: &str,
    size: u64,
    listed: &HashMap<String, ArraySchema>,
) -> Result<u32, LoadError> {
    match listed.get(name) {
        None => Err(LoadError::p4info(format!(
            "the P4Info has no {kind} {name}"
        ))),
        Some(found) if found.size != size => {
            let what = format!(
                "{kind} {name} has {size} cells, {} in the P4Info",
                found.size
            );
            Err(LoadError::p4info(what))
        }
        Some(found) => Ok(found.id),
    }
}

/// What is left of the limit on the cells of all arrays together.
struct Cells {
    used: u64,
    limit: u64,
}

impl Cells {
    /// Takes an array of `size` cells, each as large as `weight` of the smallest.
    fn take(&mut self, kind: &str, name: &str, size: u64, weight: u64) -> Result<usize, LoadError> {
        let at = format!("{kind} {name}");
        self.used = size.saturating_mul(weight).saturating_add(self.used);
        let (what, found, limit) = ("number of cells, with those before,", self.used, self.limit);
        if found > limit {
            return Err(LoadError::Limit {
                what,
                at,
                found,
                limit,
            });
        }
        Ok(size as usize)
    }
}

fn check_size(what: &'static str, found: u64, limit: usize, at: &str) -> Result<(), LoadError> {
    let limit = limit as u64;
    if found > limit {
        return Err(LoadError::Limit {
            what,
            at: at.into(),
            found,
            limit,
        });
    }
    Ok(())
}
