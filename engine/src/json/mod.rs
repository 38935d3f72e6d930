//! The BMv2 JSON format, version 2, as p4c prints it (behavioral-model's `docs/JSON_format.md`).
//!
//! The loader rejects attributes that are not listed here. Attributes that only describe the source are listed and ignored.

mod term;

use serde::Deserialize;
use serde::de::{Error, IgnoredAny};
use serde_json::Value;

use super::error::LoadError;
pub(super) use term::{Operand, Operation, Term, bitwidth, hex};

/// Where the source has an object. Only people look at it, so whatever is not as expected is left
/// out instead of refused.
#[derive(Debug, Clone, Default)]
pub(super) struct SourceInfo {
    pub filename: Option<String>,
    pub line: Option<u32>,
    pub fragment: Option<String>,
}

impl<'de> Deserialize<'de> for SourceInfo {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<SourceInfo, D::Error> {
        let info = Value::deserialize(from)?;
        let text = |key: &str| info.get(key).and_then(Value::as_str).map(str::to_owned);
        let line = info.get("line").and_then(Value::as_u64);
        Ok(SourceInfo {
            filename: text("filename"),
            line: line.and_then(|line| line.try_into().ok()),
            fragment: text("source_fragment"),
        })
    }
}

/// Attributes without a meaning for execution.
type Ignored = Option<IgnoredAny>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Program {
    #[serde(rename = "__meta__")]
    pub meta: Meta,
    #[serde(default, rename = "program")]
    _program: Ignored,
    pub header_types: Vec<HeaderType>,
    pub headers: Vec<Header>,
    #[serde(default)]
    pub header_stacks: Vec<HeaderStack>,
    #[serde(default)]
    pub header_union_types: Vec<UnionType>,
    #[serde(default)]
    pub header_unions: Vec<Union>,
    #[serde(default)]
    pub header_union_stacks: Vec<UnionStack>,
    #[serde(default)]
    pub field_lists: Vec<FieldList>,
    #[serde(default)]
    pub errors: Vec<(String, u32)>,
    /// Enum constants are numbers wherever they are used.
    #[serde(default, rename = "enums")]
    _enums: Ignored,
    pub parsers: Vec<Parser>,
    #[serde(default)]
    pub parse_vsets: Vec<ParseVset>,
    pub deparsers: Vec<Deparser>,
    #[serde(default)]
    pub meter_arrays: Vec<MeterArray>,
    #[serde(default)]
    pub counter_arrays: Vec<CounterArray>,
    #[serde(default)]
    pub register_arrays: Vec<RegisterArray>,
    #[serde(default)]
    pub calculations: Vec<Calculation>,
    /// What calls of `digest` tell.
    #[serde(default)]
    pub learn_lists: Vec<FieldList>,
    pub actions: Vec<Action>,
    pub pipelines: Vec<Pipeline>,
    #[serde(default)]
    pub checksums: Vec<Checksum>,
    /// A hint for BMv2's own representation of fields.
    #[serde(default, rename = "force_arith")]
    _force_arith: Ignored,
    #[serde(default)]
    pub extern_instances: Vec<Named>,
    #[serde(default)]
    pub field_aliases: Vec<(String, (String, String))>,
}

#[derive(Deserialize)]
pub(super) struct Meta {
    pub version: (u32, u32),
}

/// An object of which only the name is needed, to refuse it.
#[derive(Deserialize)]
pub(super) struct Named {
    pub name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderType {
    pub name: String,
    pub id: u32,
    pub fields: Vec<Field>,
    /// Bytes of the header with its variable-length field at its longest.
    pub max_length: Option<u32>,
    pub length_exp: Option<IgnoredAny>,
}

/// `[name, width]` or `[name, width, signed]`; the width `"*"` stands for a variable length.
pub(super) struct Field {
    pub name: String,
    pub width: Option<u32>,
    pub signed: bool,
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Field, D::Error> {
        let parts = Vec::<Value>::deserialize(from)?;
        let wrong = || D::Error::custom("a field is [name, width] or [name, width, signed]");
        let (name, width) = match parts.as_slice() {
            [Value::String(name), width] | [Value::String(name), width, _] => (name, width),
            _ => return Err(wrong()),
        };
        let width = match width {
            Value::String(star) if star == "*" => None,
            width => Some(
                width
                    .as_u64()
                    .and_then(|w| w.try_into().ok())
                    .ok_or_else(wrong)?,
            ),
        };
        // p4c writes the sign as a boolean or as a number.
        let signed = match parts.get(2) {
            None => false,
            Some(Value::Bool(signed)) => *signed,
            Some(Value::Number(signed)) => signed.as_u64() != Some(0),
            Some(_) => return Err(wrong()),
        };
        Ok(Field {
            name: name.clone(),
            width,
            signed,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub name: String,
    pub id: u32,
    pub header_type: String,
    pub metadata: bool,
    #[serde(default, rename = "pi_omit")]
    _pi_omit: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderStack {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub header_type: String,
    #[serde(default, rename = "size")]
    _size: Ignored,
    pub header_ids: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnionType {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    /// Member names with their header types.
    pub headers: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Union {
    pub name: String,
    pub id: u32,
    pub union_type: String,
    pub header_ids: Vec<u32>,
    #[serde(default, rename = "pi_omit")]
    _pi_omit: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnionStack {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub union_type: String,
    #[serde(default, rename = "size")]
    _size: Ignored,
    pub header_union_ids: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FieldList {
    pub id: u32,
    pub name: String,
    pub elements: Vec<Value>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parser {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub init_state: Option<String>,
    pub parse_states: Vec<ParseState>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParseState {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub parser_ops: Vec<ParserOp>,
    pub transitions: Vec<Transition>,
    pub transition_key: Vec<Value>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

/// A parser value set; P4Info knows its fields and its size.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParseVset {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    /// Bits of all fields, without padding.
    pub compressed_bitwidth: u64,
    #[serde(default, rename = "max_size")]
    _max_size: Ignored,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParserOp {
    pub op: String,
    pub parameters: Vec<Value>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transition {
    #[serde(rename = "type")]
    pub kind: String,
    pub value: Option<String>,
    pub mask: Option<String>,
    pub next_state: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deparser {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub order: Vec<String>,
    #[serde(default)]
    pub primitives: Vec<Primitive>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeterArray {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "type")]
    pub unit: String,
    pub rate_count: u32,
    pub size: u64,
    pub is_direct: bool,
    pub binding: Option<String>,
    pub result_target: Option<(String, String)>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CounterArray {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub size: Option<u64>,
    pub is_direct: bool,
    pub binding: Option<String>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegisterArray {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub size: u64,
    pub bitwidth: u32,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Calculation {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub algo: String,
    pub input: Vec<Value>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Action {
    pub name: String,
    pub id: u32,
    pub runtime_data: Vec<RuntimeData>,
    pub primitives: Vec<Primitive>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuntimeData {
    pub name: String,
    pub bitwidth: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Primitive {
    pub op: String,
    pub parameters: Vec<Value>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

impl Primitive {
    pub fn new(op: &str, parameters: Vec<Value>) -> Primitive {
        Primitive {
            op: op.into(),
            parameters,
            source_info: SourceInfo::default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pipeline {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub init_table: Option<String>,
    pub tables: Vec<Table>,
    #[serde(default)]
    pub action_profiles: Vec<ActionProfile>,
    #[serde(default)]
    pub conditionals: Vec<Conditional>,
    #[serde(default)]
    pub action_calls: Vec<ActionCall>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub match_type: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub action_profile: Option<String>,
    pub max_size: u64,
    pub with_counters: bool,
    #[serde(default, rename = "support_timeout")]
    _support_timeout: Ignored,
    pub key: Vec<Key>,
    #[serde(rename = "actions")]
    _actions: IgnoredAny,
    pub action_ids: Vec<u32>,
    pub next_tables: serde_json::Map<String, Value>,
    #[serde(default, rename = "base_default_next")]
    pub base_default_next: Option<String>,
    pub direct_meters: Option<String>,
    pub default_entry: Option<DefaultEntry>,
    #[serde(default)]
    pub entries: Vec<Entry>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionProfile {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub selector: Option<Selector>,
    pub max_size: Option<u64>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

/// How a member of a group is picked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selector {
    pub algo: String,
    pub input: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    pub match_type: String,
    pub target: (String, String),
    pub mask: Option<String>,
    pub name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultEntry {
    pub action_id: u32,
    pub action_data: Vec<String>,
    #[serde(default)]
    pub action_const: bool,
    #[serde(default)]
    pub action_entry_const: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub match_key: Vec<MatchKey>,
    pub action_entry: ActionEntry,
    pub priority: Option<i64>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(tag = "match_type", rename_all = "snake_case")]
pub(super) enum MatchKey {
    Exact { key: String },
    Lpm { key: String, prefix_length: u32 },
    Ternary { key: String, mask: String },
    Optional { key: String, mask: String },
    Range { start: String, end: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionEntry {
    pub action_id: u32,
    pub action_data: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conditional {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub expression: Value,
    pub true_next: Option<String>,
    pub false_next: Option<String>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionCall {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub action_id: u32,
    pub next_node: Option<String>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Checksum {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub target: (String, String),
    #[serde(rename = "type")]
    pub kind: String,
    pub calculation: String,
    #[serde(default = "yes")]
    pub update: bool,
    #[serde(default = "yes")]
    pub verify: bool,
    pub if_cond: Option<Value>,
    #[serde(default)]
    pub source_info: SourceInfo,
}

fn yes() -> bool {
    true
}

/// Reads the whole file.
pub(super) fn parse(json: &[u8]) -> Result<Program, LoadError> {
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        // serde_json repeats the place at the end of its message.
        let message = text
            .rsplit_once(" at line ")
            .map_or(text.as_str(), |(text, _)| text)
            .into();
        LoadError::Json {
            line,
            column,
            message,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_errors_say_where() {
        let error = parse(b"{\n  \"__meta__\": 3}").err().unwrap();
        assert!(
            error.to_string().starts_with("line 2, column 15: "),
            "{error}"
        );
    }
}
