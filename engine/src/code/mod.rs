//! Compiled pipelines: tables, conditions and primitives as one list of small operations and jumps.
//!
//! This code processes all packets. For traced ones, [`Site`]s lead from its addresses back to the program's nodes and primitives.

mod compile;
mod sites;

use super::DropCause;
use super::action::{Action, Machine};
use super::bits::Slot;
use super::expression::{Comparison, Test};
use super::profile::Profile;
use super::table::{Next, Table};
use super::word;
use sites::{Site, finish};

/// A register's number.
type Register = u8;

/// Results of operations.
pub(super) type Registers = [u64; REGISTERS];

/// As many as a [`Register`] can name.
pub(super) const REGISTERS: usize = 256;

/// A position in the code.
type Address = u32;

/// All slots are short; what others need is done by [`Op::Primitive`] and [`Op::IfTest`].
#[derive(Debug)]
enum Op {
    /// Computes a register from others.
    Compute(Register, word::Op),
    /// The most frequent ones of [`Op::Compute`].
    Load(Register, Slot),
    Add(Register, Register, Register),
    AndConst(Register, Register, u64),
    XorConst(Register, Register, u64),
    ShrConst(Register, Register, u8),
    /// Writes a register to a field.
    Store(Slot, Register),
    Set(Slot, u64),
    Move {
        to: Slot,
        from: Slot,
    },
    MoveArg {
        to: Slot,
        from: Slot,
    },
    /// Counts in the cell that a register names.
    Count {
        counter: usize,
        index: Register,
    },
    /// Counts in the cell that a field names.
    CountAt {
        counter: usize,
        index: Slot,
    },
    Goto(Address),
    /// Goes on elsewhere if the field is equal to the value.
    IfEqual {
        slot: Slot,
        value: u64,
        to: Address,
    },
    IfDifferent {
        slot: Slot,
        value: u64,
        to: Address,
    },
    /// Goes on elsewhere if the field compares like this.
    If {
        how: Comparison,
        slot: Slot,
        value: u64,
        to: Address,
    },
    IfFields {
        how: Comparison,
        left: Slot,
        right: Slot,
        to: Address,
    },
    /// Goes on elsewhere if the register, 0 or 1, is `holds`.
    IfRegister {
        register: Register,
        holds: bool,
        to: Address,
    },
    IfTest {
        test: Box<Test>,
        holds: bool,
        to: Address,
    },
    /// A jump of the action's own, which [`Limits::action_jumps`](super::Limits) counts.
    Jump(Address),
    /// Looks a packet up, runs the action, and goes on with the node that it leads to.
    Apply(usize),
    /// Runs an action with the arguments that a node gives it.
    Call {
        action: usize,
        args: Box<[u8]>,
    },
    /// A primitive that is executed as it stands.
    Primitive {
        action: usize,
        index: usize,
    },
    Exit,
    Fail,
    End,
}

/// The code of all pipelines.
#[derive(Debug, Default)]
pub(super) struct Code {
    ops: Vec<Op>,
    /// Where each node starts.
    nodes: Vec<Address>,
    /// Where each action starts.
    actions: Vec<Address>,
    /// Where the program's nodes and primitives start, in ascending order.
    sites: Vec<(Address, Site)>,
}

/// What code uses beside the packet.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub profiles: &'a [Profile],
    pub actions: &'a [Action],
}

/// The primitives of parser and deparser.
pub(super) struct Blocks<'a> {
    pub code: &'a Code,
    pub shared: Shared<'a>,
    pub registers: &'a mut Registers,
}

impl Blocks<'_> {
    /// Runs the primitives at this position among the program's actions to their end, or to the end of the packet.
    pub fn run(&mut self, block: usize, machine: &mut Machine) -> Result<(), DropCause> {
        let start = self.code.actions[block];
        self.code
            .start(start, &mut [], self.shared, self.registers, machine)
    }
}

impl Code {
    /// Takes a packet from `start` to the end of its pipeline, or to an `exit`. A traced packet runs the same operations.
    pub fn run(
        &self,
        start: Next,
        tables: &mut [Table],
        shared: Shared,
        registers: &mut Registers,
        machine: &mut Machine,
    ) -> Result<(), DropCause> {
        let Some(node) = start else {
            return Ok(());
        };
        self.start(self.nodes[node], tables, shared, registers, machine)
    }

    fn start(
        &self,
        start: Address,
        tables: &mut [Table],
        shared: Shared,
        registers: &mut Registers,
        machine: &mut Machine,
    ) -> Result<(), DropCause> {
        if machine.state.trace.is_some() {
            self.execute::<true>(start, &[], tables, shared, registers, machine)
        } else {
            self.execute::<false>(start, &[], tables, shared, registers, machine)
        }
    }

    /// Also records what happens if it is `TRACED`.
    fn execute<const TRACED: bool>(
        &self,
        start: Address,
        args: &[u8],
        tables: &mut [Table],
        shared: Shared,
        registers: &mut Registers,
        machine: &mut Machine,
    ) -> Result<(), DropCause> {
        let mut at = start as usize;
        let mut unfinished = None;
        loop {
            if TRACED {
                self.record(at, args, tables, shared, machine, &mut unfinished);
            }
            let op = &self.ops[at];
            at += 1;
            match op {
                Op::Compute(to, op) => {
                    let operand = |at: Register| registers[usize::from(at)];
                    registers[usize::from(*to)] = op.result(operand, machine.env(args));
                }
                Op::Load(to, slot) => {
                    registers[usize::from(*to)] = slot.load_short(&machine.phv.bytes);
                }
                Op::Add(to, a, b) => {
                    let (a, b) = (registers[usize::from(*a)], registers[usize::from(*b)]);
                    registers[usize::from(*to)] = a.wrapping_add(b);
                }
                Op::AndConst(to, a, bits) => {
                    registers[usize::from(*to)] = registers[usize::from(*a)] & bits;
                }
                Op::XorConst(to, a, bits) => {
                    registers[usize::from(*to)] = registers[usize::from(*a)] ^ bits;
                }
                Op::ShrConst(to, a, by) => {
                    registers[usize::from(*to)] = registers[usize::from(*a)] >> (by % 64);
                }
                Op::Store(slot, from) => {
                    slot.store_short(&mut machine.phv.bytes, registers[usize::from(*from)]);
                }
                Op::Set(slot, value) => slot.store_short(&mut machine.phv.bytes, *value),
                Op::Move { to, from } => {
                    let value = from.load_short(&machine.phv.bytes);
                    to.store_short(&mut machine.phv.bytes, value);
                }
                Op::MoveArg { to, from } => {
                    to.store_short(&mut machine.phv.bytes, from.load_short(args));
                }
                Op::Count { counter, index } => {
                    machine.count(*counter, registers[usize::from(*index)].into());
                }
                Op::CountAt { counter, index } => {
                    let index = index.load_short(&machine.phv.bytes);
                    machine.count(*counter, index.into());
                }
                Op::Goto(to) => at = *to as usize,
                Op::IfEqual { slot, value, to } => {
                    if slot.load_short(&machine.phv.bytes) == *value {
                        at = *to as usize;
                    }
                }
                Op::IfDifferent { slot, value, to } => {
                    if slot.load_short(&machine.phv.bytes) != *value {
                        at = *to as usize;
                    }
                }
                Op::If {
                    how,
                    slot,
                    value,
                    to,
                } => {
                    if how.holds_for(slot.load_short(&machine.phv.bytes), *value) {
                        at = *to as usize;
                    }
                }
                Op::IfFields {
                    how,
                    left,
                    right,
                    to,
                } => {
                    let bytes = &machine.phv.bytes;
                    if how.holds_for(left.load_short(bytes), right.load_short(bytes)) {
                        at = *to as usize;
                    }
                }
                Op::IfRegister {
                    register,
                    holds,
                    to,
                } => {
                    if (registers[usize::from(*register)] != 0) == *holds {
                        at = *to as usize;
                    }
                }
                Op::IfTest { test, holds, to } => {
                    if test.eval(machine.env(args)) == *holds {
                        at = *to as usize;
                    }
                }
                Op::Jump(to) => at = machine.jump(*to as usize)?,
                Op::Apply(table) => {
                    let found = tables[*table].apply(shared.profiles, machine.lookup());
                    if let Some((slot, color)) = found.color {
                        slot.store(&mut machine.phv.bytes, color as u128);
                        if TRACED {
                            machine.metered(color);
                        }
                    }
                    if let Some(action) = found.action {
                        let start = self.actions[action.action];
                        let args = found.args;
                        self.execute::<TRACED>(start, args, &mut [], shared, registers, machine)?;
                        if machine.verdict.exit {
                            return Ok(());
                        }
                    }
                    match found.next {
                        Some(node) => at = self.nodes[node] as usize,
                        None => return Ok(()),
                    }
                }
                Op::Call { action, args } => {
                    let start = self.actions[*action];
                    self.execute::<TRACED>(start, args, &mut [], shared, registers, machine)?;
                    if machine.verdict.exit {
                        return Ok(());
                    }
                }
                Op::Primitive { action, index } => {
                    machine.step(&shared.actions[*action].code[*index], args);
                }
                Op::Exit => {
                    machine.verdict.exit = true;
                    return Ok(());
                }
                Op::Fail => return Err(DropCause::Assertion),
                Op::End => {
                    if TRACED {
                        finish(&mut unfinished, shared, machine);
                    }
                    return Ok(());
                }
            }
        }
    }
}
