//! Actions: their primitives and execution.

use std::ffi::c_void;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::bits::Slot;
use super::checksum::{Calculation, Checksum};
use super::compile::Place;
use super::counter::Counter;
use super::digest::{DigestMessage, LearnList};
use super::expression::{EXACT, Env, HeaderRef, Num, Test};
use super::layout::Layout;
use super::meter::Meter;
use super::outcome::DropCause;
use super::parser::Errors;
use super::phv::Phv;
use super::register::Register;
use super::standard::DROP_PORT;
use super::trace::Recorder;
use super::value_set::ValueSet;

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
    /// The argument's place in the argument buffer.
    pub slot: Slot,
}

/// A primitive or an operation of the parser, translated.
#[derive(Debug)]
pub(super) enum Instruction {
    Assign(Place, Num),
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
        /// Width of a cell in bits.
        width: u32,
        index: Num,
        value: Num,
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
        values: Vec<Num>,
    },
    /// Extracts a header, whose variable-length field has so many bits.
    Extract(Target, Option<Num>),
    Verify {
        test: Test,
        error: Num,
    },
    Advance(Num),
}

/// The header that an extraction fills.
#[derive(Debug)]
pub(super) enum Target {
    Header(usize),
    /// A member of the next element of a stack.
    Next {
        stack: usize,
        member: usize,
    },
}

impl Instruction {
    /// The numbers that [`Machine::step`] finds computed, in its order, each with the low bits that matter.
    pub fn operands(&self) -> Vec<(&Num, u32)> {
        use Instruction::*;
        let exact = |num| (num, EXACT);
        match self {
            Assign(to, value) => {
                let value = (to.width() <= 64).then_some((value, to.width()));
                to.index().map(exact).into_iter().chain(value).collect()
            }
            AssignHeader { to, from } => {
                let indices = [to.index(), from.index()];
                indices.into_iter().flatten().map(exact).collect()
            }
            AddHeader(header) | RemoveHeader(header) => {
                header.index().map(exact).into_iter().collect()
            }
            Push { count: num, .. } | Pop { count: num, .. } => vec![exact(num)],
            Clone { session: num, .. } | Truncate(num) | Advance(num) | Extract(_, Some(num)) => {
                vec![exact(num)]
            }
            Meter {
                index, color: to, ..
            }
            | RegisterRead { index, to, .. } => {
                let numbers = [Some(index), to.index()];
                numbers.into_iter().flatten().map(exact).collect()
            }
            RegisterWrite { index, .. } => vec![exact(index)],
            Hash {
                base: a,
                size: b,
                to,
                ..
            }
            | Random {
                low: a,
                high: b,
                to,
            } => {
                let numbers = [Some(a), Some(b), to.index()];
                numbers.into_iter().flatten().map(exact).collect()
            }
            _ => Vec::new(),
        }
    }
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
    /// The arguments of the action that runs, with room for those of any action.
    pub args: Vec<u8>,
    /// Working memory of calculations and lookaheads.
    pub scratch: Vec<u8>,
    /// Working memory of lookups.
    pub key: Vec<u64>,
    pub masked: Vec<u64>,
    /// The recorder of a traced packet.
    pub trace: Option<Box<Recorder>>,
}

/// An action's requests, which take effect after its pipeline, and the packet's measures.
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

/// A packet's position in the code, and what machine code accesses beside words and arguments.
#[repr(C)]
pub(super) struct Context {
    pub registers: *mut Register,
    pub counters: *mut Counter,
    pub frame: *const u8,
    pub frame_bytes: usize,
    /// Bytes that the parser has extracted or skipped.
    pub parsed: usize,
    /// The return address of the running action.
    pub back: u64,
    /// The length that counters count.
    pub length: u64,
    /// The machine code's place for each operation, and the address of all code.
    pub starts: *const u32,
    pub code: *const c_void,
}

/// Everything that an action works on.
pub(super) struct Machine<'a> {
    pub layout: &'a Layout,
    pub calculations: &'a [Calculation],
    pub learn_lists: &'a [LearnList],
    pub errors: &'a Errors,
    pub phv: &'a mut Phv,
    pub state: &'a mut State,
    pub verdict: &'a mut Verdict,
    /// The frame behind the parsed headers; the whole frame while the packet is parsed.
    pub payload: &'a [u8],
    pub context: Context,
    /// The program's number for the error that ended the parser, or for `NoError`.
    pub parser_error: u32,
    /// True unless a checksum is wrong.
    pub correct: bool,
    /// Parser states that the packet has visited.
    pub visited: u32,
    pub now_us: u64,
    pub max_jumps: u32,
    pub max_states: u32,
}

impl Machine<'_> {
    pub fn jump(&mut self, to: u32) -> Result<u32, DropCause> {
        self.verdict.jumps += 1;
        if self.verdict.jumps > self.max_jumps {
            return Err(DropCause::JumpLimit);
        }
        Ok(to)
    }

    pub fn env(&self) -> Env<'_> {
        Env {
            phv: self.phv,
            args: &self.state.args,
            layout: self.layout,
            registers: &self.state.registers,
            ahead: &self.payload[self.context.parsed..],
        }
    }

    /// Executes an instruction for which there are no operations. Its operands are computed.
    ///
    /// # Errors
    /// The program's number for an error that ends the parser.
    pub fn step(&mut self, instruction: &Instruction) -> Result<(), u32> {
        let layout = self.layout;
        let mut operands = self.phv.operands().into_iter();
        let mut next = || operands.next().unwrap_or_default();
        match instruction {
            Instruction::Assign(to, value) => {
                let slot = place(to, layout, &mut next);
                if to.width() <= 64 {
                    self.store(slot, next());
                } else if let Some(slot) = slot {
                    let value = value.eval(self.env(), slot.width);
                    slot.store_big(&mut self.phv.bytes, &value);
                }
            }
            Instruction::AssignHeader { to, from } => {
                let (to, from) = (to.at(layout, &mut next), from.at(layout, &mut next));
                if let (Some(to), Some(from)) = (to, from) {
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
                let filled = self.phv.next(from);
                self.phv.set_next(to, filled);
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
                if let Some(header) = header.at(layout, next) {
                    self.add_header(header);
                }
            }
            Instruction::RemoveHeader(header) => {
                if let Some(header) = header.at(layout, next) {
                    self.remove_header(header);
                }
            }
            Instruction::Push { stack, .. } => {
                let count = usize::try_from(next()).unwrap_or(usize::MAX);
                self.phv.push_front(layout, &layout.stacks[*stack], count);
            }
            Instruction::Pop { stack, .. } => {
                let count = usize::try_from(next()).unwrap_or(usize::MAX);
                self.phv.pop_front(layout, &layout.stacks[*stack], count);
            }
            Instruction::MarkToDrop {
                egress_spec,
                mcast_grp,
            } => {
                self.store(Some(*egress_spec), DROP_PORT.into());
                self.store(*mcast_grp, 0);
            }
            Instruction::Meter { meter, color, .. } => {
                let (index, length) = (next(), self.verdict.ingress_length);
                let slot = place(color, layout, &mut next);
                let meter = &mut self.state.meters[*meter];
                if let Some(result) = meter.execute(index, length, self.now_us) {
                    self.store(slot, result as u64);
                }
            }
            Instruction::RegisterRead { to, register, .. } => {
                let index = next();
                if let Some(slot) = place(to, layout, &mut next) {
                    let register = &self.state.registers[*register];
                    register.read_into(index, slot, &mut self.phv.bytes);
                }
            }
            Instruction::RegisterWrite {
                register,
                width,
                value,
                ..
            } => {
                let index = next();
                let value = value.eval(self.env(), *width);
                self.state.registers[*register].store_big(index, &value);
            }
            Instruction::Hash {
                to, calculation, ..
            } => {
                let (base, size) = (next(), next());
                let slot = place(to, layout, &mut next);
                let calculation = &self.calculations[*calculation];
                let scratch = &mut self.state.scratch;
                let hash = calculation.compute(self.phv, layout, self.payload, scratch);
                self.store(slot, (hash % size.max(1)).wrapping_add(base));
            }
            Instruction::Random { to, .. } => {
                let (low, high) = (next(), next());
                let slot = place(to, layout, &mut next);
                // With bounds the wrong way round BMv2 leaves the field as it is.
                if low <= high {
                    let value: u64 = self.state.rng.random_range(low..=high);
                    self.store(slot, value);
                }
            }
            Instruction::Clone { fields, .. } => {
                let session = next() as u32 & MAX_SESSION;
                self.verdict.clone = Some((session, *fields));
            }
            Instruction::Resubmit { fields } => self.verdict.resubmit = Some(*fields),
            Instruction::Recirculate { fields } => self.verdict.recirculate = Some(*fields),
            Instruction::Truncate(_) => {
                let length = u32::try_from(next()).unwrap_or(u32::MAX);
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
                let text = self.log_text(format, values);
                tracing::info!(target: "ultima_switch::log_msg", "{text}");
            }
            Instruction::Extract(target, bits) => {
                let bytes = match bits {
                    Some(_) => self.whole_bytes(next())?,
                    None => 0,
                };
                self.extract(target, bytes)?;
            }
            Instruction::Advance(_) => {
                let bytes = self.whole_bytes(next())?;
                self.check_ahead(bytes)?;
                self.context.parsed += bytes;
            }
            Instruction::Count { .. }
            | Instruction::Jump(_)
            | Instruction::JumpUnless(..)
            | Instruction::Exit
            | Instruction::Assert(_)
            | Instruction::Verify { .. } => unreachable!("it is never a step"),
        }
        Ok(())
    }

    /// Extracts a header whose variable-length field has so many bytes.
    fn extract(&mut self, target: &Target, varbit: usize) -> Result<(), u32> {
        let layout = self.layout;
        let header = match target {
            Target::Header(header) => *header,
            Target::Next { stack, member } => {
                let stack = &layout.stacks[*stack];
                let header = stack.element(self.phv.next(stack) as u64, *member);
                header.ok_or(self.errors.stack_out_of_bounds)?
            }
        };
        let shape = layout.shape(header);
        let bytes = varbit.saturating_add(shape.fixed_bytes);
        self.check_ahead(bytes)?;
        if varbit > shape.varbit.map_or(0, |field| field.max_bytes) {
            return Err(self.errors.header_too_short);
        }
        let ahead = &self.payload[self.context.parsed..];
        self.phv.extract(layout, header, &ahead[..bytes], varbit);
        self.context.parsed += bytes;
        if let Target::Next { stack, .. } = target {
            let stack = &layout.stacks[*stack];
            self.phv.set_next(stack, self.phv.next(stack) + 1);
        }
        Ok(())
    }

    /// BMv2 moves by whole bytes only, and so do we.
    fn whole_bytes(&self, bits: u64) -> Result<usize, u32> {
        match i64::try_from(bits) {
            Ok(bits) if bits % 8 == 0 => Ok(bits as usize / 8),
            _ => Err(self.errors.parser_invalid_argument),
        }
    }

    /// Checks that the frame has so many bytes ahead of the parser.
    #[inline]
    pub fn check_ahead(&self, bytes: usize) -> Result<(), u32> {
        match bytes <= self.payload.len() - self.context.parsed {
            true => Ok(()),
            false => Err(self.errors.packet_too_short),
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

    /// Stores the low bits of a value. A place outside its stack stores nothing.
    fn store(&mut self, slot: Option<Slot>, value: u64) {
        if let Some(slot) = slot {
            slot.store_word(&mut self.phv.bytes, value);
        }
    }

    /// The text of a `log_msg`.
    pub fn log_text(&self, format: &str, values: &[Num]) -> String {
        let env = self.env();
        log_text(format, values.iter().map(|value| value.eval(env, EXACT)))
    }
}

/// BMv2 uses the upper bits of a clone session's id for itself.
const MAX_SESSION: u32 = 0x7fff;

/// Returns a field's place, or `None` if `next` returns an index outside the stack.
fn place(to: &Place, layout: &Layout, next: impl FnOnce() -> u64) -> Option<Slot> {
    match to {
        Place::Fixed(slot) => Some(*slot),
        Place::Element(field) => field.at(layout, next),
    }
}

/// The format with its `{}` replaced by the values in order.
fn log_text(format: &str, values: impl Iterator<Item = num_bigint::BigInt>) -> String {
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

impl Machine<'_> {
    /// Verifies a checksum of the program.
    pub fn verify(&mut self, at: usize, checksums: &[Checksum]) {
        let checksum = &checksums[at];
        let computed = self.compute(checksum, &self.payload[self.context.parsed..]);
        if let Some(recorder) = &mut self.state.trace {
            recorder.verified(at, checksum, computed, self.layout, self.phv);
        }
        let target = checksum.target.with_sign(false);
        self.correct &= target.load_word(&self.phv.bytes) == computed;
    }

    /// Updates a checksum of the program.
    pub fn update(&mut self, at: usize, checksums: &[Checksum]) {
        let checksum = &checksums[at];
        // As in BMv2, which cuts what is left of the packet before it puts the headers in front.
        let shortest = self.verdict.truncate.unwrap_or(u32::MAX) as usize;
        let computed = self.compute(checksum, &self.payload[..self.payload.len().min(shortest)]);
        if let Some(recorder) = &mut self.state.trace {
            recorder.updated(at, checksum, computed, self.layout, self.phv);
        }
        checksum.target.store_word(&mut self.phv.bytes, computed);
    }

    fn compute(&mut self, checksum: &Checksum, payload: &[u8]) -> u64 {
        let calculation = &self.calculations[checksum.calculation];
        calculation.compute(self.phv, self.layout, payload, &mut self.state.scratch)
    }
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
