//! x86-64 machine code for operations on words and fields.
//!
//! [`Native::run`] executes operations until it meets one that needs more of the machine, which [`Code::run`] interprets. Each
//! operation has its own machine code. Its result stays in a register for the next operation, if nothing jumps there and the
//! interpreter cannot have executed the one before. It is also in memory when the next one starts, unless that is its only user.
//!
//! The code accesses words and fields of headers at constant offsets within [`NEAR`] bytes, and arguments within as many bytes as
//! [`Native::run`] checks. It compares indices of cells and positions in the frame with their limits. So no packet leads outside.

#[cfg(test)]
mod tests;
mod x86;

use std::ffi::c_void;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::super::action::{Context, State};
use super::super::bits::{NEAR, Place, SLACK, Slot, Wire, mask};
use super::super::checksum::Checksum;
use super::super::counter::{Counter, CounterCell};
use super::super::expression::Comparison;
use super::super::layout::validity;
use super::super::phv::OPERANDS;
use super::super::register::Register;
use super::super::word::{self, At};
use super::numbers::MAX_RESULTS;
use super::{Address, Arrays, Code, NOWHERE, Op};
use x86::*;

#[derive(Debug)]
pub(super) struct Native {
    memory: Memory,
    starts: Vec<u32>,
    /// Bytes of arguments that the code may read.
    args: usize,
    registers: usize,
    counters: usize,
}

impl Native {
    /// Compiles operations; `None` if the system permits no new machine code, or for more than [`MAX_CODE`] bytes.
    pub fn new(code: &mut Code, arrays: Arrays) -> Option<Native> {
        if !slices_are_pointers_and_lengths() {
            return None;
        }
        let mut assembler = Assembler::default();
        let mut entered = vec![false; code.ops.len()];
        let starts = [code.starts.parser, code.starts.ingress, code.starts.egress];
        let others = [code.starts.deparser, code.accept, code.end];
        let blocks = code.nodes.iter().chain(&code.actions);
        let jumps = code.ops.iter_mut().filter_map(Op::target).map(|to| *to);
        let all = starts.into_iter().chain(others).chain(blocks.copied());
        for address in all.chain(jumps) {
            if let Some(entered) = entered.get_mut(address as usize) {
                *entered = true;
            }
        }
        let live = Live::after(&mut code.ops);
        for (address, op) in code.ops.iter().enumerate() {
            let takes = |at: usize, word: At| {
                !entered[at] && code.ops.get(at).is_some_and(|op| takes(op, word))
            };
            // The other operand of the next operation, which finds its first one in the register.
            let (held, next) = (assembler.held.unwrap_or(At::MAX), address + 1);
            let second = second(op).filter(|(word, _)| {
                let used = *word != held && takes(next, held) && !entered[address];
                used && code.ops[next].reads().contains(word) && !live[next].has(*word)
            });
            let user = if second.is_some() { next } else { address };
            assembler.settle(takes(user, held) && !live[user].has(held));
            if entered[address] {
                assembler.held = None;
            }
            assembler.starts.push(assembler.code.len() as u32);
            assembler.address = address as Address;
            if let Some((word, wire)) = second {
                assembler.field(RCX, WORDS, wire);
                assembler.second = Some(word);
            } else if assembler.compile(op, arrays).is_none() {
                assembler.leave();
            }
            // A result that nothing reads any more is not written.
            assembler.unsaved &= assembler.held.is_some_and(|at| live[address].has(at));
            if assembler.code.len() > MAX_CODE {
                return None;
            }
        }
        // Unreachable operations may jump to the end of the code.
        let end = assembler.code.len() as u32;
        for (at, to) in assembler.jumps {
            let start = assembler.starts.get(to as usize).copied();
            let distance = start.unwrap_or(end).wrapping_sub(at as u32 + 4);
            assembler.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        // An invalid instruction.
        assembler.code.extend([0x0f, 0x0b]);
        Some(Native {
            memory: Memory::new(&assembler.code)?,
            starts: assembler.starts,
            args: assembler.args,
            registers: arrays.registers.len(),
            counters: arrays.counters.len(),
        })
    }

    /// Completes a packet's context with the program's state, to which nothing may be added while the context is in use.
    pub fn complete(&self, state: &mut State, context: &mut Context) {
        // One after the other: together, they are compared as one wide number, which waits until both are in memory.
        assert_eq!(state.registers.len(), self.registers);
        assert_eq!(state.counters.len(), self.counters);
        context.registers = state.registers.as_mut_ptr();
        context.counters = state.counters.as_mut_ptr();
        context.starts = self.starts.as_ptr();
        context.code = self.memory.at.as_ptr();
    }

    /// Executes operations from an address on. Returns the address of the first one that has no machine code.
    #[inline(always)]
    pub fn run(
        &self,
        from: Address,
        words: &mut [u8; NEAR],
        args: &[u8],
        context: &mut Context,
    ) -> Address {
        assert!(args.len() >= self.args);
        let start = self.starts[from as usize] as usize;
        // SAFETY: an operation's code begins at `start`. It is a function of this type that accesses `words` and `args` within their
        // bounds, and what `context`, which is of this code, describes. It changes only registers that a function may change.
        unsafe {
            let code = self.memory.at.byte_add(start).as_ptr();
            let code: extern "sysv64" fn(*mut u8, *const u8, u64, u64, &mut Context) -> Address =
                std::mem::transmute(code);
            code(words.as_mut_ptr(), args.as_ptr(), 0, 0, context)
        }
    }
}

/// Intermediate results that are read later.
#[derive(Clone, Copy, PartialEq)]
struct Live([u64; SETS]);

const SETS: usize = MAX_RESULTS.div_ceil(64);
/// Rounds over all operations until nothing changes.
const MAX_ROUNDS: usize = 16;

impl Live {
    /// The number of an intermediate result; `None` for a word that something else may read.
    fn number(word: At) -> Option<usize> {
        let number = (usize::from(word) / size_of::<u64>()).checked_sub(OPERANDS);
        number.filter(|number| *number < MAX_RESULTS)
    }

    fn has(&self, word: At) -> bool {
        Live::number(word).is_none_or(|number| self.0[number / 64] >> (number % 64) & 1 == 1)
    }

    fn set(&mut self, word: At, live: bool) {
        if let Some(number) = Live::number(word) {
            let bits = &mut self.0[number / 64];
            *bits = *bits & !(1 << (number % 64)) | u64::from(live) << (number % 64);
        }
    }

    /// The results that are live behind each operation. Code seldom goes back, so few rounds find them; after too many, all are.
    fn after(ops: &mut [Op]) -> Vec<Live> {
        let mut before = vec![Live([0; SETS]); ops.len() + 1];
        let mut after = before.clone();
        for _ in 0..MAX_ROUNDS {
            let mut changed = false;
            for (at, op) in ops.iter_mut().enumerate().rev() {
                let behind = (!op.leaves()).then_some(at + 1);
                for next in behind.into_iter().chain(op.target().map(|to| *to as usize)) {
                    let sides = after[at].0.iter_mut().zip(before[next].0);
                    sides.for_each(|(live, next)| *live |= next);
                }
                let mut live = after[at];
                if let Op::Compute { to, .. } | Op::Wide(to, _) = op {
                    live.set(*to, false);
                }
                op.reads().into_iter().for_each(|word| live.set(word, true));
                changed |= live != before[at];
                before[at] = live;
            }
            if !changed {
                return after;
            }
        }
        vec![Live([u64::MAX; SETS]); after.len()]
    }
}

/// The result of an operation that only loads a field of a header, and the field.
fn second(op: &Op) -> Option<(At, Wire)> {
    match op {
        Op::Compute {
            to,
            mask: u64::MAX,
            op: word::Op::Field(slot),
        } if !slot.signed => match slot.place()? {
            Place::Wire(wire) => Some((*to, wire)),
            _ => None,
        },
        _ => None,
    }
}

/// True if the code of an operation uses a word once, from the register.
fn takes(op: &Op, held: At) -> bool {
    use word::Op::*;
    let one = |a, b| a == held && b != held;
    match *op {
        Op::Store(_, at) | Op::If { at, .. } => at == held,
        Op::IfWords { a, b, .. } => one(a, b),
        Op::Compute { op, .. } => match op {
            Add(a, b) | Or(a, b) => one(a, b) || one(b, a),
            Sub(a, b) | Mul(a, b) | And(a, b) | Xor(a, b) => one(a, b),
            Equal(a, b) | Less(a, b) | LessUnsigned(a, b) => one(a, b),
            AddConst(a, _) | XorConst(a, _) | AndConst(a, _) | OrConst(a, _) | Not(a) => a == held,
            Negate(a) | Wrap(a, _) | Clamp(a, ..) | EqualConst(a, _) => a == held,
            ShlConst(a, _) | ShrConst(a, _) => a == held,
            _ => false,
        },
        _ => false,
    }
}

/// True if a boxed slice is its address and its length, as code assumes; Rust does not guarantee it.
fn slices_are_pointers_and_lengths() -> bool {
    let slice: Box<[u64]> = Box::new([0; 3]);
    // SAFETY: a boxed slice has the size of two words, and any content is valid for those.
    let words: [usize; 2] = unsafe { std::mem::transmute_copy(&slice) };
    words == [slice.as_ptr() as usize, 3]
}

/// Executable memory that is not written any more.
#[derive(Debug)]
struct Memory {
    at: NonNull<c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: the memory is only read and executed, and belongs to this value.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(code: &[u8]) -> Option<Memory> {
        let bytes = NonZeroUsize::new(code.len())?;
        let writable = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the system chooses an address that nothing else uses.
        let at = unsafe { mmap_anonymous(None, bytes, writable, MapFlags::MAP_PRIVATE) }.ok()?;
        let memory = Memory { at, bytes };
        // SAFETY: the new mapping has as many bytes and is writable. Nothing refers to it yet.
        unsafe {
            at.cast::<u8>()
                .copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
            let executable = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
            mprotect(at, code.len(), executable).ok()?;
        }
        Some(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and nothing uses it after this value.
        let _ = unsafe { munmap(self.at, self.bytes.get()) };
    }
}

/// The most bytes of machine code: jumps reach 2 GiB, and an action that many nodes call has its code at each of them.
const MAX_CODE: usize = 1 << 26;

/// The longest header that is copied piece by piece.
const MAX_COPY: u16 = 256;

#[derive(Default)]
struct Assembler {
    code: Vec<u8>,
    starts: Vec<u32>,
    /// Places of jump distances, and where the jumps go.
    jumps: Vec<(usize, Address)>,
    /// The word whose number is in `RAX`.
    held: Option<At>,
    /// True if that word is not in memory yet.
    unsaved: bool,
    /// The word whose number is in `RCX`, and not in memory.
    second: Option<At>,
    args: usize,
    address: Address,
}

impl Assembler {
    /// Compiles an operation; `None`, and no code, if the interpreter executes it.
    fn compile(&mut self, op: &Op, arrays: Arrays) -> Option<()> {
        match op {
            Op::Compute { to, mask, op } => self.compute(*to, *mask, op)?,
            Op::Store(wire, from) => {
                self.word(RAX, *from);
                self.store(*wire);
                self.held = None;
            }
            Op::Goto(to) => self.jump(&[0xe9], *to),
            Op::If { how, at, to, value } => self.if_word(*how, *at, *value, *to),
            Op::IfWords { how, a, b, to } => {
                self.with_word(*a, COMPARE, *b);
                self.held = Some(*a);
                self.jump_if(condition(*how), *to);
            }
            Op::Need(bytes) => {
                self.position(*bytes);
                let there = self.jump_ahead(BELOW_OR_EQUAL);
                self.leave();
                self.land(there);
            }
            Op::Extract { base, valid, bytes } => self.extract(*base, *valid, *bytes)?,
            Op::Count { index, counter } => {
                let place = offset_of!(Counter, cells) + *counter as usize * size_of::<Counter>();
                let (cells, size) = (place, place + size_of::<usize>());
                self.cell(*index, offset_of!(Context, counters), size)?;
                self.shift(SHL, RCX, size_of::<CounterCell>().ilog2() as u8);
                self.memory(ADD, RCX, RDX, cells as u32);
                self.memory(LOAD, RAX, CONTEXT, offset_of!(Context, length) as u32);
                let (packets, bytes) = (
                    offset_of!(CounterCell, packets),
                    offset_of!(CounterCell, bytes),
                );
                self.memory(&[0x48, 0x81], WITH_ADD, RCX, packets as u32);
                self.code.extend(1_u32.to_le_bytes());
                self.memory(&[0x48, 0x01], RAX, RCX, bytes as u32);
                self.held = None;
            }
            Op::ReadRegister {
                to,
                index,
                register,
            } => {
                self.register_cell(*index, *register)?;
                self.code.extend([0x48, 0x8b, 0x04, 0xca]);
                self.memory(STORE, RAX, WORDS, (*to).into());
                self.held = None;
            }
            Op::WriteRegister {
                index,
                from,
                register,
            } => {
                self.memory(LOAD, RAX, WORDS, (*from).into());
                self.mask(mask(arrays.registers[*register as usize].width()));
                self.register_cell(*index, *register)?;
                self.code.extend([0x48, 0x89, 0x04, 0xca]);
                self.held = None;
            }
            Op::End => {
                let back = offset_of!(Context, back) as u32;
                self.memory(LOAD, RAX, CONTEXT, back);
                self.with_constant(WITH_COMPARE, RAX, NOWHERE.into());
                let action = self.jump_ahead(NOT_EQUAL);
                self.leave();
                self.land(action);
                self.constant(RCX, NOWHERE.into());
                self.memory(STORE, RCX, CONTEXT, back);
                self.memory(LOAD, RCX, CONTEXT, offset_of!(Context, starts) as u32);
                // To where the code of that operation starts.
                self.code.extend([0x8b, 0x04, 0x81]);
                self.memory(ADD, RAX, CONTEXT, offset_of!(Context, code) as u32);
                self.code.extend([0xff, 0xe0]);
                self.held = None;
            }
            Op::Verify(at) => self.checksum(&arrays.checksums[*at as usize], false)?,
            Op::Update(at) => self.checksum(&arrays.checksums[*at as usize], true)?,
            _ => return None,
        }
        Some(())
    }

    /// Loads an index to `RCX` and the address of all arrays of a kind to `RDX`. Skips the operation unless the array, whose size
    /// is at an offset, has such a cell.
    fn cell(&mut self, index: At, arrays: usize, size: usize) -> Option<()> {
        let size = i32::try_from(size).ok()?;
        self.memory(LOAD, RCX, WORDS, index.into());
        self.memory(LOAD, RDX, CONTEXT, arrays as u32);
        self.memory(COMPARE, RCX, RDX, size as u32);
        self.jump_if(NOT_BELOW, self.address + 1);
        Some(())
    }

    /// The same for a cell of a register. Then `RDX` has the address of its cells, of a word each.
    fn register_cell(&mut self, index: At, register: u32) -> Option<()> {
        let place = register as usize * size_of::<Register>();
        let size = place + offset_of!(Register, words);
        let place = i32::try_from(place + offset_of!(Register, bytes)).ok()?;
        self.cell(index, offset_of!(Context, registers), size)?;
        self.memory(LOAD, RDX, RDX, place as u32);
        Some(())
    }

    /// Loads the parser's position to `RCX` and that position `bytes` ahead to `RDX`, and compares the latter with the frame's end.
    fn position(&mut self, bytes: u32) {
        self.memory(LOAD, RCX, CONTEXT, offset_of!(Context, parsed) as u32);
        self.registers(LOAD, RDX, RCX);
        self.with_constant(WITH_ADD, RDX, bytes.into());
        let end = offset_of!(Context, frame_bytes);
        self.memory(COMPARE, RDX, CONTEXT, end as u32);
    }

    /// Loads bits ahead of the parser. Leaves those at the end of a frame to the interpreter.
    fn ahead(&mut self, offset: u32, width: u8) -> Option<()> {
        let (byte, skip) = (offset / 8, (offset % 8) as u8);
        if width == 0 || skip + width > 64 || byte > u16::MAX.into() {
            return None;
        }
        self.position(byte + SLACK as u32);
        let there = self.jump_ahead(BELOW_OR_EQUAL);
        self.leave();
        self.land(there);
        self.memory(ADD, RCX, CONTEXT, offset_of!(Context, frame) as u32);
        self.memory(LOAD, RAX, RCX, byte);
        self.code.extend([0x48, 0x0f, 0xc8 | RAX]);
        self.shift(SHL, RAX, skip);
        self.shift(SHR, RAX, 64 - width);
        Some(())
    }

    /// Extracts a header. Leaves one that is not there to the interpreter.
    fn extract(&mut self, base: u16, valid: u16, bytes: u16) -> Option<()> {
        if bytes > MAX_COPY {
            return None;
        }
        self.position(bytes.into());
        let there = self.jump_ahead(BELOW_OR_EQUAL);
        self.leave();
        self.land(there);
        self.memory(STORE, RDX, CONTEXT, offset_of!(Context, parsed) as u32);
        self.memory(ADD, RCX, CONTEXT, offset_of!(Context, frame) as u32);
        let mut done = 0;
        while done < bytes {
            let (size, load, store): (u16, &[u8], &[u8]) = match bytes - done {
                // To and from a vector register.
                16.. => (16, &[0x0f, 0x10], &[0x0f, 0x11]),
                8.. => (8, LOAD, STORE),
                4.. => (4, &[0x8b], &[0x89]),
                2.. => (2, &[0x66, 0x8b], &[0x66, 0x89]),
                _ => (1, &[0x8a], &[0x88]),
            };
            self.memory(load, RAX, RCX, done.into());
            self.memory(store, RAX, WORDS, u32::from(base) + u32::from(done));
            done += size;
        }
        self.memory(&[0xc6], 0, WORDS, valid.into());
        self.code.push(1);
        Some(())
    }

    /// Updates a checksum, or verifies one. Leaves a wrong checksum, and one of an invalid header, to the interpreter. `None`, and
    /// no code, unless it is an Internet checksum over fields of one header.
    fn checksum(&mut self, checksum: &Checksum, update: bool) -> Option<()> {
        let fields = checksum.fields.as_ref()?;
        let place = |place| match place {
            Some(Place::Wire(wire)) => Some(wire),
            _ => None,
        };
        let target = place(checksum.target.place())?;
        let valid = place(validity(checksum.header).place())?;
        self.field(RCX, WORDS, valid);
        self.registers(TEST, RCX, RCX);
        let mut exits = vec![self.jump_ahead(EQUAL)];
        self.constant(RAX, 0);
        for field in fields {
            self.field(RCX, WORDS, *field);
            self.registers(ADD, RAX, RCX);
        }
        // The sum has at most 38 bits.
        for _ in 0..3 {
            self.registers(LOAD, RCX, RAX);
            self.shift(SHR, RCX, 16);
            self.registers(&[0x0f, 0xb7], RAX, RAX);
            self.registers(ADD, RAX, RCX);
        }
        self.with_constant(WITH_XOR, RAX, 0xffff);
        if update {
            self.store(target);
        } else {
            self.field(RCX, WORDS, target);
            self.registers(COMPARE, RAX, RCX);
            exits.push(self.jump_ahead(NOT_EQUAL));
        }
        self.jump(&[0xe9], self.address + 1);
        exits.into_iter().for_each(|exit| self.land(exit));
        self.leave();
        Some(())
    }

    /// Computes the result of an operation under a mask.
    fn compute(&mut self, to: At, mask: u64, op: &word::Op) -> Option<()> {
        use word::Op::*;
        let of_slot = |slot: Slot| slot.place().filter(|_| !slot.signed);
        match *op {
            Const(value) if i32::try_from((value & mask) as i64).is_ok() => {
                self.memory(&[0x48, 0xc7], 0, WORDS, to.into());
                self.code.extend(((value & mask) as i32).to_le_bytes());
                self.held = self.held.filter(|held| *held != to);
                return Some(());
            }
            Const(value) => self.constant(RAX, value),
            Field(slot) => self.place(of_slot(slot)?, slot.width),
            Valid(header) => self.place(of_slot(validity(header))?, 1),
            Arg(slot) => {
                let Place::Wire(wire) = of_slot(slot)? else {
                    return None;
                };
                self.args = self.args.max(wire.place().0 + SLACK);
                self.field(RAX, ARGS, wire);
            }
            Ahead(offset, width) => self.ahead(offset, width)?,
            Add(a, b) if self.held == Some(b) => self.with_word(b, ADD, a),
            Add(a, b) => self.with_word(a, ADD, b),
            AddConst(a, value) => {
                self.word(RAX, a);
                self.with_constant(WITH_ADD, RAX, value);
            }
            Sub(a, b) => self.with_word(a, SUB, b),
            Or(a, b) if self.held == Some(b) => self.with_word(b, OR, a),
            Or(a, b) => self.with_word(a, OR, b),
            AndConst(a, _) => self.word(RAX, a),
            XorConst(a, bits) => {
                self.word(RAX, a);
                self.with_constant(WITH_XOR, RAX, bits);
            }
            ShlConst(a, by) => {
                self.word(RAX, a);
                self.shift(SHL, RAX, by % 64);
            }
            ShrConst(a, by) => {
                self.word(RAX, a);
                self.shift(SHR, RAX, by % 64);
            }
            Clamp(a, low, high) => {
                self.word(RAX, a);
                for (limit, beyond) in [(low, LESS), (high, GREATER)] {
                    self.constant(RCX, limit as u64);
                    self.registers(COMPARE, RAX, RCX);
                    self.move_if(beyond, RAX, RCX);
                }
            }
            Mul(a, b) => self.with_word(a, MULTIPLY, b),
            And(a, b) => self.with_word(a, AND, b),
            Xor(a, b) => self.with_word(a, XOR, b),
            OrConst(a, bits) => {
                self.word(RAX, a);
                self.with_constant(WITH_OR, RAX, bits);
            }
            Not(a) => {
                self.word(RAX, a);
                self.with_constant(WITH_XOR, RAX, u64::MAX);
            }
            Negate(a) => {
                self.word(RAX, a);
                self.with_constant(WITH_XOR, RAX, 1);
            }
            Wrap(a, width) => {
                self.word(RAX, a);
                self.shift(SHL, RAX, 64 - width);
                self.shift(SAR, RAX, 64 - width);
            }
            EqualConst(a, value) => {
                self.word(RAX, a);
                self.with_constant(WITH_COMPARE, RAX, value);
                self.truth(EQUAL);
            }
            Equal(a, b) => self.compared(a, b, EQUAL),
            Less(a, b) => self.compared(a, b, LESS),
            LessUnsigned(a, b) => self.compared(a, b, BELOW),
            Choose(test, yes, no) => {
                self.word(RAX, no);
                self.word(RCX, test);
                self.registers(TEST, RCX, RCX);
                self.word(RCX, yes);
                self.move_if(NOT_EQUAL, RAX, RCX);
            }
            _ => return None,
        }
        self.mask(match *op {
            AndConst(_, bits) => bits & mask,
            _ => mask,
        });
        (self.held, self.unsaved) = (Some(to), true);
        // Behind bits ahead, the next operation may start behind the interpreter.
        if matches!(op, Ahead(..)) {
            self.settle(false);
        }
        if matches!(op, Ahead(..)) {
            self.held = None;
        }
        Some(())
    }

    /// Writes the last result to memory unless that is needless.
    fn settle(&mut self, needless: bool) {
        if let (true, false, Some(at)) = (std::mem::take(&mut self.unsaved), needless, self.held) {
            self.memory(STORE, RAX, WORDS, at.into());
        }
    }

    /// Loads a field of so many bits to `RAX`.
    fn place(&mut self, place: Place, width: u32) {
        match place {
            Place::Wire(wire) => self.field(RAX, WORDS, wire),
            Place::Word(at) => self.word(RAX, at),
            Place::Part(at, by) => {
                self.word(RAX, at);
                self.shift(SHR, RAX, by);
                self.mask(mask(width));
            }
        }
    }

    fn compared(&mut self, a: At, b: At, condition: u8) {
        self.with_word(a, COMPARE, b);
        self.truth(condition);
    }

    /// Sets `RAX` to 1 if a condition holds, else to 0.
    fn truth(&mut self, condition: u8) {
        self.registers(&[0x0f, 0x90 | condition], 0, RAX);
        self.registers(&[0x0f, 0xb6], RAX, RAX);
    }

    fn if_word(&mut self, how: Comparison, at: At, value: u64, to: Address) {
        if self.held == Some(at) {
            self.with_constant(WITH_COMPARE, RAX, value);
        } else if let Ok(small) = i32::try_from(value as i64) {
            self.memory(&[0x48, 0x81], WITH_COMPARE, WORDS, at.into());
            self.code.extend(small.to_le_bytes());
        } else {
            self.word(RAX, at);
            self.with_constant(WITH_COMPARE, RAX, value);
            self.held = Some(at);
        }
        self.jump_if(condition(how), to);
    }

    fn word(&mut self, to: Reg, at: At) {
        if to != RAX || self.held != Some(at) {
            self.memory(LOAD, to, WORDS, at.into());
        }
    }

    /// Loads word `a` to `RAX`, and executes an instruction on `RAX` and word `b`.
    fn with_word(&mut self, a: At, instruction: &[u8], b: At) {
        self.word(RAX, a);
        match self.second.take() == Some(b) {
            true => self.registers(instruction, RAX, RCX),
            false => self.memory(instruction, RAX, WORDS, b.into()),
        }
    }

    /// Cuts `RAX` to a mask.
    fn mask(&mut self, mask: u64) {
        const LOW: u64 = u32::MAX as u64;
        match mask {
            u64::MAX => {}
            // The upper half of a register becomes zero when the lower one is written.
            LOW => self.registers(&[0x8b], RAX, RAX),
            0..LOW => {
                self.registers(&[0x81], WITH_AND, RAX);
                self.code.extend((mask as u32).to_le_bytes());
            }
            _ => self.with_constant(WITH_AND, RAX, mask),
        }
    }

    fn field(&mut self, to: Reg, base: Reg, wire: Wire) {
        let (byte, skip, width) = wire.place();
        let end = skip + width;
        let at = byte as u32;
        let bits = match end {
            0..=8 => {
                self.memory(&[0x0f, 0xb6], to, base, at);
                8
            }
            9..=16 => {
                self.memory(&[0x0f, 0xb7], to, base, at);
                self.rotate_16(to);
                16
            }
            17..=32 => {
                self.memory(&[0x8b], to, base, at);
                self.code.extend([0x0f, 0xc8 | to]);
                32
            }
            _ => {
                self.memory(LOAD, to, base, at);
                self.code.extend([0x48, 0x0f, 0xc8 | to]);
                self.shift(SHL, to, skip);
                return self.shift(SHR, to, 64 - width);
            }
        };
        self.shift(SHR, to, bits - end);
        if skip > 0 {
            self.with_constant(WITH_AND, to, u64::MAX >> (64 - width));
        }
    }

    /// Writes `RAX` to a field.
    fn store(&mut self, wire: Wire) {
        let (byte, skip, width) = wire.place();
        let at = byte as u32;
        match (skip, width) {
            (0, 8) => self.memory(&[0x88], RAX, WORDS, at),
            (0, 16) => {
                self.rotate_16(RAX);
                self.memory(&[0x66, 0x89], RAX, WORDS, at);
            }
            (0, 32) => {
                self.code.extend([0x0f, 0xc8 | RAX]);
                self.memory(&[0x89], RAX, WORDS, at);
            }
            _ => {
                let shift = 64 - skip - width;
                let field = (u64::MAX >> (64 - width)) << shift;
                self.memory(LOAD, RCX, WORDS, at);
                self.code.extend([0x48, 0x0f, 0xc8 | RCX]);
                self.shift(SHL, RAX, shift);
                self.constant(RDX, field);
                self.registers(AND, RAX, RDX);
                self.constant(RDX, !field);
                self.registers(AND, RCX, RDX);
                self.registers(OR, RAX, RCX);
                self.code.extend([0x48, 0x0f, 0xc8 | RAX]);
                self.memory(STORE, RAX, WORDS, at);
            }
        }
    }

    /// Returns the operation's address.
    fn leave(&mut self) {
        self.constant(RAX, self.address.into());
        self.code.push(0xc3);
        self.held = None;
    }
}
