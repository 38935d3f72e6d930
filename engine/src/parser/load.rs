//! Loads parsers.

use std::collections::HashMap;

use super::super::action::{Instruction, Target};
use super::super::bits::{MAX_KEY_BITS, big_mask, low_bits};
use super::super::compile::Place;
use super::super::error::LoadError;
use super::super::expression::Num;
use super::super::json::{self, Term};
use super::super::key::{ones, word_count, words_of};
use super::super::primitive::Names;
use super::super::value_set::ValueSet;
use super::{Case, Errors, Parser, State, Transition};

/// The widest key: with all its words, the working memory of operations has room for others.
const MAX_KEY_WORDS: u64 = MAX_KEY_BITS / 64;

impl Parser {
    pub fn new(
        parser: &json::Parser,
        errors: &[(String, u32)],
        value_sets: &[ValueSet],
        names: &Names,
    ) -> Result<Parser, LoadError> {
        let at = format!("parser {}", parser.name);
        let by_name = parser
            .parse_states
            .iter()
            .enumerate()
            .map(|(i, s)| (s.name.as_str(), i))
            .collect();
        let mut states = Vec::new();
        for state in &parser.parse_states {
            let at = format!("{at}, state {}", state.name);
            states.push(State::new(state, &by_name, value_sets, names, &at)?);
        }
        let start = find(&parser.init_state, &by_name, &at)?;
        Ok(Parser {
            states,
            start,
            errors: Errors::new(errors),
        })
    }
}

impl Errors {
    /// An error that the program does not number gets a number that it does not use.
    fn new(errors: &[(String, u32)]) -> Errors {
        let mut free = errors.iter().map(|(_, number)| *number).max().unwrap_or(0);
        let mut find = |name: &str| match errors.iter().find(|(known, _)| known == name) {
            Some((_, number)) => *number,
            None => {
                free = free.saturating_add(1);
                free
            }
        };
        Errors {
            no_error: find("NoError"),
            packet_too_short: find("PacketTooShort"),
            stack_out_of_bounds: find("StackOutOfBounds"),
            header_too_short: find("HeaderTooShort"),
            parser_invalid_argument: find("ParserInvalidArgument"),
        }
    }
}

impl State {
    fn new(
        state: &json::ParseState,
        by_name: &HashMap<&str, usize>,
        value_sets: &[ValueSet],
        names: &Names,
        at: &str,
    ) -> Result<State, LoadError> {
        let code = state.parser_ops.iter().map(|op| instruction(op, names, at));
        let block = names.block(code.collect::<Result<_, _>>()?);
        let parts = state
            .transition_key
            .iter()
            .map(|part| key_part(part, names, at));
        let (key, widths): (Vec<_>, Vec<_>) =
            parts.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let bits = widths.iter().copied().map(u64::from).sum();
        LoadError::check("width of the key in bits", bits, MAX_KEY_BITS, at)?;
        let words = widths.iter().map(|width| word_count(*width)).sum::<usize>();
        LoadError::check("words of the key", words as u64, MAX_KEY_WORDS, at)?;
        let (mut transitions, mut default) = (Vec::new(), None);
        for transition in &state.transitions {
            let next = find(&transition.next_state, by_name, at)?;
            match transition.kind.as_str() {
                // The first that matches is taken, and this one always does.
                "default" => {
                    default = next;
                    break;
                }
                "hexstr" => transitions.push(Transition {
                    case: Case::value(transition, &widths, at)?,
                    next,
                }),
                "parse_vset" => transitions.push(Transition {
                    case: Case::set(transition, &widths, value_sets, at)?,
                    next,
                }),
                other => {
                    return Err(LoadError::unsupported(
                        format!("a transition by {other}"),
                        at,
                    ));
                }
            }
        }
        Ok(State {
            block,
            key,
            transitions,
            default,
        })
    }
}

/// The position of a state; `None` ends the parser.
fn find(
    name: &Option<String>,
    by_name: &HashMap<&str, usize>,
    at: &str,
) -> Result<Option<usize>, LoadError> {
    let Some(name) = name else { return Ok(None) };
    let found = by_name.get(name.as_str()).copied();
    LoadError::found(found, "state", name, at).map(Some)
}

fn instruction(op: &json::ParserOp, names: &Names, at: &str) -> Result<Instruction, LoadError> {
    let at = &format!("{at}, {}", op.op);
    let scope = names.scope(&[], at);
    let term = |index: usize| Term::parse(&op.parameters[index], at);
    let wrong =
        |expected: usize| LoadError::malformed(format!("it takes {expected} parameters"), at);
    let expected = match op.op.as_str() {
        "extract" | "advance" | "primitive" => 1,
        "extract_VL" | "set" | "verify" => 2,
        other => {
            let what = format!("parser operation {other}");
            return Err(LoadError::unsupported(what, at));
        }
    };
    if op.parameters.len() != expected {
        return Err(wrong(expected));
    }
    Ok(match op.op.as_str() {
        "extract" => Instruction::Extract(target(&op.parameters[0], names, at)?, None),
        "extract_VL" => {
            let bits = scope.number(&term(1)?)?;
            Instruction::Extract(target(&op.parameters[0], names, at)?, Some(bits))
        }
        "set" => match term(1)? {
            Term::Lookahead(offset, width) => {
                Instruction::Assign(scope.field(&term(0)?)?, Num::Ahead(offset, width))
            }
            _ => {
                let set = json::Primitive::new("set", op.parameters.clone());
                names.primitive(&set, 0, &scope)?
            }
        },
        "verify" => Instruction::Verify {
            test: scope.test(&term(0)?)?,
            error: scope.number(&term(1)?)?,
        },
        "advance" => Instruction::Advance(scope.number(&term(0)?)?),
        _ => {
            let primitive = serde_json::from_value(op.parameters[0].clone());
            let primitive: json::Primitive =
                primitive.map_err(|error| LoadError::malformed(error, at))?;
            let at = format!("{at}, {}", primitive.op);
            names.primitive(&primitive, 0, &names.scope(&[], &at))?
        }
    })
}

/// The header that an extraction fills.
fn target(json: &serde_json::Value, names: &Names, at: &str) -> Result<Target, LoadError> {
    let layout = names.layout;
    match Term::parse(json, at)? {
        Term::Header(name) => Ok(Target::Header(layout.find_on_wire(&name, at)?)),
        Term::HeaderStack(name) => Ok(Target::Next {
            stack: layout.find_stack(&name, at)?,
            member: 0,
        }),
        Term::UnionStack(stack, member) => {
            let stack = layout.find_stack(&stack, at)?;
            let member = layout.stacks[stack].member(&member, at)?;
            Ok(Target::Next { stack, member })
        }
        other => Err(LoadError::unsupported(
            format!("extraction to {other:?}"),
            at,
        )),
    }
}

/// A part of a transition's key, and its width.
fn key_part(json: &serde_json::Value, names: &Names, at: &str) -> Result<(Num, u32), LoadError> {
    Ok(match Term::parse(json, at)? {
        Term::Lookahead(offset, width) => (Num::Ahead(offset, width), width),
        term => {
            let mut place = names.scope(&[], at).field(&term)?;
            // Keys are unsigned, even for signed fields.
            match &mut place {
                Place::Fixed(slot) => slot.signed = false,
                Place::Element(field) => field.slot.signed = false,
            }
            let width = place.width();
            (place.value(), width)
        }
    })
}

impl Case {
    fn value(transition: &json::Transition, widths: &[u32], at: &str) -> Result<Case, LoadError> {
        let value = written(transition, at)?;
        let mask = match &transition.mask {
            Some(mask) => split(mask, widths, at)?,
            None => widths.iter().flat_map(|width| ones(*width, 0)).collect(),
        };
        let mut value = split(value, widths, at)?;
        value
            .iter_mut()
            .zip(&mask)
            .for_each(|(value, mask)| *value &= mask);
        Ok(Case::Value { value, mask })
    }

    fn set(
        transition: &json::Transition,
        widths: &[u32],
        value_sets: &[ValueSet],
        at: &str,
    ) -> Result<Case, LoadError> {
        // In BMv2 a mask goes over the members too; p4c prints none, P4_16 has no syntax for it.
        if transition.mask.is_some() {
            return Err(LoadError::unsupported("a mask on a value set", at));
        }
        let name = written(transition, at)?;
        let found = value_sets.iter().position(|set| set.name() == name);
        let set = LoadError::found(found, "value set", name, at)?;
        // A set that P4Info does not have stays empty.
        if value_sets[set].id() != 0 && value_sets[set].widths() != widths {
            let what = format!("the key does not have the fields of value set {name}");
            return Err(LoadError::malformed(what, at));
        }
        Ok(Case::Set(set))
    }
}

fn written<'a>(transition: &'a json::Transition, at: &str) -> Result<&'a str, LoadError> {
    let value = transition.value.as_deref();
    value.ok_or_else(|| LoadError::malformed("a transition without a value", at))
}

/// Takes a concatenation of fields, each padded to whole bytes, apart into words.
fn split(digits: &str, widths: &[u32], at: &str) -> Result<Vec<u64>, LoadError> {
    let total: u32 = widths.iter().map(|width| width.div_ceil(8) * 8).sum();
    let value = json::hex(digits, at)?;
    if value.bits() > u64::from(total) {
        return Err(LoadError::malformed(
            format!("{digits} does not fit {total} bits"),
            at,
        ));
    }
    let mut rest = low_bits(&value, total);
    let mut words = Vec::new();
    for width in widths.iter().rev() {
        let part = words_of(&(&rest & big_mask(*width)), *width);
        debug_assert_eq!(part.len(), word_count(*width));
        words.splice(0..0, part);
        rest >>= width.div_ceil(8) * 8;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_split_at_padded_fields() {
        // The example of the format's description: 12 bits and 2 bits.
        assert_eq!(split("0x0aba03", &[12, 2], "t").unwrap(), [0xaba, 3]);
        assert_eq!(split("0x01", &[100], "t").unwrap(), [0, 1]);
        assert!(split("0x100000000", &[12, 2], "t").is_err());
    }

    #[test]
    fn errors_without_a_number_get_a_free_one() {
        let errors = Errors::new(&[("NoError".into(), 0), ("PacketTooShort".into(), 9)]);
        assert_eq!((errors.no_error, errors.packet_too_short), (0, 9));
        assert_eq!(
            (errors.stack_out_of_bounds, errors.header_too_short),
            (10, 11)
        );
    }
}
