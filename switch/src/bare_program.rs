//! A P4Info for a program that starts without one, as simple_switch_grpc starts it.
//!
//! The engine needs ids and kinds of objects to load a program. No controller sees them: it must set a pipeline config with
//! the real P4Info first.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;
use serde_json::Value;
use ultima_p4runtime::config::v1::action::Param;
use ultima_p4runtime::config::v1::match_field::{Match, MatchType};
use ultima_p4runtime::config::v1::{
    Action, ActionProfile, ActionRef, Counter, MatchField, Meter, P4Info, Preamble, Register,
    Table, ValueSet,
};

/// Size of an action profile whose JSON names none.
const DEFAULT_SIZE: i64 = 1024;

/// The objects of p4c's BMv2 JSON that a P4Info lists.
#[derive(Deserialize)]
struct File {
    header_types: Vec<HeaderType>,
    headers: Vec<Instance>,
    #[serde(default)]
    header_stacks: Vec<Instance>,
    parsers: Vec<Parser>,
    actions: Vec<FileAction>,
    pipelines: Vec<Pipeline>,
    #[serde(default)]
    counter_arrays: Vec<Array>,
    #[serde(default)]
    meter_arrays: Vec<Array>,
    #[serde(default)]
    register_arrays: Vec<Array>,
    #[serde(default)]
    parse_vsets: Vec<Vset>,
}

#[derive(Deserialize)]
struct HeaderType {
    name: String,
    /// `[name, width]` or `[name, width, signed]`.
    fields: Vec<Vec<Value>>,
}

/// A header or a header stack.
#[derive(Deserialize)]
struct Instance {
    name: String,
    header_type: String,
}

#[derive(Deserialize)]
struct Parser {
    parse_states: Vec<ParseState>,
}

#[derive(Deserialize)]
struct ParseState {
    transitions: Vec<Transition>,
    transition_key: Vec<KeyPart>,
}

#[derive(Deserialize)]
struct Transition {
    #[serde(rename = "type")]
    kind: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
struct KeyPart {
    #[serde(rename = "type")]
    kind: String,
    value: Value,
}

#[derive(Deserialize)]
struct FileAction {
    name: String,
    id: u32,
    runtime_data: Vec<RuntimeData>,
}

#[derive(Deserialize)]
struct RuntimeData {
    name: String,
    bitwidth: i32,
}

#[derive(Deserialize)]
struct Pipeline {
    tables: Vec<FileTable>,
    #[serde(default)]
    action_profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct FileTable {
    name: String,
    key: Vec<Key>,
    action_ids: Vec<u32>,
    max_size: i64,
    action_profile: Option<String>,
}

#[derive(Deserialize)]
struct Key {
    match_type: String,
    target: (String, String),
    name: Option<String>,
}

#[derive(Deserialize)]
struct Profile {
    name: String,
    max_size: Option<i64>,
    selector: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Array {
    name: String,
    #[serde(default)]
    size: i64,
    #[serde(default)]
    is_direct: bool,
}

#[derive(Deserialize)]
struct Vset {
    name: String,
    compressed_bitwidth: i32,
}

/// Returns a P4Info that fits the program.
///
/// # Errors
/// The file is not the JSON of p4c's BMv2 backend.
pub(crate) fn p4info(json: &[u8]) -> Result<P4Info, serde_json::Error> {
    let file: File = serde_json::from_slice(json)?;
    let profiles: Vec<&Profile> = (file.pipelines.iter())
        .flat_map(|pipeline| &pipeline.action_profiles)
        .collect();
    let profile_id = |name: &str| {
        let position = profiles.iter().position(|profile| profile.name == name);
        position.map_or(0, id)
    };
    let tables = file.pipelines.iter().flat_map(|pipeline| &pipeline.tables);
    fn indirect(arrays: &[Array]) -> impl Iterator<Item = &Array> {
        arrays.iter().filter(|array| !array.is_direct)
    }
    // p4c repeats an action for each table that uses it. P4Info has it once, by its name.
    let (mut id_of_name, mut id_of_number) = (HashMap::new(), HashMap::new());
    for action in &file.actions {
        let next = id(id_of_name.len());
        let id = *id_of_name.entry(action.name.as_str()).or_insert(next);
        id_of_number.insert(action.id, id);
    }
    let mut listed = BTreeSet::new();
    Ok(P4Info {
        tables: (tables.enumerate())
            .map(|(at, table)| Table {
                preamble: preamble(id(at), &table.name),
                match_fields: (table.key.iter().enumerate())
                    .map(|(at, key)| match_field(id(at), key))
                    .collect(),
                action_refs: (table.action_ids.iter())
                    .filter_map(|number| id_of_number.get(number))
                    .map(|&id| ActionRef {
                        id,
                        ..ActionRef::default()
                    })
                    .collect(),
                implementation_id: table.action_profile.as_deref().map_or(0, profile_id),
                size: table.max_size,
                ..Table::default()
            })
            .collect(),
        actions: (file.actions.iter())
            .filter(|action| listed.insert(&action.name))
            .map(|action| Action {
                preamble: preamble(id_of_name[action.name.as_str()], &action.name),
                params: (action.runtime_data.iter().enumerate())
                    .map(|(at, data)| Param {
                        id: id(at),
                        name: data.name.clone(),
                        bitwidth: data.bitwidth,
                        ..Param::default()
                    })
                    .collect(),
            })
            .collect(),
        action_profiles: (profiles.iter().enumerate())
            .map(|(at, profile)| ActionProfile {
                preamble: preamble(id(at), &profile.name),
                with_selector: profile.selector.is_some(),
                size: profile.max_size.unwrap_or(DEFAULT_SIZE),
                ..ActionProfile::default()
            })
            .collect(),
        counters: (indirect(&file.counter_arrays).enumerate())
            .map(|(at, array)| Counter {
                preamble: preamble(id(at), &array.name),
                size: array.size,
                ..Counter::default()
            })
            .collect(),
        meters: (indirect(&file.meter_arrays).enumerate())
            .map(|(at, array)| Meter {
                preamble: preamble(id(at), &array.name),
                size: array.size,
                ..Meter::default()
            })
            .collect(),
        registers: (file.register_arrays.iter().enumerate())
            .map(|(at, array)| Register {
                preamble: preamble(id(at), &array.name),
                size: i32::try_from(array.size).unwrap_or(i32::MAX),
                ..Register::default()
            })
            .collect(),
        value_sets: (file.parse_vsets.iter().enumerate())
            .map(|(at, set)| ValueSet {
                preamble: preamble(id(at), &set.name),
                r#match: (file.widths(set).into_iter().enumerate())
                    .map(|(at, bitwidth)| MatchField {
                        id: id(at),
                        bitwidth,
                        r#match: Some(Match::MatchType(MatchType::Exact.into())),
                        ..MatchField::default()
                    })
                    .collect(),
                ..ValueSet::default()
            })
            .collect(),
        ..P4Info::default()
    })
}

impl File {
    /// The widths of a value set's fields: those of the parser's key that it is compared with.
    fn widths(&self, set: &Vset) -> Vec<i32> {
        let names_set = |transition: &Transition| {
            transition.kind.as_deref() == Some("parse_vset")
                && transition.value.as_ref() == Some(&set.name)
        };
        let mut states = self.parsers.iter().flat_map(|it| &it.parse_states);
        let state = states.find(|state| state.transitions.iter().any(names_set));
        let widths = state.map(|state| state.transition_key.iter().map(|part| self.width(part)));
        let widths: Option<Vec<i32>> = widths.and_then(Iterator::collect);
        widths.unwrap_or_else(|| vec![set.compressed_bitwidth])
    }

    /// The width of a part of a parser's key, in bits.
    fn width(&self, part: &KeyPart) -> Option<i32> {
        let at = |position| part.value.get(position);
        let instances = match part.kind.as_str() {
            "lookahead" => return i32::try_from(at(1)?.as_i64()?).ok(),
            "field" => &self.headers,
            "stack_field" => &self.header_stacks,
            _ => return None,
        };
        let (header, field) = (at(0)?.as_str()?, at(1)?);
        let instance = instances.iter().find(|it| it.name == header)?;
        let mut types = self.header_types.iter();
        let header_type = types.find(|it| it.name == instance.header_type)?;
        let mut fields = header_type.fields.iter();
        let found = fields.find(|it| it.first() == Some(field))?;
        i32::try_from(found.get(1)?.as_i64()?).ok()
    }
}

/// Returns the id of the object at a position; 0 is none.
fn id(position: usize) -> u32 {
    u32::try_from(position).map_or(u32::MAX, |position| position.saturating_add(1))
}

fn preamble(id: u32, name: &str) -> Option<Preamble> {
    Some(Preamble {
        id,
        name: name.to_owned(),
        ..Preamble::default()
    })
}

/// A match field without a width: the program knows it.
fn match_field(id: u32, key: &Key) -> MatchField {
    let kind = match key.match_type.as_str() {
        "exact" => MatchType::Exact,
        "lpm" => MatchType::Lpm,
        "ternary" => MatchType::Ternary,
        "optional" => MatchType::Optional,
        "range" => MatchType::Range,
        _ => MatchType::Unspecified,
    };
    let target = || format!("{}.{}", key.target.0, key.target.1);
    MatchField {
        id,
        name: key.name.clone().unwrap_or_else(target),
        r#match: Some(Match::MatchType(kind.into())),
        ..MatchField::default()
    }
}
