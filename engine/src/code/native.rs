//! x86-64 machine code for operations on words and fields.
//!
//! [`Native::run`] executes operations until it meets one that needs more of the machine, which
//! [`Code::execute`](super::Code::execute) interprets. Each operation has its own machine code, and
//! its result is in memory when the next one starts, so that execution may enter anywhere.
//!
//! Operations access memory at constant offsets: words and fields of headers within [`NEAR`] bytes, and
//! arguments within as many bytes as [`Native::run`] checks. So no packet can lead outside.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::super::bits::{NEAR, SLACK, Wire};
use super::super::expression::Comparison;
use super::super::word::{self, At};
use super::{Address, Code, Op};

/// The machine code of a program.
#[derive(Debug)]
pub(super) struct Native {
    memory: Memory,
    /// Where each operation's code starts.
    starts: Vec<u32>,
    /// Bytes of arguments that the code may read.
    args: usize,
}

impl Native {
    /// Compiles operations; `None` if the system permits no new machine code.
    pub fn new(code: &Code) -> Option<Native> {
        let mut assembler = Assembler::default();
        let mut entered = vec![false; code.ops.len()];
        let starts = [code.starts.parser, code.starts.ingress, code.starts.egress];
        let others = [code.starts.deparser, code.accept, code.end];
        let blocks = code.nodes.iter().chain(&code.actions);
        let jumps = code.ops.iter().filter_map(Op::destination);
        let all = starts.into_iter().chain(others).chain(blocks.copied());
        for address in all.chain(jumps) {
            if let Some(entered) = entered.get_mut(address as usize) {
                *entered = true;
            }
        }
        for (address, op) in code.ops.iter().enumerate() {
            if entered[address] {
                assembler.held = None;
            }
            assembler.starts.push(assembler.code.len() as u32);
            if assembler.compile(op).is_none() {
                assembler.leave(address as Address);
            }
        }
        for (at, to) in assembler.jumps {
            let distance = assembler.starts[to as usize].wrapping_sub(at as u32 + 4);
            assembler.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        Some(Native {
            memory: Memory::new(&assembler.code)?,
            starts: assembler.starts,
            args: assembler.args,
        })
    }

    /// Executes operations from an address on. Returns the address of the first one that has no machine code.
    #[inline(always)]
    pub fn run(&self, from: Address, words: &mut [u8; NEAR], args: &[u8]) -> Address {
        assert!(args.len() >= self.args);
        let start = self.starts[from as usize] as usize;
        // SAFETY: `start` is where an operation's code begins in `memory`. The code is a function of this type that writes to
        // `words` within its bounds, reads `args` within `self.args` bytes, and preserves the other registers.
        unsafe {
            let code = self.memory.at.byte_add(start).as_ptr();
            let code: extern "sysv64" fn(*mut u8, *const u8) -> Address =
                std::mem::transmute(code);
            code(words.as_mut_ptr(), args.as_ptr())
        }
    }
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

/// A register, by its number in instructions.
type Register = u8;
/// The result of an operation.
const RAX: Register = 0;
/// Further values of an operation.
const RCX: Register = 1;
const RDX: Register = 2;
/// The address of the header vector.
const WORDS: Register = 7;
/// The address of the arguments.
const ARGS: Register = 6;

// Instructions with two operands of 64 bits: a register, and a register or memory.
const LOAD: &[u8] = &[0x48, 0x8b];
const STORE: &[u8] = &[0x48, 0x89];
const ADD: &[u8] = &[0x48, 0x03];
const OR: &[u8] = &[0x48, 0x0b];
const AND: &[u8] = &[0x48, 0x23];
const SUB: &[u8] = &[0x48, 0x2b];
const XOR: &[u8] = &[0x48, 0x33];
const COMPARE: &[u8] = &[0x48, 0x3b];
const MULTIPLY: &[u8] = &[0x48, 0x0f, 0xaf];
const TEST: &[u8] = &[0x48, 0x85];

// Shifts, and instructions with a constant, by the number that takes a register's place.
const SHL: u8 = 4;
const SHR: u8 = 5;
const SAR: u8 = 7;
const WITH_OR: u8 = 1;
const WITH_AND: u8 = 4;
const WITH_ADD: u8 = 0;
const WITH_XOR: u8 = 6;
const WITH_COMPARE: u8 = 7;

// Conditions of jumps, `setcc` and `cmovcc`.
const BELOW: u8 = 2;
const EQUAL: u8 = 4;
const NOT_EQUAL: u8 = 5;
const ABOVE: u8 = 7;
const NEGATIVE: u8 = 8;
const LESS: u8 = 12;

fn condition(how: Comparison) -> u8 {
    match how {
        Comparison::Less => BELOW,
        Comparison::Equal => EQUAL,
        Comparison::LessOrEqual => 6,
        Comparison::Greater => ABOVE,
        Comparison::NotEqual => NOT_EQUAL,
        Comparison::GreaterOrEqual => 3,
    }
}

#[derive(Default)]
struct Assembler {
    code: Vec<u8>,
    starts: Vec<u32>,
    /// Places of jump distances, and where the jumps go.
    jumps: Vec<(usize, Address)>,
    /// The word whose number is in `RAX`.
    held: Option<At>,
    args: usize,
}

impl Assembler {
    /// Compiles an operation; `None`, and no code, if it needs more than words and fields.
    fn compile(&mut self, op: &Op) -> Option<()> {
        match op {
            Op::Load(to, wire) => {
                self.field(RAX, WORDS, *wire);
                self.result(*to);
            }
            Op::LoadArg(to, wire) => {
                self.args = self.args.max(wire.place().0 + SLACK);
                self.field(RAX, ARGS, *wire);
                self.result(*to);
            }
            Op::Compute(to, op) => {
                self.compute(op)?;
                self.result(*to);
            }
            Op::Set(to, value) => match i32::try_from(*value as i64) {
                Ok(small) => {
                    self.memory(&[0x48, 0xc7], 0, WORDS, *to);
                    self.code.extend(small.to_le_bytes());
                    self.held = self.held.filter(|held| held != to);
                }
                Err(_) => {
                    self.constant(RAX, *value);
                    self.result(*to);
                }
            },
            Op::Add { to, a, b, mask } => {
                let (a, b) = if self.held == Some(*b) { (b, a) } else { (a, b) };
                self.with_word(*a, ADD, *b);
                self.masked_result(*to, *mask);
            }
            Op::AddConst { spare, to, a, value } => {
                self.word(RAX, *a);
                self.with_constant(WITH_ADD, RAX, *value);
                self.masked_result(*to, u64::MAX >> (spare % 64));
            }
            Op::Sub { to, a, b, mask } => {
                self.with_word(*a, SUB, *b);
                self.masked_result(*to, *mask);
            }
            Op::Sum { spare, to, sum } => {
                let (first, fields) = &**sum;
                self.word(RAX, *first);
                for wire in fields {
                    self.field(RCX, WORDS, *wire);
                    self.registers(ADD, RAX, RCX);
                }
                self.masked_result(*to, u64::MAX >> (spare % 64));
            }
            Op::Or(to, a, b) => {
                self.with_word(*a, OR, *b);
                self.result(*to);
            }
            Op::OrField(to, a, wire) => {
                self.word(RAX, *a);
                self.field(RCX, WORDS, *wire);
                self.registers(OR, RAX, RCX);
                self.result(*to);
            }
            Op::Limit(to, a, high) => {
                self.word(RAX, *a);
                self.constant(RCX, 0);
                self.registers(TEST, RAX, RAX);
                self.move_if(NEGATIVE, RAX, RCX);
                self.constant(RCX, *high);
                self.registers(COMPARE, RAX, RCX);
                self.move_if(ABOVE, RAX, RCX);
                self.result(*to);
            }
            Op::AndConst(to, a, bits) => {
                self.word(RAX, *a);
                self.masked_result(*to, *bits);
            }
            Op::XorConst(to, a, bits) => {
                self.word(RAX, *a);
                self.with_constant(WITH_XOR, RAX, *bits);
                self.result(*to);
            }
            Op::ShlConst { by, to, a, mask } => {
                self.word(RAX, *a);
                self.shift(SHL, RAX, by % 64);
                self.masked_result(*to, *mask);
            }
            Op::ShrConst { by, to, a, mask } => {
                self.word(RAX, *a);
                self.shift(SHR, RAX, by % 64);
                self.masked_result(*to, *mask);
            }
            Op::Store(wire, from) => {
                self.word(RAX, *from);
                self.store(*wire);
                self.held = None;
            }
            Op::Goto(to) => self.jump(&[0xe9], *to),
            Op::IfEqual { at, to, value } => self.if_word(Comparison::Equal, *at, *value, *to),
            Op::IfDifferent { at, to, value } => {
                self.if_word(Comparison::NotEqual, *at, *value, *to);
            }
            Op::If { how, at, to, value } => self.if_word(*how, *at, *value, *to),
            Op::IfWords { how, a, b, to } => {
                self.with_word(*a, COMPARE, *b);
                self.held = Some(*a);
                self.jump_if(condition(*how), *to);
            }
            Op::IfWireEqual { wire, to, value } => self.if_field(EQUAL, *wire, *value, *to),
            Op::IfWireDifferent { wire, to, value } => {
                self.if_field(NOT_EQUAL, *wire, *value, *to);
            }
            _ => return None,
        }
        Some(())
    }

    /// Computes the result of an operation on words in `RAX`.
    fn compute(&mut self, op: &word::Op) -> Option<()> {
        use word::Op::*;
        match *op {
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
            Wrap(a, width) if (1..=64).contains(&width) => {
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
        Some(())
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
            self.memory(&[0x48, 0x81], WITH_COMPARE, WORDS, at);
            self.code.extend(small.to_le_bytes());
        } else {
            self.word(RAX, at);
            self.with_constant(WITH_COMPARE, RAX, value);
            self.held = Some(at);
        }
        self.jump_if(condition(how), to);
    }

    /// Jumps if a field is equal to a value, or if it is not.
    fn if_field(&mut self, condition: u8, wire: Wire, value: u32, to: Address) {
        self.field(RCX, WORDS, wire);
        self.with_constant(WITH_COMPARE, RCX, value.into());
        self.jump_if(condition, to);
    }

    /// Loads a word.
    fn word(&mut self, to: Register, at: At) {
        if to != RAX || self.held != Some(at) {
            self.memory(LOAD, to, WORDS, at);
        }
    }

    /// Loads a word to `RAX` and executes an instruction with another one.
    fn with_word(&mut self, a: At, instruction: &[u8], b: At) {
        self.word(RAX, a);
        self.memory(instruction, RAX, WORDS, b);
    }

    /// Writes `RAX` to a word.
    fn result(&mut self, to: At) {
        self.memory(STORE, RAX, WORDS, to);
        self.held = Some(to);
    }

    fn masked_result(&mut self, to: At, mask: u64) {
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
        self.result(to);
    }

    /// Loads a field.
    fn field(&mut self, to: Register, base: Register, wire: Wire) {
        let (byte, skip, width) = wire.place();
        let end = skip + width;
        let at = byte as At;
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
        let at = byte as At;
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

    /// Exchanges the lower two bytes of a register.
    fn rotate_16(&mut self, register: Register) {
        self.registers(&[0x66, 0xc1], 0, register);
        self.code.push(8);
    }

    fn shift(&mut self, how: u8, register: Register, by: u8) {
        if by > 0 {
            self.registers(&[0x48, 0xc1], how, register);
            self.code.push(by);
        }
    }

    fn constant(&mut self, to: Register, value: u64) {
        match u32::try_from(value) {
            Ok(small) => {
                self.code.push(0xb8 | to);
                self.code.extend(small.to_le_bytes());
            }
            Err(_) => {
                self.code.extend([0x48, 0xb8 | to]);
                self.code.extend(value.to_le_bytes());
            }
        }
    }

    /// Executes an instruction with a register and a constant.
    fn with_constant(&mut self, instruction: u8, register: Register, value: u64) {
        match i32::try_from(value as i64) {
            Ok(small) => {
                self.registers(&[0x48, 0x81], instruction, register);
                self.code.extend(small.to_le_bytes());
            }
            Err(_) => {
                self.constant(RDX, value);
                // The same instruction for two registers.
                self.registers(&[0x48, instruction << 3 | 3], register, RDX);
            }
        }
    }

    fn move_if(&mut self, condition: u8, to: Register, from: Register) {
        self.registers(&[0x48, 0x0f, 0x40 | condition], to, from);
    }

    fn jump_if(&mut self, condition: u8, to: Address) {
        self.jump(&[0x0f, 0x80 | condition], to);
    }

    fn jump(&mut self, instruction: &[u8], to: Address) {
        self.code.extend(instruction);
        self.jumps.push((self.code.len(), to));
        self.code.extend([0; 4]);
    }

    /// Returns an operation's address.
    fn leave(&mut self, address: Address) {
        self.constant(RAX, address.into());
        self.code.push(0xc3);
        self.held = None;
    }

    /// An instruction on a register and memory at an offset from `base`.
    fn memory(&mut self, instruction: &[u8], register: Register, base: Register, at: At) {
        self.code.extend(instruction);
        self.code.push(0x80 | register << 3 | base);
        self.code.extend(u32::from(at).to_le_bytes());
    }

    /// An instruction on two registers.
    fn registers(&mut self, instruction: &[u8], register: Register, other: Register) {
        self.code.extend(instruction);
        self.code.push(0xc0 | register << 3 | other);
    }
}
