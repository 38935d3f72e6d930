//! "Type value objects": values, and references to objects of the program by name.

use num_bigint::BigInt;
use serde_json::Value;

use super::super::bits::MAX_BITS;
use super::super::error::LoadError;

/// A "type value object": a value, or a reference to an object of the program by name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Term {
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
    /// A member of the next union of a stack.
    UnionStack(String, String),
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
pub(crate) struct Operation {
    pub op: String,
    pub left: Option<Operand>,
    pub right: Option<Operand>,
    pub cond: Option<Operand>,
}

/// An operand is a term or, for `access_field`, a bare position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
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
            "union_stack" => {
                let [stack, member] = texts(value, at)?;
                Term::UnionStack(stack, member)
            }
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
pub(crate) fn bitwidth(json: &Value) -> Option<u32> {
    json.get("bitwidth")
        .and_then(Value::as_u64)
        .and_then(|width| width.try_into().ok())
}

/// Reads a number in hexadecimal (`0x…`, possibly negative); p4c prints some in decimal digits
/// only, which BMv2 also takes for hexadecimal.
pub(crate) fn hex(digits: &str, at: &str) -> Result<BigInt, LoadError> {
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
    fn unknown_terms_are_rejected_by_name() {
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
}
