//! The parser: states, their operations and transitions.
//!
//! [`Code`](super::code::Code) runs it, with the primitives, most extractions and most transitions compiled; the others are here.

mod load;
mod trace;

use super::DropCause;
use super::action::{self, Machine};
use super::bits::{SLACK, Slot, mask};
use super::code::Blocks;
use super::expression::{FieldRef, Num, Test};
use super::key::push_words;

#[derive(Debug)]
pub(super) struct Parser {
    pub states: Vec<State>,
    start: Option<usize>,
    errors: Errors,
}

#[derive(Debug)]
pub(super) struct State {
    pub ops: Vec<Op>,
    key: Vec<KeyPart>,
    transitions: Vec<Transition>,
    pub default: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Op {
    Extract(usize),
    ExtractVarbit {
        header: usize,
        bits: Num,
    },
    /// To the next element of a stack.
    ExtractNext {
        stack: usize,
        member: usize,
        bits: Option<Num>,
    },
    Lookahead {
        to: Slot,
        offset: u32,
        width: u32,
    },
    Verify {
        test: Test,
        error: Num,
    },
    Advance(Num),
    /// A primitive, by its position among the program's actions.
    Primitive(usize),
    /// The primitive that removes this header.
    Remove {
        header: usize,
        block: usize,
    },
}

#[derive(Debug)]
enum KeyPart {
    Field(Slot),
    Late(FieldRef),
    Lookahead { offset: u32, width: u32 },
}

#[derive(Debug)]
struct Transition {
    case: Case,
    next: Option<usize>,
}

/// When a transition is taken.
#[derive(Debug)]
enum Case {
    /// The key equals `value` where `mask` has ones.
    Value { value: Vec<u64>, mask: Vec<u64> },
    /// The key is in a value set, by its position.
    Set(usize),
}

/// The numbers that the program gives to the errors of the core library.
#[derive(Debug, Clone, Copy)]
struct Errors {
    no_error: u32,
    packet_too_short: u32,
    stack_out_of_bounds: u32,
    header_too_short: u32,
    parser_invalid_argument: u32,
}

/// How far a parser came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parsed {
    /// Bytes extracted or skipped.
    pub bytes: usize,
    /// The program's number for the error that ended it, or for `NoError`.
    pub error: u32,
}

/// The program's number for an error that ends the parser.
type Stop = u32;

impl Parser {
    /// Parses a frame, the machine's payload, into the machine's header vector.
    ///
    /// # Errors
    /// The packet visited too many states, or an action of the parser ended it.
    /// Errors of the program's own (`PacketTooShort`, `verify`) are part of the result.
    pub fn run(&self, machine: &mut Machine, blocks: &Blocks) -> Result<Parsed, DropCause> {
        machine.parsed.error = self.errors.no_error;
        blocks.parse(self.start, machine)?;
        if machine.state.trace.is_some() {
            self.ended(machine);
        }
        Ok(machine.parsed)
    }

    /// Whether packets start in a state, and none comes back to it.
    pub fn starts_once_at(&self, at: usize) -> bool {
        let nexts = |state: &State| {
            let transitions = state.transitions.iter().map(|transition| transition.next);
            transitions.chain([state.default]).any(|to| to == Some(at))
        };
        self.start == Some(at) && !self.states.iter().any(nexts)
    }

    /// The number of `PacketTooShort`.
    pub fn too_short(&self) -> u32 {
        self.errors.packet_too_short
    }

    /// The state that follows.
    pub fn select(&self, state: usize, machine: &mut Machine) -> Result<Option<usize>, Stop> {
        let mut key = std::mem::take(&mut machine.state.key);
        let taken = self.taken(state, machine, &mut key);
        machine.state.key = key;
        let state = &self.states[state];
        Ok(taken?.map_or(state.default, |taken| state.transitions[taken].next))
    }

    /// The transition that a packet takes; `None` is the default one.
    fn taken(
        &self,
        state: usize,
        machine: &mut Machine,
        key: &mut Vec<u64>,
    ) -> Result<Option<usize>, Stop> {
        key.clear();
        let state = &self.states[state];
        if state.transitions.is_empty() {
            return Ok(None);
        }
        let ahead = &machine.payload[machine.parsed.bytes..];
        self.build_key(&state.key, machine, ahead, key)?;
        let action::State {
            value_sets, masked, ..
        } = &mut *machine.state;
        Ok(state
            .transitions
            .iter()
            .position(|transition| match &transition.case {
                Case::Value { value, mask } => equals(value, mask, key),
                Case::Set(set) => value_sets[*set].holds(key, masked),
            }))
    }

    fn build_key(
        &self,
        parts: &[KeyPart],
        machine: &mut Machine,
        ahead: &[u8],
        key: &mut Vec<u64>,
    ) -> Result<(), Stop> {
        for part in parts {
            match part {
                KeyPart::Field(slot) => push_words(*slot, &machine.phv.bytes, key),
                KeyPart::Late(field) => match field.resolve(machine.env(&[])) {
                    Some(slot) => push_words(slot, &machine.phv.bytes, key),
                    None => return Err(self.errors.stack_out_of_bounds),
                },
                KeyPart::Lookahead { offset, width } if (1..=64).contains(width) => {
                    key.push(self.look(ahead, *offset, *width)?);
                }
                KeyPart::Lookahead { offset, width } => {
                    let slot = self.peek(machine, ahead, *offset, *width)?;
                    push_words(slot, &machine.state.scratch, key);
                }
            }
        }
        Ok(())
    }

    /// Bits ahead, at most 64.
    fn look(&self, ahead: &[u8], offset: u32, width: u32) -> Result<u64, Stop> {
        let (start, end) = (offset as usize, offset as usize + width as usize);
        let Some(bytes) = ahead.get(start / 8..end.div_ceil(8)) else {
            return Err(self.errors.packet_too_short);
        };
        let value = bytes
            .iter()
            .fold(0u128, |value, byte| value << 8 | u128::from(*byte));
        Ok((value >> (end.next_multiple_of(8) - end)) as u64 & mask(width) as u64)
    }

    /// Brings bits ahead into the scratch buffer.
    fn peek(
        &self,
        machine: &mut Machine,
        ahead: &[u8],
        offset: u32,
        width: u32,
    ) -> Result<Slot, Stop> {
        let end = (offset as usize + width as usize).div_ceil(8);
        if end > ahead.len() {
            return Err(self.errors.packet_too_short);
        }
        let start = offset as usize / 8;
        let scratch = &mut machine.state.scratch;
        scratch.clear();
        scratch.extend_from_slice(&ahead[start..end]);
        scratch.extend([0; SLACK]);
        Ok(Slot::new(offset as usize % 8, width, false))
    }

    /// Performs an operation that is not a primitive.
    pub fn perform(&self, state: usize, index: usize, machine: &mut Machine) -> Result<(), Stop> {
        let frame = machine.payload;
        let ahead = &frame[machine.parsed.bytes..];
        match &self.states[state].ops[index] {
            Op::Extract(header) => self.extract(machine, *header, None),
            Op::ExtractVarbit { header, bits } => self.extract(machine, *header, Some(bits)),
            Op::ExtractNext {
                stack,
                member,
                bits,
            } => {
                let stack = &machine.layout.stacks[*stack];
                let next = machine.phv.next(stack);
                let Some(element) = stack.elements.get(next) else {
                    return Err(self.errors.stack_out_of_bounds);
                };
                self.extract(machine, element[*member], bits.as_ref())?;
                machine.phv.set_next(stack, next + 1);
                Ok(())
            }
            Op::Lookahead { to, offset, width } if (1..=64).contains(width) && to.width <= 64 => {
                let value = self.look(ahead, *offset, *width)?;
                to.store_word(&mut machine.phv.bytes, value);
                Ok(())
            }
            Op::Lookahead { to, offset, width } => {
                let slot = self.peek(machine, ahead, *offset, *width)?;
                let scratch = &machine.state.scratch;
                if slot.width == to.width {
                    slot.copy_to(scratch, *to, &mut machine.phv.bytes);
                } else {
                    to.store_big(&mut machine.phv.bytes, &slot.load_big(scratch));
                }
                Ok(())
            }
            Op::Verify { test, error } => {
                let env = machine.env(&[]);
                if test.eval(env) {
                    return Ok(());
                }
                Err(error.eval(env) as u32)
            }
            Op::Advance(bits) => {
                let bytes = self.whole_bytes(bits.eval(machine.env(&[])))?;
                if bytes > ahead.len() as u128 {
                    return Err(self.errors.packet_too_short);
                }
                machine.parsed.bytes += bytes as usize;
                Ok(())
            }
            Op::Primitive(_) | Op::Remove { .. } => Ok(()),
        }
    }

    fn extract(
        &self,
        machine: &mut Machine,
        header: usize,
        bits: Option<&Num>,
    ) -> Result<(), Stop> {
        let ahead = &machine.payload[machine.parsed.bytes..];
        let shape = machine.layout.shape(header);
        let varbit = match bits {
            Some(bits) => self.whole_bytes(bits.eval(machine.env(&[])))?,
            None => 0,
        };
        if varbit.saturating_add(shape.fixed_bytes as u128) > ahead.len() as u128 {
            return Err(self.errors.packet_too_short);
        }
        let varbit = varbit as usize;
        if varbit > shape.varbit.map_or(0, |field| field.max_bytes) {
            return Err(self.errors.header_too_short);
        }
        let bytes = shape.fixed_bytes + varbit;
        machine
            .phv
            .extract(machine.layout, header, &ahead[..bytes], varbit);
        machine.parsed.bytes += bytes;
        Ok(())
    }

    /// BMv2 moves by whole bytes only, and so do we.
    fn whole_bytes(&self, bits: i128) -> Result<u128, Stop> {
        match u128::try_from(bits) {
            Ok(bits) if bits % 8 == 0 => Ok(bits / 8),
            _ => Err(self.errors.parser_invalid_argument),
        }
    }
}

impl State {
    /// The fields of the key, and the transitions before the default one: the values of the fields, their masks, and the state
    /// that follows. `None` unless every field is at a fixed place, with at most 64 bits, and every case is a value.
    pub fn cases(&self) -> Option<(Vec<Slot>, Vec<Exact<'_>>)> {
        let fields = self.key.iter().map(|part| match part {
            KeyPart::Field(slot) if slot.place().is_some() => Some(slot.with_sign(false)),
            _ => None,
        });
        let cases = self.transitions.iter().map(|it| match &it.case {
            Case::Value { value, mask } => Some((&value[..], &mask[..], it.next)),
            Case::Set(_) => None,
        });
        Some((
            fields.collect::<Option<_>>()?,
            cases.collect::<Option<_>>()?,
        ))
    }
}

/// The values and masks of a transition's fields, and the state that follows.
type Exact<'a> = (&'a [u64], &'a [u64], Option<usize>);

fn equals(value: &[u64], mask: &[u64], key: &[u64]) -> bool {
    let words = value.iter().zip(mask).zip(key);
    value.len() <= key.len() && words.into_iter().all(|((v, m), k)| k & m == *v)
}
