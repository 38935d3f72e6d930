//! The parser: states, their operations and transitions.

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
    states: Vec<State>,
    start: Option<usize>,
    errors: Errors,
}

#[derive(Debug)]
struct State {
    ops: Vec<Op>,
    key: Vec<KeyPart>,
    transitions: Vec<Transition>,
    default: Option<usize>,
}

#[derive(Debug)]
enum Op {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parsed {
    /// Bytes extracted or skipped.
    pub bytes: usize,
    /// The program's number for the error that ended it, or for `NoError`.
    pub error: u32,
}

/// Why a parser stops before its end: an error of the program's, or of the switch's.
enum Stop {
    Error(u32),
    Drop(DropCause),
}

impl From<DropCause> for Stop {
    fn from(cause: DropCause) -> Stop {
        Stop::Drop(cause)
    }
}

impl Parser {
    /// Parses a frame into the machine's header vector.
    ///
    /// # Errors
    /// The packet visited more than `max_states` states, or an action of the parser ended it.
    /// Errors of the program's own (`PacketTooShort`, `verify`) are part of the result.
    pub fn run(
        &self,
        machine: &mut Machine,
        blocks: &Blocks,
        frame: &[u8],
        max_states: u32,
    ) -> Result<Parsed, DropCause> {
        if machine.state.trace.is_some() {
            self.run_as::<true>(machine, blocks, frame, max_states)
        } else {
            self.run_as::<false>(machine, blocks, frame, max_states)
        }
    }

    /// Also records what happens if it is `TRACED`.
    fn run_as<const TRACED: bool>(
        &self,
        machine: &mut Machine,
        blocks: &Blocks,
        frame: &[u8],
        max_states: u32,
    ) -> Result<Parsed, DropCause> {
        let mut parsed = Parsed {
            bytes: 0,
            error: self.errors.no_error,
        };
        let mut state = self.start;
        let mut visited = 0;
        while let Some(current) = state {
            visited += 1;
            if visited > max_states {
                return Err(DropCause::ParserLimit);
            }
            if TRACED {
                self.entered(machine, current, parsed.bytes);
            }
            match self.visit::<TRACED>(current, machine, blocks, frame, &mut parsed.bytes) {
                Ok(next) => state = next,
                Err(Stop::Drop(cause)) => return Err(cause),
                Err(Stop::Error(error)) => {
                    parsed.error = error;
                    break;
                }
            }
        }
        if TRACED {
            self.ended(machine, parsed, frame);
        }
        Ok(parsed)
    }

    fn visit<const TRACED: bool>(
        &self,
        current: usize,
        machine: &mut Machine,
        blocks: &Blocks,
        frame: &[u8],
        at: &mut usize,
    ) -> Result<Option<usize>, Stop> {
        let state = &self.states[current];
        for (index, op) in state.ops.iter().enumerate() {
            let start = *at;
            if TRACED {
                self.before_op(machine, current, index);
            }
            self.perform(op, machine, blocks, frame, at)?;
            if TRACED {
                self.after_op(machine, op, start, *at);
            }
        }
        if state.transitions.is_empty() {
            if TRACED {
                self.selected(machine, current, &[], None, state.default);
            }
            return Ok(state.default);
        }
        let mut key = std::mem::take(&mut machine.state.key);
        key.clear();
        let built = self.build_key(&state.key, machine, &frame[*at..], &mut key);
        let action::State {
            value_sets, masked, ..
        } = &mut *machine.state;
        let taken = state.transitions.iter().position(|transition| {
            match &transition.case {
                Case::Value { value, mask } => equals(value, mask, &key),
                // A key that could not be built in full is in no set.
                Case::Set(set) => built.is_ok() && value_sets[*set].holds(&key, masked),
            }
        });
        let next = taken.map_or(state.default, |taken| state.transitions[taken].next);
        if TRACED && built.is_ok() {
            self.selected(machine, current, &key, taken, next);
        }
        machine.state.key = key;
        built.map(|()| next)
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
                    None => return Err(Stop::Error(self.errors.stack_out_of_bounds)),
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
            return Err(Stop::Error(self.errors.packet_too_short));
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
            return Err(Stop::Error(self.errors.packet_too_short));
        }
        let start = offset as usize / 8;
        let scratch = &mut machine.state.scratch;
        scratch.clear();
        scratch.extend_from_slice(&ahead[start..end]);
        scratch.extend([0; SLACK]);
        Ok(Slot::new(offset as usize % 8, width, false))
    }

    #[inline(always)]
    fn perform(
        &self,
        op: &Op,
        machine: &mut Machine,
        blocks: &Blocks,
        frame: &[u8],
        at: &mut usize,
    ) -> Result<(), Stop> {
        match op {
            Op::Extract(header) => self.extract(machine, *header, None, frame, at),
            Op::ExtractVarbit { header, bits } => {
                self.extract(machine, *header, Some(bits), frame, at)
            }
            Op::ExtractNext {
                stack,
                member,
                bits,
            } => {
                let stack = &machine.layout.stacks[*stack];
                let next = machine.phv.next(stack);
                let Some(element) = stack.elements.get(next) else {
                    return Err(Stop::Error(self.errors.stack_out_of_bounds));
                };
                self.extract(machine, element[*member], bits.as_ref(), frame, at)?;
                machine.phv.set_next(stack, next + 1);
                Ok(())
            }
            Op::Lookahead { to, offset, width } if (1..=64).contains(width) && to.width <= 64 => {
                let value = self.look(&frame[*at..], *offset, *width)?;
                to.store_word(&mut machine.phv.bytes, value);
                Ok(())
            }
            Op::Lookahead { to, offset, width } => {
                let slot = self.peek(machine, &frame[*at..], *offset, *width)?;
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
                Err(Stop::Error(error.eval(env) as u32))
            }
            Op::Advance(bits) => {
                let bytes = self.whole_bytes(bits.eval(machine.env(&[])))?;
                if bytes > (frame.len() - *at) as u128 {
                    return Err(Stop::Error(self.errors.packet_too_short));
                }
                *at += bytes as usize;
                Ok(())
            }
            // p4c removes every header of an `out` parameter first, before any is valid.
            Op::Remove { header, .. }
                if machine.state.trace.is_none() && !machine.phv.is_valid(*header) =>
            {
                Ok(())
            }
            Op::Primitive(block) | Op::Remove { block, .. } => Ok(blocks.run(*block, machine)?),
        }
    }

    fn extract(
        &self,
        machine: &mut Machine,
        header: usize,
        bits: Option<&Num>,
        frame: &[u8],
        at: &mut usize,
    ) -> Result<(), Stop> {
        let shape = machine.layout.shape(header);
        let varbit = match bits {
            Some(bits) => self.whole_bytes(bits.eval(machine.env(&[])))?,
            None => 0,
        };
        let left = frame.len() - *at;
        if varbit.saturating_add(shape.fixed_bytes as u128) > left as u128 {
            return Err(Stop::Error(self.errors.packet_too_short));
        }
        let varbit = varbit as usize;
        if varbit > shape.varbit.map_or(0, |field| field.max_bytes) {
            return Err(Stop::Error(self.errors.header_too_short));
        }
        let end = *at + shape.fixed_bytes + varbit;
        machine
            .phv
            .extract(machine.layout, header, &frame[*at..end], varbit);
        *at = end;
        Ok(())
    }

    /// BMv2 moves by whole bytes only, and so do we.
    fn whole_bytes(&self, bits: i128) -> Result<u128, Stop> {
        match u128::try_from(bits) {
            Ok(bits) if bits % 8 == 0 => Ok(bits / 8),
            _ => Err(Stop::Error(self.errors.parser_invalid_argument)),
        }
    }
}

fn equals(value: &[u64], mask: &[u64], key: &[u64]) -> bool {
    let words = value.iter().zip(mask).zip(key);
    value.len() <= key.len() && words.into_iter().all(|((v, m), k)| k & m == *v)
}
