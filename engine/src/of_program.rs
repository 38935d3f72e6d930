//! A P4Info for a program that comes without one.

use std::collections::HashMap;

use super::error::LoadError;
use super::json::{self, Term};
use super::layout::Layout;
use super::load::{indirect_counters, indirect_meters, kind_of};
use super::p4info::{
    ActionInfo, ArrayInfo, FieldInfo, P4Info, ProfileInfo, TableInfo, ValueSetInfo,
};
use super::table::{ActionScope, MatchKind};

/// Size of an action profile whose JSON names none.
const DEFAULT_SIZE: u64 = 1024;

impl P4Info {
    /// Returns a P4Info with which a program loads, for packets alone. Ids are positions in the file. It lacks what only a control
    /// plane needs: direct counters and meters, digests, controller headers, types, and the sizes of value sets, which are empty.
    ///
    /// # Errors
    /// The file is not the JSON of p4c's BMv2 backend, or not supported.
    pub fn of_program(json: &[u8]) -> Result<P4Info, LoadError> {
        let file = json::parse(json)?;
        let layout = Layout::new(&file)?;
        let profiles: HashMap<String, ProfileInfo> = (1..)
            .zip(file.pipelines.iter().flat_map(|it| &it.action_profiles))
            .map(|(id, profile)| (profile.name.clone(), profile_info(id, profile)))
            .collect();
        let ids = action_ids(&file.actions);
        let tables = file.pipelines.iter().flat_map(|pipeline| &pipeline.tables);
        let tables = (1..).zip(tables).map(|(id, table)| {
            let profile = table.action_profile.as_ref();
            let described = TableInfo {
                id,
                fields: fields(table)?,
                actions: (table.action_ids.iter())
                    .filter_map(|number| Some((*ids.get(number)?, ActionScope::Everywhere)))
                    .collect(),
                size: table.max_size,
                profile: profile.and_then(|name| Some(profiles.get(name)?.id)),
                ..TableInfo::default()
            };
            Ok((table.name.clone(), described))
        });
        let value_sets = (1..).zip(&file.parse_vsets).map(|(id, set)| {
            let fields = set_fields(&file, &layout, set)?;
            let size = 0;
            Ok((set.name.clone(), ValueSetInfo { id, fields, size }))
        });
        let registers = file.register_arrays.iter();
        Ok(P4Info {
            tables: tables.collect::<Result<_, LoadError>>()?,
            actions: (file.actions.iter())
                .map(|action| (ids[&action.id], action_info(action)))
                .collect(),
            counters: arrays(indirect_counters(&file).map(|(it, size)| (&it.name, size))),
            meters: arrays(indirect_meters(&file).map(|it| (&it.name, it.size))),
            registers: arrays(registers.map(|it| (&it.name, it.size))),
            value_sets: value_sets.collect::<Result<_, LoadError>>()?,
            profiles,
            ..P4Info::default()
        })
    }
}

/// The ids of actions, by their numbers in the file. The file repeats an action for each table that uses it; they have one id.
fn action_ids(actions: &[json::Action]) -> HashMap<u32, u32> {
    let mut of_name = HashMap::new();
    let ids = (1..).zip(actions).map(|(id, action)| {
        let id = *of_name.entry(action.name.as_str()).or_insert(id);
        (action.id, id)
    });
    ids.collect()
}

fn action_info(action: &json::Action) -> ActionInfo {
    let params = (1..).zip(&action.runtime_data);
    ActionInfo {
        name: action.name.clone(),
        params: params.map(|(id, data)| (id, data.name.clone())).collect(),
    }
}

fn arrays<'a>(arrays: impl Iterator<Item = (&'a String, u64)>) -> HashMap<String, ArrayInfo> {
    let array = |(id, (name, size)): (u32, (&String, u64))| {
        let signed = false;
        (name.clone(), ArrayInfo { id, size, signed })
    };
    (1..).zip(arrays).map(array).collect()
}

fn profile_info(id: u32, profile: &json::ActionProfile) -> ProfileInfo {
    ProfileInfo {
        id,
        with_selector: profile.selector.is_some(),
        size: profile.max_size.unwrap_or(DEFAULT_SIZE),
        max_group_size: 0,
    }
}

fn fields(table: &json::Table) -> Result<Vec<FieldInfo>, LoadError> {
    let at = format!("table {}", table.name);
    let fields = (1..).zip(&table.key).map(|(id, key)| {
        let target = || format!("{}.{}", key.target.0, key.target.1);
        Ok(FieldInfo {
            id,
            name: key.name.clone().unwrap_or_else(target),
            kind: kind_of(&key.match_type, &at)?,
            width: 0,
        })
    });
    fields.collect()
}

/// The fields of a value set: those of the parser's key that it is compared with.
fn set_fields(
    file: &json::Program,
    layout: &Layout,
    set: &json::ParseVset,
) -> Result<Vec<FieldInfo>, LoadError> {
    let at = format!("value set {}", set.name);
    let names_set =
        |it: &json::Transition| it.kind == "parse_vset" && it.value.as_ref() == Some(&set.name);
    let mut states = file.parsers.iter().flat_map(|it| &it.parse_states);
    let state = states.find(|state| state.transitions.iter().any(names_set));
    let key = state.map_or(&[][..], |state| &state.transition_key);
    let fields = (1..).zip(key).map(|(id, part)| {
        let width = match Term::parse(part, &at)? {
            Term::Lookahead(_, width) => width,
            Term::Field(header, field) => layout.field(&header, &field, &at)?.width,
            Term::StackField(stack, field) => {
                let stack = file.header_stacks.iter().find(|it| it.name == stack);
                let first = stack.and_then(|stack| stack.header_ids.first());
                let header = file.headers.iter().find(|it| Some(&it.id) == first);
                let header = header
                    .ok_or_else(|| LoadError::malformed("the key's stack has no header", &at))?;
                layout.field(&header.name, &field, &at)?.width
            }
            _ => return Err(LoadError::unsupported("a key of this kind", &at)),
        };
        Ok(FieldInfo {
            id,
            name: String::new(),
            kind: MatchKind::Exact,
            width,
        })
    });
    let fields: Vec<FieldInfo> = fields.collect::<Result<_, LoadError>>()?;
    if fields.is_empty() {
        // No state uses the set.
        let width = u32::try_from(set.compressed_bitwidth).unwrap_or(u32::MAX);
        let (name, kind) = (String::new(), MatchKind::Exact);
        return Ok(vec![FieldInfo {
            id: 1,
            name,
            kind,
            width,
        }]);
    }
    Ok(fields)
}
