//! Loads an engine from a program's JSON and P4Info.

mod arrays;
mod profile;
mod table;
mod value_set;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::arrays::{indirect_counters, indirect_meters};
use self::table::Loader;
use super::bits::Slot;
use super::checksum::{Calculation, Checksum};
use super::code::{Code, Source};
use super::controller_header::ControllerHeaders;
use super::deparser::Deparser;
use super::digest;
use super::error::LoadError;
use super::json;
use super::layout::Layout;
use super::p4info::P4Info;
use super::parser::Parser;
use super::pre::Pre;
use super::primitive::Names;
use super::standard::Standard;
use super::trace::Symbols;
use super::{Engine, Limits, Program};

impl Engine {
    /// Loads a program: `json` is p4c's BMv2 JSON, `p4info` its P4Info.
    ///
    /// # Errors
    /// Anything the format has and this interpreter does not implement is refused by name, and so
    /// is a program whose objects are not those of the P4Info.
    pub fn load(json: &[u8], p4info: &P4Info, limits: Limits) -> Result<Engine, LoadError> {
        Engine::load_with(json, Some(p4info), limits)
    }

    /// Loads a program without its P4Info, for packets alone: no object has an id, and only packets change its state.
    ///
    /// # Errors
    /// As for [`Engine::load`].
    pub fn load_bare(json: &[u8], limits: Limits) -> Result<Engine, LoadError> {
        Engine::load_with(json, None, limits)
    }

    fn load_with(
        json: &[u8],
        p4info: Option<&P4Info>,
        limits: Limits,
    ) -> Result<Engine, LoadError> {
        let file = json::parse(json)?;
        let nothing = P4Info::default();
        let listed = p4info.unwrap_or(&nothing);
        refuse(&file)?;
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
        let (digests, learn_lists, learn_list_ids) = digest::load(&file, listed, &layout)?;
        let names = Names {
            layout: &layout,
            registers: &registers,
            counters: positions(indirect_counters(&file).map(|(counter, _)| &counter.name)),
            meters: positions(indirect_meters(&file).map(|meter| &meter.name)),
            calculations: positions(calculations.iter().map(|c| &c.name)),
            field_lists: field_list_ids,
            learn_lists: learn_list_ids,
            blocks: RefCell::default(),
            first_block: file.actions.len(),
        };
        let actions = file.actions.iter().map(|action| names.action(action));
        let mut actions = actions.collect::<Result<Vec<_>, _>>()?;
        let checksums = file.checksums.iter().map(|checksum| {
            let at = format!("checksum {}", checksum.name);
            Checksum::new(checksum, names.scope(&[], &at), &calculations)
        });
        let checksums = checksums.collect::<Result<Vec<_>, _>>()?;
        let value_sets = value_set::value_sets(&file, p4info, &limits)?;
        let parser = one(&file.parsers, "parser")?;
        let parser = Parser::new(parser, &file.errors, &value_sets, &names)?;
        let deparser = Deparser::new(one(&file.deparsers, "deparser")?, &names)?;

        let loader = Loader {
            file: &file,
            p4info,
            names: &names,
            actions: &actions,
            params: Cell::new(0),
        };
        let (flow, tables, profiles) = loader.flow(&limits)?;
        actions.extend(names.blocks.take());
        let mut state = arrays::state(&file, p4info, value_sets, &limits)?;
        let longest = actions.iter().map(|action| action.args_bytes).max();
        state.args = vec![0; longest.unwrap_or_default()];
        check_any_there(&file, listed)?;

        let pre = Pre::new(&limits);
        let code = Code::new(Source {
            flow: &flow,
            tables: &tables,
            actions: &actions,
            registers: &state.registers,
            counters: &state.counters,
            parser: &parser,
            deparser: &deparser,
            checksums: &checksums,
            layout: &layout,
            max_states: limits.parser_states,
        });
        let program = Program {
            standard,
            calculations,
            checksums,
            field_lists,
            learn_lists,
            digests: digests.into(),
            parser,
            deparser,
            code,
            actions,
            symbols: Arc::new(Symbols::new(&file)),
            controller_headers: ControllerHeaders::new(listed, &layout)?.into(),
            layout,
        };
        Ok(Engine::assemble(
            program, tables, profiles, state, pre, limits,
        ))
    }
}

/// Refuses what the file has and this switch does not.
fn refuse(file: &json::Program) -> Result<(), LoadError> {
    let (major, minor) = file.meta.version;
    if major != 2 {
        let what = format!("format version {major}.{minor}");
        return Err(LoadError::unsupported(what, "__meta__"));
    }
    match file.extern_instances.first() {
        Some(found) => Err(LoadError::unsupported("an extern instance", &found.name)),
        None => Ok(()),
    }
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

/// Field lists as slots, and their positions by id.
type FieldLists = (Vec<Vec<Slot>>, HashMap<u32, usize>);

fn field_lists(file: &json::Program, layout: &Layout) -> Result<FieldLists, LoadError> {
    let (mut lists, mut by_id) = (Vec::new(), HashMap::new());
    for list in &file.field_lists {
        let at = format!("field list {}", list.name);
        by_id.insert(list.id, lists.len());
        lists.push(layout.slots(list, &at)?);
    }
    Ok((lists, by_id))
}

/// p4c drops tables that no packet can reach from the program, and their action profiles, and keeps
/// them in P4Info, so P4Info may list more than there is. But a P4Info of which nothing is there
/// belongs to another program, unless it lists nothing else, all of which may have been dropped: the
/// program has no table with a key.
fn check_any_there(file: &json::Program, p4info: &P4Info) -> Result<(), LoadError> {
    let tables = || file.pipelines.iter().flat_map(|p| &p.tables);
    let profiles = file.pipelines.iter().flat_map(|p| &p.action_profiles);
    let arrays = (file.counter_arrays.iter().map(|counter| &counter.name))
        .chain(file.meter_arrays.iter().map(|meter| &meter.name))
        .chain(file.register_arrays.iter().map(|register| &register.name))
        .chain(file.parse_vsets.iter().map(|set| &set.name))
        .chain(profiles.map(|profile| &profile.name));
    let there: HashSet<_> = tables().map(|table| &table.name).chain(arrays).collect();
    let has_keys = tables().any(|table| !table.key.is_empty());
    let mut other = (p4info.counters.keys())
        .chain(p4info.meters.keys())
        .chain(p4info.registers.keys())
        .chain(p4info.value_sets.keys())
        .chain(p4info.direct.keys())
        .peekable();
    if !has_keys && other.peek().is_none() {
        return Ok(());
    }
    let dropped = p4info.tables.keys().chain(p4info.profiles.keys());
    let mut listed = dropped.chain(other).peekable();
    match listed.peek().copied() {
        Some(first) if !listed.any(|name| there.contains(name)) => {
            let what = format!("the program has nothing of what it lists, {first} for one");
            Err(LoadError::p4info(what))
        }
        _ => Ok(()),
    }
}

fn check_size(what: &'static str, found: u64, limit: usize, at: &str) -> Result<(), LoadError> {
    LoadError::check(what, found, limit as u64, at)
}
