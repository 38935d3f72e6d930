//! The BMv2 JSON format, version 2, as p4c prints it (behavioral-model's `docs/JSON_format.md`).
//!
//! The loader rejects attributes that are not listed here. Attributes that only describe the source are listed and ignored.

mod term;

use serde::Deserialize;
use serde::de::{Error, IgnoredAny};
use serde_json::Value;

use super::error::LoadError;
pub(super) use term::{Operand, Operation, Term, bitwidth, hex};

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct SourceInfo {
    pub filename: Option<String>,
    pub line: Option<u32>,
    #[serde(rename = "source_fragment")]
    pub fragment: Option<String>,
}

/// Attributes without a meaning for execution.
type Ignored = Option<IgnoredAny>;

/// Defines objects of the format, each with the attributes that it may have and whose values are ignored.
macro_rules! objects {
    ($(
        $(#[$meta:meta])*
        $name:ident $(ignores $($ignored:ident),+)? {
            $($(#[$attribute:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(super) struct $name {
                $($(#[$attribute])* pub $field: $type,)*
                $($(#[serde(default)] #[allow(dead_code, reason = "ignored")] $ignored: Ignored,)+)?
            }
        )*
    };
}

objects! {
    Program ignores program, enums, force_arith {
        #[serde(rename = "__meta__")]
        meta: Meta,
        header_types: Vec<HeaderType>,
        headers: Vec<Header>,
        #[serde(default)]
        header_stacks: Vec<HeaderStack>,
        #[serde(default)]
        header_union_types: Vec<UnionType>,
        #[serde(default)]
        header_unions: Vec<Union>,
        #[serde(default)]
        header_union_stacks: Vec<UnionStack>,
        #[serde(default)]
        field_lists: Vec<FieldList>,
        #[serde(default)]
        errors: Vec<(String, u32)>,
        parsers: Vec<Parser>,
        #[serde(default)]
        parse_vsets: Vec<ParseVset>,
        deparsers: Vec<Deparser>,
        #[serde(default)]
        meter_arrays: Vec<MeterArray>,
        #[serde(default)]
        counter_arrays: Vec<CounterArray>,
        #[serde(default)]
        register_arrays: Vec<RegisterArray>,
        #[serde(default)]
        calculations: Vec<Calculation>,
        /// The fields of each digest.
        #[serde(default)]
        learn_lists: Vec<FieldList>,
        actions: Vec<Action>,
        pipelines: Vec<Pipeline>,
        #[serde(default)]
        checksums: Vec<Checksum>,
        #[serde(default)]
        extern_instances: Vec<Named>,
        #[serde(default)]
        field_aliases: Vec<(String, (String, String))>,
    }

    HeaderType {
        name: String,
        id: u32,
        fields: Vec<Field>,
        /// Bytes of the header with its variable-length field at its longest.
        max_length: Option<u32>,
        length_exp: Option<IgnoredAny>,
    }

    Header ignores pi_omit {
        name: String,
        id: u32,
        header_type: String,
        metadata: bool,
    }

    HeaderStack ignores id, size {
        name: String,
        header_type: String,
        header_ids: Vec<u32>,
    }

    UnionType ignores id {
        name: String,
        /// Member names with their header types.
        headers: Vec<(String, String)>,
    }

    Union ignores pi_omit {
        name: String,
        id: u32,
        union_type: String,
        header_ids: Vec<u32>,
    }

    UnionStack ignores id, size {
        name: String,
        union_type: String,
        header_union_ids: Vec<u32>,
    }

    FieldList ignores source_info {
        id: u32,
        name: String,
        elements: Vec<Value>,
    }

    Parser ignores id, source_info {
        name: String,
        init_state: Option<String>,
        parse_states: Vec<ParseState>,
    }

    ParseState ignores id {
        name: String,
        parser_ops: Vec<ParserOp>,
        transitions: Vec<Transition>,
        transition_key: Vec<Value>,
        #[serde(default)]
        source_info: SourceInfo,
    }

    /// A parser value set; P4Info knows its fields and its size.
    ParseVset ignores id, max_size, source_info {
        name: String,
        /// Bits of all fields, without padding.
        compressed_bitwidth: u64,
    }

    ParserOp {
        op: String,
        parameters: Vec<Value>,
        #[serde(default)]
        source_info: SourceInfo,
    }

    Transition {
        #[serde(rename = "type")]
        kind: String,
        value: Option<String>,
        mask: Option<String>,
        next_state: Option<String>,
    }

    Deparser ignores id, source_info {
        name: String,
        order: Vec<String>,
        #[serde(default)]
        primitives: Vec<Primitive>,
    }

    MeterArray ignores id, source_info {
        name: String,
        #[serde(rename = "type")]
        unit: String,
        rate_count: u32,
        size: u64,
        is_direct: bool,
        binding: Option<String>,
        result_target: Option<(String, String)>,
    }

    CounterArray ignores id, source_info {
        name: String,
        size: Option<u64>,
        is_direct: bool,
        binding: Option<String>,
    }

    RegisterArray ignores id, source_info {
        name: String,
        size: u64,
        bitwidth: u32,
    }

    Calculation ignores id, source_info {
        name: String,
        algo: String,
        input: Vec<Value>,
    }

    Action ignores source_info {
        name: String,
        id: u32,
        runtime_data: Vec<RuntimeData>,
        primitives: Vec<Primitive>,
    }

    RuntimeData {
        name: String,
        bitwidth: u32,
    }

    Primitive {
        op: String,
        parameters: Vec<Value>,
        #[serde(default)]
        source_info: SourceInfo,
    }

    Pipeline ignores id, source_info {
        name: String,
        init_table: Option<String>,
        tables: Vec<Table>,
        #[serde(default)]
        action_profiles: Vec<ActionProfile>,
        #[serde(default)]
        conditionals: Vec<Conditional>,
        #[serde(default)]
        action_calls: Vec<ActionCall>,
    }

    Table ignores id, support_timeout, actions {
        name: String,
        match_type: String,
        #[serde(rename = "type")]
        kind: String,
        action_profile: Option<String>,
        max_size: u64,
        with_counters: bool,
        key: Vec<Key>,
        action_ids: Vec<u32>,
        next_tables: serde_json::Map<String, Value>,
        #[serde(default)]
        base_default_next: Option<String>,
        direct_meters: Option<String>,
        default_entry: Option<DefaultEntry>,
        #[serde(default)]
        entries: Vec<Entry>,
        #[serde(default)]
        source_info: SourceInfo,
    }

    ActionProfile ignores id, max_size, source_info {
        name: String,
        selector: Option<Selector>,
    }

    /// The hash that picks a member of a group.
    Selector {
        algo: String,
        input: Vec<Value>,
    }

    Key {
        match_type: String,
        target: (String, String),
        mask: Option<String>,
        name: Option<String>,
    }

    DefaultEntry {
        action_id: u32,
        action_data: Vec<String>,
        #[serde(default)]
        action_const: bool,
        #[serde(default)]
        action_entry_const: bool,
    }

    Entry ignores source_info {
        match_key: Vec<MatchKey>,
        action_entry: ActionEntry,
        priority: Option<i64>,
    }

    ActionEntry {
        action_id: u32,
        action_data: Vec<String>,
    }

    Conditional ignores id {
        name: String,
        expression: Value,
        true_next: Option<String>,
        false_next: Option<String>,
        #[serde(default)]
        source_info: SourceInfo,
    }

    ActionCall ignores id {
        name: String,
        action_id: u32,
        next_node: Option<String>,
        #[serde(default)]
        source_info: SourceInfo,
    }

    Checksum ignores id {
        name: String,
        target: (String, String),
        #[serde(rename = "type")]
        kind: String,
        calculation: String,
        #[serde(default = "yes")]
        update: bool,
        #[serde(default = "yes")]
        verify: bool,
        if_cond: Option<Value>,
        #[serde(default)]
        source_info: SourceInfo,
    }
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
#[serde(tag = "match_type", rename_all = "snake_case")]
pub(super) enum MatchKey {
    Exact { key: String },
    Lpm { key: String, prefix_length: u32 },
    Ternary { key: String, mask: String },
    Optional { key: String, mask: String },
    Range { start: String, end: String },
}

fn yes() -> bool {
    true
}

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
