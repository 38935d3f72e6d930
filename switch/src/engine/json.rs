//! The BMv2 JSON format, version 2, as p4c prints it (behavioral-model's `docs/JSON_format.md`).
//!
//! Attributes that are not listed here are refused, not skipped. Those that describe the source
//! only are listed and dropped.

use num_bigint::BigInt;
use serde::Deserialize;
use serde::de::{Error, IgnoredAny};
use serde_json::Value;

use super::bits::MAX_BITS;
use super::error::LoadError;

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
    pub parse_vsets: Vec<Named>,
    pub deparsers: Vec<Deparser>,
    #[serde(default)]
    pub meter_arrays: Vec<MeterArray>,
    #[serde(default)]
    pub counter_arrays: Vec<CounterArray>,
    #[serde(default)]
    pub register_arrays: Vec<RegisterArray>,
    #[serde(default)]
    pub calculations: Vec<Calculation>,
    /// Digests; refused where an action generates one.
    #[serde(default, rename = "learn_lists")]
    _learn_lists: Ignored,
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
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParserOp {
    pub op: String,
    pub parameters: Vec<Value>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
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
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

impl Primitive {
    pub fn new(op: &str, parameters: Vec<Value>) -> Primitive {
        Primitive {
            op: op.into(),
            parameters,
            _source_info: None,
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
    pub action_profiles: Vec<Named>,
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
    #[serde(default, rename = "action_profile")]
    _action_profile: Ignored,
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
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
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
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionCall {
    pub name: String,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    pub action_id: u32,
    pub next_node: Option<String>,
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
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
    #[serde(default, rename = "source_info")]
    _source_info: Ignored,
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

/// A "type value object": a value, or a reference to an object of the program by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Term {
    Field(String, String),
    Hex(BigInt),
    Bool(bool),
    String(String),
    /// An argument of the action, by position (`runtime_data` or, in expressions, `local`).
    Argument(usize),
    Header(String),
    HeaderStack(String),
    HeaderUnion(String),
    HeaderUnionStack(String),
    /// A field of the last valid header of a stack.
    StackField(String, String),
    /// A field of a member of the last valid union of a stack.
    UnionStackField(String, String, String),
    /// Bits of the packet ahead of the parser: offset and width.
    Lookahead(u32, u32),
    Register(String, Box<Term>),
    RegisterArray(String),
    CounterArray(String),
    MeterArray(String),
    Calculation(String),
    Parameters(Vec<Term>),
    Payload,
    Operation(Box<Operation>),
}

/// An operation of an expression; which operands it needs depends on `op`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operation {
    pub op: String,
    pub left: Option<Operand>,
    pub right: Option<Operand>,
    pub cond: Option<Operand>,
}

/// An operand is a term or, for `access_field`, a bare position.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand {
    Term(Term),
    Position(usize),
}

impl Term {
    /// Reads a type value object that belongs to `at`.
    pub fn parse(json: &Value, at: &str) -> Result<Term, LoadError> {
        let object = json
            .as_object()
            .ok_or_else(|| wrong("a type value object", json, at))?;
        let kind = object.get("type").and_then(Value::as_str);
        let kind = kind.ok_or_else(|| wrong("an object with a type", json, at))?;
        let value = object.get("value").unwrap_or(&Value::Null);
        if let Some(key) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(LoadError::unsupported(
                format!("attribute {key} of a {kind}"),
                at,
            ));
        }
        let name = || text(value, at);
        Ok(match kind {
            "field" => {
                let [header, field] = texts(value, at)?;
                Term::Field(header, field)
            }
            "hexstr" => Term::Hex(hex(&text(value, at)?, at)?),
            "bool" => Term::Bool(
                value
                    .as_bool()
                    .ok_or_else(|| wrong("a boolean", value, at))?,
            ),
            "string" => Term::String(name()?),
            "runtime_data" | "local" => Term::Argument(position(value, at)?),
            "header" | "regular" => Term::Header(name()?),
            "header_stack" | "stack" => Term::HeaderStack(name()?),
            "header_union" => Term::HeaderUnion(name()?),
            "header_union_stack" => Term::HeaderUnionStack(name()?),
            "stack_field" => {
                let [stack, field] = texts(value, at)?;
                Term::StackField(stack, field)
            }
            "union_stack_field" => {
                let [stack, member, field] = texts(value, at)?;
                Term::UnionStackField(stack, member, field)
            }
            "lookahead" => match value.as_array().map(Vec::as_slice) {
                Some([offset, width]) => {
                    let bits = |json| match position(json, at)? as u32 {
                        bits @ 0..=MAX_BITS => Ok(bits),
                        _ => Err(wrong("as many bits as a frame has", json, at)),
                    };
                    Term::Lookahead(bits(offset)?, bits(width)?)
                }
                _ => return Err(wrong("[offset, width]", value, at)),
            },
            "register" => match value.as_array().map(Vec::as_slice) {
                Some([array, index]) => {
                    Term::Register(text(array, at)?, Box::new(Term::parse(index, at)?))
                }
                _ => return Err(wrong("[register array, index]", value, at)),
            },
            "register_array" => Term::RegisterArray(name()?),
            "counter_array" => Term::CounterArray(name()?),
            "meter_array" => Term::MeterArray(name()?),
            "calculation" => Term::Calculation(name()?),
            "parameters_vector" => match value {
                Value::Array(terms) => {
                    let terms = terms.iter().map(|term| Term::parse(term, at));
                    Term::Parameters(terms.collect::<Result<_, _>>()?)
                }
                // A call without parameters has an empty object here.
                Value::Object(none) if none.is_empty() => Term::Parameters(Vec::new()),
                _ => return Err(wrong("an array of parameters", value, at)),
            },
            "payload" => Term::Payload,
            "expression" => return Term::parse_expression(value, at),
            other => {
                return Err(LoadError::unsupported(
                    format!("a value of type {other}"),
                    at,
                ));
            }
        })
    }

    /// The value of an `expression` is an operation or, once more, a type value object.
    fn parse_expression(json: &Value, at: &str) -> Result<Term, LoadError> {
        let object = json
            .as_object()
            .ok_or_else(|| wrong("an expression", json, at))?;
        let Some(op) = object.get("op") else {
            return Term::parse(json, at);
        };
        let known = ["op", "left", "right", "cond"];
        if let Some(key) = object.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(LoadError::unsupported(
                format!("attribute {key} of an expression"),
                at,
            ));
        }
        let operand = |side: &str| match object.get(side) {
            None | Some(Value::Null) => Ok(None),
            Some(number @ Value::Number(_)) => Ok(Some(Operand::Position(position(number, at)?))),
            Some(term) => Ok(Some(Operand::Term(Term::parse(term, at)?))),
        };
        Ok(Term::Operation(Box::new(Operation {
            op: text(op, at)?,
            left: operand("left")?,
            right: operand("right")?,
            cond: operand("cond")?,
        })))
    }
}

const KNOWN: [&str; 4] = ["type", "value", "bitwidth", "source_info"];

/// The width that constants in the input of a calculation carry.
pub(super) fn bitwidth(json: &Value) -> Option<u32> {
    json.get("bitwidth")
        .and_then(Value::as_u64)
        .and_then(|width| width.try_into().ok())
}

/// Reads a number in hexadecimal (`0x…`, possibly negative); p4c prints some in decimal digits
/// only, which BMv2 also takes for hexadecimal.
pub(super) fn hex(digits: &str, at: &str) -> Result<BigInt, LoadError> {
    let (negative, rest) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits),
    };
    let rest = rest.strip_prefix("0x").unwrap_or(rest);
    let value = BigInt::parse_bytes(rest.as_bytes(), 16)
        .filter(|_| !rest.starts_with(['+', '-']))
        .ok_or_else(|| {
            LoadError::malformed(format!("{digits:?} is not a hexadecimal number"), at)
        })?;
    Ok(if negative { -value } else { value })
}

fn text(json: &Value, at: &str) -> Result<String, LoadError> {
    json.as_str()
        .map(str::to_owned)
        .ok_or_else(|| wrong("a string", json, at))
}

fn texts<const N: usize>(json: &Value, at: &str) -> Result<[String; N], LoadError> {
    let parts = json.as_array().map(Vec::as_slice).unwrap_or_default();
    let parts: Vec<_> = parts
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    parts
        .try_into()
        .map_err(|_| wrong(&format!("an array of {N} names"), json, at))
}

fn position(json: &Value, at: &str) -> Result<usize, LoadError> {
    let number = json
        .as_u64()
        .filter(|number| *number <= u64::from(u32::MAX));
    number
        .map(|number| number as usize)
        .ok_or_else(|| wrong("a small number", json, at))
}

fn wrong(expected: &str, found: &Value, at: &str) -> LoadError {
    let mut found = found.to_string();
    if found.len() > 80 {
        let cut = (0..=77)
            .rev()
            .find(|i| found.is_char_boundary(*i))
            .unwrap_or(0);
        found.truncate(cut);
        found.push('…');
    }
    LoadError::malformed(format!("expected {expected}, found {found}"), at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_hexadecimal_with_or_without_prefix() {
        assert_eq!(hex("0x1f", "t").unwrap(), BigInt::from(31));
        assert_eq!(hex("10", "t").unwrap(), BigInt::from(16));
        assert_eq!(hex("-0x1", "t").unwrap(), BigInt::from(-1));
        for wrong in ["", "0x", "0x-1", "xyz", "--1"] {
            assert!(hex(wrong, "t").is_err(), "{wrong}");
        }
    }

    #[test]
    fn expressions_may_be_wrapped_in_expressions() {
        let wrapped = json!({"type": "expression", "value": {"type": "expression", "value": {
            "op": "+",
            "left": {"type": "field", "value": ["h", "f"]},
            "right": {"type": "hexstr", "value": "0x01"},
        }}});
        let expected = Term::Operation(Box::new(Operation {
            op: "+".into(),
            left: Some(Operand::Term(Term::Field("h".into(), "f".into()))),
            right: Some(Operand::Term(Term::Hex(1.into()))),
            cond: None,
        }));
        assert_eq!(Term::parse(&wrapped, "t").unwrap(), expected);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let term = json!({"type": "extern", "value": "x"});
        let error = Term::parse(&term, "action a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "action a: a value of type extern is not supported by this switch"
        );
        let term = json!({"type": "field", "value": ["h"]});
        let error = Term::parse(&term, "action a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "action a: expected an array of 2 names, found [\"h\"]"
        );
        let term = json!({"type": "hexstr", "value": "0x1", "colour": 3});
        assert!(Term::parse(&term, "action a").is_err());
    }

    #[test]
    fn syntax_errors_say_where() {
        let error = parse(b"{\n  \"__meta__\": 3}").err().unwrap();
        assert!(
            error.to_string().starts_with("line 2, column 15: "),
            "{error}"
        );
    }
}
