//! Compiled programs: parser, tables, conditions, primitives and checksums as one list of small operations and jumps.
//!
//! Operands are 64-bit words: metadata fields, and intermediate results in the working memory of the header vector.
//!
//! Traced packets interpret this list; [`Site`]s lead from its addresses back to the program's nodes and primitives. Other packets
//! run machine code made from the same list ([`native`]), or interpret it where there is no machine code. `random_frames.rs` in
//! switch's tests compares both.

mod compile;
mod conditions;
#[cfg_attr(
    not(all(
        target_arch = "x86_64",
        target_pointer_width = "64",
        target_os = "linux"
    )),
    path = "no_native.rs"
)]
mod native;
mod numbers;
mod parser;
mod sites;

use super::action::{Action, Context, Machine, State};
use super::bits::{SLACK, Slot, Wire, set_word_at, word_at};
use super::checksum::Checksum;
use super::counter::Counter;
use super::expression::{Comparison, Num, Test};
use super::outcome::DropCause;
use super::parser::Parser;
use super::profile::Profile;
use super::register::Register;
use super::table::Table;
use super::word::{self, At};
pub(super) use compile::Source;
use native::Native;
use sites::{Site, finish};

pub(super) type Address = u32;

/// The address that follows the end of a block.
pub(super) const NOWHERE: Address = Address::MAX;

/// `to`, `at`, `a` and `b` are words.
#[derive(Debug)]
enum Op {
    /// Writes the result of an operation, under a mask, to a word.
    Compute {
        to: At,
        mask: u64,
        op: word::Op,
    },
    /// A number that needs more than 64 bits.
    Wide(At, Box<Wide>),
    /// Writes a word to a header's field, cut to the field's width.
    Store(Wire, At),
    /// The same for a field at any place.
    StoreFar(At, Box<Slot>),
    Count {
        index: At,
        counter: u32,
    },
    /// Meters the packet; leaves the word as it is if there is no such cell.
    Meter {
        to: At,
        index: At,
        meter: u32,
    },
    /// Reads a register's cell of at most 64 bits; leaves the word as it is if there is no such cell.
    ReadRegister {
        to: At,
        index: At,
        register: u32,
    },
    /// Writes a word to a register's cell of at most 64 bits, cut to the cell's width.
    WriteRegister {
        index: At,
        from: At,
        register: u32,
    },
    /// Counts a visit to a state of the parser.
    Enter,
    /// Extracts a header of fixed length: its first byte, and that of its validity.
    Extract {
        base: u16,
        valid: u16,
        bytes: u16,
    },
    /// Ends the parser unless the frame has so many more bytes.
    Need(u32),
    /// Ends the parser with an error, by the program's number.
    Stop(At),
    /// Appends a word to the key for a value set, or begins the key with it.
    Key {
        first: bool,
        at: At,
    },
    /// Goes on elsewhere if the key is in a value set.
    IfMember {
        set: u32,
        to: Address,
    },
    Verify(u32),
    Update(u32),
    Goto(Address),
    /// Goes on elsewhere if the word compares like this.
    If {
        how: Comparison,
        at: At,
        to: Address,
        value: u64,
    },
    IfWords {
        how: Comparison,
        a: At,
        b: At,
        to: Address,
    },
    IfTest {
        holds: bool,
        to: Address,
        test: Box<Test>,
    },
    /// A jump of the action's own, which [`Limits::action_jumps`](super::Limits) counts.
    Jump(Address),
    /// Looks a packet up and runs the action.
    Apply(u32),
    /// The same; goes on with the node that the action leads to.
    ApplyAndGo(u32),
    /// Runs an action with the arguments that a node gives it.
    Call(Box<(usize, Box<[u8]>)>),
    /// An instruction that is executed as it stands.
    Step {
        action: u32,
        index: u32,
    },
    Exit,
    Fail,
    End,
}

/// A number that needs more than 64 bits.
#[derive(Debug)]
struct Wide {
    num: Num,
    /// True if it is an index or amount, false if only its low bits matter.
    exact: bool,
}

impl Op {
    /// Returns the jump target, if it is a position in the code.
    fn target(&mut self) -> Option<&mut Address> {
        match self {
            Op::Goto(to)
            | Op::Jump(to)
            | Op::If { to, .. }
            | Op::IfWords { to, .. }
            | Op::IfMember { to, .. }
            | Op::IfTest { to, .. } => Some(to),
            _ => None,
        }
    }

    fn reads(&self) -> Vec<At> {
        match *self {
            Op::Compute { op, .. } => op.operands(),
            Op::Store(_, at) | Op::StoreFar(at, _) | Op::Stop(at) => vec![at],
            Op::If { at, .. } | Op::Key { at, .. } => vec![at],
            Op::Count { index, .. } | Op::Meter { index, .. } | Op::ReadRegister { index, .. } => {
                vec![index]
            }
            Op::WriteRegister { index, from, .. } => vec![index, from],
            Op::IfWords { a, b, .. } => vec![a, b],
            _ => Vec::new(),
        }
    }

    /// True if the operation behind it is reached by jumps only.
    fn leaves(&self) -> bool {
        matches!(
            self,
            Op::Goto(_)
                | Op::Jump(_)
                | Op::Stop(_)
                | Op::ApplyAndGo(_)
                | Op::Exit
                | Op::Fail
                | Op::End
        )
    }
}

#[derive(Debug, Default)]
pub(super) struct Code {
    ops: Vec<Op>,
    pub starts: Starts,
    nodes: Vec<Address>,
    actions: Vec<Address>,
    /// The code behind the parser.
    accept: Address,
    end: Address,
    /// The addresses of the program's nodes and primitives, in ascending order.
    sites: Vec<(Address, Site)>,
    /// `None` where the system has no such code, or for too long a program: then all operations are interpreted.
    native: Option<Native>,
}

/// The addresses of a program's blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Starts {
    /// The parser, and verification of checksums.
    pub parser: Address,
    pub ingress: Address,
    pub egress: Address,
    /// Update of checksums, and the primitives of the deparser.
    pub deparser: Address,
}

/// The arrays and checksums that machine code has built in.
#[derive(Clone, Copy)]
struct Arrays<'a> {
    registers: &'a [Register],
    counters: &'a [Counter],
    checksums: &'a [Checksum],
}

/// The data that code uses beside the packet.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub profiles: &'a [Profile],
    pub actions: &'a [Action],
    pub checksums: &'a [Checksum],
    pub parser: &'a Parser,
}

impl Code {
    /// Describes a packet, before its first operation, with the length that counters count. It is for this code and state only, and
    /// while the frame is there.
    pub fn context(&self, state: &mut State, frame: &[u8], length: u32) -> Context {
        let mut context = Context {
            registers: std::ptr::null_mut(),
            counters: std::ptr::null_mut(),
            frame: frame.as_ptr(),
            frame_bytes: frame.len(),
            parsed: 0,
            back: NOWHERE.into(),
            length: length.into(),
            starts: std::ptr::null(),
            code: std::ptr::null(),
        };
        if let Some(native) = &self.native {
            native.complete(state, &mut context);
        }
        context
    }

    /// Takes a packet from `start` to the end of its block, or to an `exit`. A traced packet runs the same operations.
    pub fn run(
        &self,
        start: Address,
        tables: &mut [Table],
        shared: Shared,
        machine: &mut Machine,
    ) -> Result<(), DropCause> {
        if machine.state.trace.is_some() {
            self.execute::<true>(start, tables, shared, machine)
        } else {
            self.execute::<false>(start, tables, shared, machine)
        }
    }

    /// Also records what happens if it is `TRACED`.
    fn execute<const TRACED: bool>(
        &self,
        start: Address,
        tables: &mut [Table],
        shared: Shared,
        machine: &mut Machine,
    ) -> Result<(), DropCause> {
        let native = self.native.as_ref().filter(|_| !TRACED);
        let mut next = start;
        let mut unfinished = None;
        loop {
            if TRACED {
                self.record(next as usize, tables, shared, machine, &mut unfinished);
            }
            let words = machine.phv.near();
            if let Some(native) = native {
                next = native.run(next, words, &machine.state.args, &mut machine.context);
            }
            let op = &self.ops[next as usize];
            next += 1;
            macro_rules! word {
                ($at:expr) => {
                    word_at(words, *$at)
                };
            }
            macro_rules! set {
                ($to:expr, $value:expr) => {{
                    let value = $value;
                    set_word_at(words, *$to, value);
                }};
            }
            match op {
                Op::Compute { to, mask, op } => {
                    let value = op.find(|at| machine.phv.word(at), machine.env());
                    set_word_at(machine.phv.near(), *to, value & mask);
                }
                Op::Store(wire, from) => wire.store(words, word!(from)),
                Op::Count { counter, index } => {
                    let length = machine.verdict.ingress_length;
                    machine.state.counters[*counter as usize].count(word!(index), length);
                }
                Op::Meter { to, meter, index } => {
                    let (length, now_us) = (machine.verdict.ingress_length, machine.now_us);
                    let meter = &mut machine.state.meters[*meter as usize];
                    if let Some(color) = meter.execute(word!(index), length, now_us) {
                        set!(to, color as u64);
                    }
                }
                Op::ReadRegister {
                    to,
                    register,
                    index,
                } => {
                    let register = &machine.state.registers[*register as usize];
                    if let Some(value) = register.load_word(word!(index)) {
                        set!(to, value);
                    }
                }
                Op::WriteRegister {
                    register,
                    index,
                    from,
                } => {
                    let (index, value) = (word!(index), word!(from));
                    machine.state.registers[*register as usize].store_word(index, value);
                }
                Op::Enter => {
                    machine.visited += 1;
                    if machine.visited > machine.max_states {
                        return Err(DropCause::ParserLimit);
                    }
                }
                Op::Extract { base, valid, bytes } => {
                    let (start, bytes) = (machine.context.parsed, usize::from(*bytes));
                    match machine.payload.get(start..start + bytes) {
                        Some(wire) => {
                            let base = usize::from(*base);
                            words[base..base + bytes].copy_from_slice(wire);
                            words[usize::from(*valid)] = 1;
                            machine.context.parsed = start + bytes;
                        }
                        None => {
                            machine.parser_error = machine.errors.packet_too_short;
                            unfinished = None;
                            next = self.accept;
                        }
                    }
                }
                Op::Goto(to) => next = *to,
                Op::If { how, at, value, to } if how.holds_for(word!(at), *value) => next = *to,
                Op::IfWords { how, a, b, to } if how.holds_for(word!(a), word!(b)) => next = *to,
                Op::If { .. } | Op::IfWords { .. } => {}
                Op::Apply(table) | Op::ApplyAndGo(table) => {
                    let found = tables[*table as usize].apply(shared.profiles, machine);
                    if TRACED && let Some(color) = found.color {
                        machine.metered(color);
                    }
                    if let Op::ApplyAndGo(_) = op {
                        next = found.next.map_or(self.end, |node| self.nodes[node]);
                    }
                    if let Some(action) = found.action {
                        // Nothing reads the arguments of an action without parameters.
                        if found.args.len() > SLACK {
                            machine.state.args[..found.args.len()].copy_from_slice(found.args);
                        }
                        machine.context.back = next.into();
                        next = self.actions[action.action];
                    }
                }
                Op::Call(call) => {
                    let (action, args) = &**call;
                    machine.state.args[..args.len()].copy_from_slice(args);
                    machine.context.back = next.into();
                    next = self.actions[*action];
                }
                Op::Exit => {
                    machine.verdict.exit = true;
                    return Ok(());
                }
                Op::End => {
                    if TRACED {
                        finish(&mut unfinished, shared, machine);
                    }
                    match std::mem::replace(&mut machine.context.back, NOWHERE.into()) as Address {
                        NOWHERE => return Ok(()),
                        to => next = to,
                    }
                }
                op => match op.execute(shared, machine)? {
                    Then::On => {}
                    Then::Go(to) => next = to,
                    Then::Stop(error) => {
                        machine.parser_error = error;
                        unfinished = None;
                        next = self.accept;
                    }
                },
            }
        }
    }
}

/// The continuation of an operation.
enum Then {
    On,
    Go(Address),
    /// The end of the parser, with an error by the program's number.
    Stop(u32),
}

impl Op {
    /// Executes an operation that needs more of the machine than words.
    fn execute(&self, shared: Shared, machine: &mut Machine) -> Result<Then, DropCause> {
        match self {
            Op::Wide(to, wide) => {
                let value = match wide.exact {
                    true => wide.num.eval_amount(machine.env()),
                    false => wide.num.eval_low(machine.env()),
                };
                set_word_at(machine.phv.near(), *to, value);
            }
            Op::StoreFar(at, slot) => {
                let value = machine.phv.word(*at);
                slot.store_word(&mut machine.phv.bytes, value);
            }
            Op::IfTest { test, holds, to } if test.eval(machine.env()) == *holds => {
                return Ok(Then::Go(*to));
            }
            Op::Need(bytes) => {
                if let Err(error) = machine.check_ahead(*bytes as usize) {
                    return Ok(Then::Stop(error));
                }
            }
            Op::Stop(error) => return Ok(Then::Stop(machine.phv.word(*error) as u32)),
            Op::Key { first, at } => {
                let word = machine.phv.word(*at);
                if *first {
                    machine.state.key.clear();
                }
                machine.state.key.push(word);
            }
            Op::IfMember { set, to } => {
                let state = &mut *machine.state;
                if state.value_sets[*set as usize].holds(&state.key, &mut state.masked) {
                    return Ok(Then::Go(*to));
                }
            }
            Op::Verify(at) => machine.verify(*at as usize, shared.checksums),
            Op::Update(at) => machine.update(*at as usize, shared.checksums),
            Op::Jump(to) => return Ok(Then::Go(machine.jump(*to)?)),
            Op::Step { action, index } => {
                let action = &shared.actions[*action as usize];
                if let Err(error) = machine.step(&action.code[*index as usize]) {
                    return Ok(Then::Stop(error));
                }
            }
            Op::Fail => return Err(DropCause::Assertion),
            // A condition that does not hold, or done before.
            _ => {}
        }
        Ok(Then::On)
    }
}
