//! Actions: their primitives and execution.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::DropCause;
use super::bits::Slot;
use super::checksum::Calculation;
use super::compile::{Place, Value};
use super::counter::Counter;
use super::digest::{DigestMessage, LearnList};
use super::expression::{Big, Env, HeaderRef, Num, Test};
use super::layout::Layout;
use super::meter::Meter;
use super::parser::Parsed;
use super::phv::Phv;
use super::register::Register;
use super::standard::DROP_PORT;
use super::table::Lookup;
use super::trace::Recorder;
use super::value_set::ValueSet;
use super::word::Word;

/// An action of the program.
#[derive(Debug)]
pub(super) struct Action {
    pub name: String,
    pub id: u32,
    pub params: Vec<Param>,
    /// Bytes that an entry needs to hold the arguments.
    pub args_bytes: usize,
    pub code: Vec<Instruction>,
}

#[derive(Debug)]
pub(super) struct Param {
    pub name: String,
    /// Where the argument stands among the arguments.
    pub slot: Slot,
}

/// A primitive of the format, translated.
#[derive(Debug)]
pub(super) enum Instruction {
    Assign(Slot, Num),
    AssignWord(Slot, Word),
    AssignPlace(Place, Value),
    AssignHeader {
        to: HeaderRef,
        from: HeaderRef,
    },
    /// Member by member: unions, stacks.
    AssignHeaders(Vec<(usize, usize)>),
    AssignStack {
        to: usize,
        from: usize,
    },
    AssignVarbit {
        to: usize,
        from: usize,
    },
    AddHeader(HeaderRef),
    RemoveHeader(HeaderRef),
    Push {
        stack: usize,
        count: Num,
    },
    Pop {
        stack: usize,
        count: Num,
    },
    MarkToDrop {
        egress_spec: Slot,
        mcast_grp: Option<Slot>,
    },
    Count {
        counter: usize,
        index: Num,
    },
    Meter {
        meter: usize,
        index: Num,
        color: Place,
    },
    RegisterRead {
        to: Place,
        register: usize,
        index: Num,
    },
    RegisterWrite {
        register: usize,
        index: Num,
        value: Value,
    },
    Hash {
        to: Place,
        base: Num,
        calculation: usize,
        size: Num,
    },
    Random {
        to: Place,
        low: Num,
        high: Num,
    },
    Clone {
        session: Num,
        fields: usize,
    },
    Resubmit {
        fields: usize,
    },
    Recirculate {
        fields: usize,
    },
    Truncate(Num),
    Digest(usize),
    Jump(usize),
    JumpUnless(Test, usize),
    Exit,
    Assert(Test),
    Log {
        format: String,
        values: Vec<Value>,
    },
}

/// The state that outlives a packet, tables aside.
#[derive(Debug)]
pub(super) struct State {
    pub counters: Vec<Counter>,
    pub meters: Vec<Meter>,
    pub registers: Vec<Register>,
    pub value_sets: Vec<ValueSet>,
    pub rng: Xoshiro256PlusPlus,
    /// Digest messages that no client has taken yet.
    pub learned: Vec<DigestMessage>,
    /// The arguments of the action that runs.
    pub args: Vec<u8>,
    /// Working memory of calculations and lookaheads.
    pub scratch: Vec<u8>,
    /// Working memory of lookups.
    pub key: Vec<u64>,
    pub masked: Vec<u64>,
    /// Who wants to know what happens.
    pub trace: Option<Box<Recorder>>,
}

/// What an action can ask for that happens after its pipeline, and the packet's measures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Verdict {
    /// Session and field list of a clone.
    pub clone: Option<(u32, usize)>,
    pub resubmit: Option<usize>,
    pub recirculate: Option<usize>,
    pub exit: bool,
    /// Longest length to send, if it was truncated.
    pub truncate: Option<u32>,
    /// Length on arrival: what counters and meters count.
    pub ingress_length: u32,
    /// Length on arrival, plus headers added, minus headers removed.
    pub length: u32,
    pub jumps: u32,
    /// Times that it was resubmitted, recirculated or cloned from egress.
    pub passes: u32,
}

/// Everything that an action works on.
pub(super) struct Machine<'a> {
    pub layout: &'a Layout,
    pub calculations: &'a [Calculation],
    pub learn_lists: &'a [LearnList],
    pub phv: &'a mut Phv,
    pub state: &'a mut State,
    pub verdict: &'a mut Verdict,
    /// What the parser left of the frame; all of it while the packet is parsed.
    pub payload: &'a [u8],
    /// How far the parser is.
    pub parsed: Parsed,
    /// Parser states that the packet has visited.
    pub visited: u32,
    pub now_us: u64,
    pub max_jumps: u32,
    pub max_states: u32,
}

impl Machine<'_> {
    /// What a table needs to know of the packet.
    #[inline]
    pub fn lookup(&mut self) -> Lookup<'_> {
        let state = &mut *self.state;
        Lookup {
            phv: self.phv,
            layout: self.layout,
            payload: self.payload,
            length: self.verdict.ingress_length,
            now_us: self.now_us,
            key: &mut state.key,
            masked: &mut state.masked,
            scratch: &mut state.scratch,
        }
    }

    pub fn jump(&mut self, to: u32) -> Result<u32, DropCause> {
        self.verdict.jumps += 1;
        if self.verdict.jumps > self.max_jumps {
            return Err(DropCause::JumpLimit);
        }
        Ok(to)
    }

    pub fn env<'a>(&'a self, args: &'a [u8]) -> Env<'a> {
        Env {
            phv: self.phv,
            args,
            layout: self.layout,
            registers: &self.state.registers,
        }
    }

    /// Executes a primitive that is not control flow.
    pub fn step(&mut self, instruction: &Instruction, args: &[u8]) {
        let layout = self.layout;
        let number = |num: &Num, machine: &Self| num.eval(machine.env(args));
        match instruction {
            Instruction::Assign(slot, num) => {
                let value = number(num, self);
                slot.store(&mut self.phv.bytes, value as u128);
            }
            Instruction::AssignWord(slot, word) => {
                let value = word.bits(self.env(args));
                slot.store_word(&mut self.phv.bytes, value);
            }
            Instruction::AssignPlace(place, value) => self.assign(place, value, args),
            Instruction::AssignHeader { to, from } => {
                let env = self.env(args);
                if let (Some(to), Some(from)) = (to.resolve(env), from.resolve(env)) {
                    self.phv.assign_header(layout, from, to);
                }
            }
            Instruction::AssignHeaders(pairs) => {
                for (to, from) in pairs {
                    self.phv.assign_header(layout, *from, *to);
                }
            }
            Instruction::AssignStack { to, from } => {
                let (to, from) = (&layout.stacks[*to], &layout.stacks[*from]);
                let next = self.phv.next(from);
                self.phv.set_next(to, next);
                for (to, from) in to
                    .elements
                    .iter()
                    .flatten()
                    .zip(from.elements.iter().flatten())
                {
                    self.phv.assign_header(layout, *from, *to);
                }
            }
            Instruction::AssignVarbit { to, from } => self.phv.copy_varbit(layout, *from, *to),
            Instruction::AddHeader(header) => {
                if let Some(header) = header.resolve(self.env(args)) {
                    self.add_header(header);
                }
            }
            Instruction::RemoveHeader(header) => {
                if let Some(header) = header.resolve(self.env(args)) {
                    self.remove_header(header);
                }
            }
            Instruction::Push { stack, count } => {
                let count = usize::try_from(number(count, self)).unwrap_or(usize::MAX);
                self.phv.push_front(layout, &layout.stacks[*stack], count);
            }
            Instruction::Pop { stack, count } => {
                let count = usize::try_from(number(count, self)).unwrap_or(usize::MAX);
                self.phv.pop_front(layout, &layout.stacks[*stack], count);
            }
            Instruction::MarkToDrop {
                egress_spec,
                mcast_grp,
            } => {
                egress_spec.store(&mut self.phv.bytes, u128::from(DROP_PORT));
                if let Some(mcast_grp) = mcast_grp {
                    mcast_grp.store(&mut self.phv.bytes, 0);
                }
            }
            Instruction::Count { counter, index } => {
                let index = u64::try_from(number(index, self)).unwrap_or(u64::MAX);
                self.state.counters[*counter].count(index, self.verdict.ingress_length);
            }
            Instruction::Meter {
                meter,
                index,
                color,
            } => {
                let index = number(index, self);
                let length = self.verdict.ingress_length;
                let meter = &mut self.state.meters[*meter];
                if let Some(result) = meter.execute(index, length, self.now_us) {
                    self.store(color, result as i128, args);
                }
            }
            Instruction::RegisterRead {
                to,
                register,
                index,
            } => {
                let env = self.env(args);
                let (index, slot) = (index.eval(env), to.resolve(env));
                if let Some(slot) = slot {
                    let register = &self.state.registers[*register];
                    register.read_into(index, slot, &mut self.phv.bytes);
                }
            }
            Instruction::RegisterWrite {
                register,
                index,
                value,
            } => {
                let index = number(index, self);
                match value {
                    Value::Num(num) => {
                        let value = number(num, self);
                        self.state.registers[*register].store(index, value);
                    }
                    Value::Big(big) => {
                        let value = big.eval(self.env(args));
                        self.state.registers[*register].store_big(index, &value);
                    }
                }
            }
            Instruction::Hash {
                to,
                base,
                calculation,
                size,
            } => {
                let (base, size) = (number(base, self) as u64, number(size, self) as u64);
                let calculation = &self.calculations[*calculation];
                let scratch = &mut self.state.scratch;
                let hash = calculation.compute(self.phv, layout, self.payload, scratch);
                let value = (hash % size.max(1)).wrapping_add(base);
                self.store(to, i128::from(value), args);
            }
            Instruction::Random { to, low, high } => {
                let (low, high) = (number(low, self) as u64, number(high, self) as u64);
                // With bounds the wrong way round BMv2 leaves the field as it is.
                if low <= high {
                    let value: u64 = self.state.rng.random_range(low..=high);
                    self.store(to, i128::from(value), args);
                }
            }
            Instruction::Clone { session, fields } => {
                let session = number(session, self) as u32 & MAX_SESSION;
                self.verdict.clone = Some((session, *fields));
            }
            Instruction::Resubmit { fields } => self.verdict.resubmit = Some(*fields),
            Instruction::Recirculate { fields } => self.verdict.recirculate = Some(*fields),
            Instruction::Truncate(length) => {
                let length = u32::try_from(number(length, self)).unwrap_or(u32::MAX);
                let shortest = self
                    .verdict
                    .truncate
                    .map_or(length, |before| before.min(length));
                self.verdict.truncate = Some(shortest);
            }
            Instruction::Digest(list) => {
                self.learn_lists[*list].learn(&self.phv.bytes, &mut self.state.learned);
            }
            Instruction::Log { format, values } => {
                let env = self.env(args);
                let text = log_text(format, values.iter().map(|value| value.eval_big(env)));
                tracing::info!(target: "ultima_switch::log_msg", "{text}");
            }
            Instruction::Jump(_)
            | Instruction::JumpUnless(..)
            | Instruction::Exit
            | Instruction::Assert(_) => unreachable!("control flow is not a step"),
        }
    }

    fn add_header(&mut self, header: usize) {
        if !self.phv.is_valid(header) {
            self.phv.clear(self.layout, header);
            self.phv.set_valid(self.layout, header);
            let bytes = self.phv.wire_length(self.layout, header) as u32;
            self.verdict.length = self.verdict.length.saturating_add(bytes);
        }
    }

    fn remove_header(&mut self, header: usize) {
        if self.phv.is_valid(header) {
            let bytes = self.phv.wire_length(self.layout, header) as u32;
            self.verdict.length = self.verdict.length.saturating_sub(bytes);
            self.phv.set_invalid(header);
        }
    }

    fn assign(&mut self, place: &Place, value: &Value, args: &[u8]) {
        match value {
            Value::Num(num) => {
                let value = num.eval(self.env(args));
                self.store(place, value, args);
            }
            Value::Big(big) => self.assign_big(place, big, args),
        }
    }

    fn assign_big(&mut self, place: &Place, big: &Big, args: &[u8]) {
        let env = self.env(args);
        let (value, slot) = (big.eval(env), place.resolve(env));
        if let Some(slot) = slot {
            slot.store_big(&mut self.phv.bytes, &value);
        }
    }

    /// Stores the low bits of a value. A place outside its stack stores nothing.
    fn store(&mut self, place: &Place, value: i128, args: &[u8]) {
        let Some(slot) = place.resolve(self.env(args)) else {
            return;
        };
        if slot.is_narrow() {
            slot.store(&mut self.phv.bytes, value as u128);
        } else {
            slot.store_big(&mut self.phv.bytes, &value.into());
        }
    }
}

/// BMv2 uses the upper bits of a clone session's id for itself.
const MAX_SESSION: u32 = 0x7fff;

impl Place {
    pub fn resolve(&self, env: Env) -> Option<Slot> {
        match self {
            Place::Fixed(slot) => Some(*slot),
            Place::Late(field) => field.resolve(env),
        }
    }
}

/// The format with its `{}` replaced by the values in order.
pub(super) fn log_text(format: &str, values: impl Iterator<Item = num_bigint::BigInt>) -> String {
    let mut text = String::new();
    let mut rest = format;
    for value in values {
        let Some((before, behind)) = rest.split_once("{}") else {
            break;
        };
        text.push_str(before);
        text.push_str(&value.to_string());
        rest = behind;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_messages_take_values_in_order() {
        let values = [1u8, 2].map(num_bigint::BigInt::from);
        assert_eq!(
            log_text("a={} b={}.", values.clone().into_iter()),
            "a=1 b=2."
        );
        assert_eq!(log_text("a={}", values.into_iter()), "a=1");
        assert_eq!(log_text("a={}", std::iter::empty()), "a={}");
    }
}
