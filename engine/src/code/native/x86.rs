//! Instructions of x86-64 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).

use super::super::super::expression::Comparison;
use super::super::Address;
use super::Assembler;

/// A register of the processor, by its number in instructions.
pub type Reg = u8;
/// The result of an operation.
pub const RAX: Reg = 0;
/// Further values of an operation.
pub const RCX: Reg = 1;
pub const RDX: Reg = 2;
/// The address of the header vector.
pub const WORDS: Reg = 7;
/// The address of the arguments.
pub const ARGS: Reg = 6;
/// The address of the [`Context`](super::Context).
pub const CONTEXT: Reg = 8;

// Instructions with two operands of 64 bits: a register, and a register or memory.
pub const LOAD: &[u8] = &[0x48, 0x8b];
pub const STORE: &[u8] = &[0x48, 0x89];
pub const ADD: &[u8] = &[0x48, 0x03];
pub const OR: &[u8] = &[0x48, 0x0b];
pub const AND: &[u8] = &[0x48, 0x23];
pub const SUB: &[u8] = &[0x48, 0x2b];
pub const XOR: &[u8] = &[0x48, 0x33];
pub const COMPARE: &[u8] = &[0x48, 0x3b];
pub const MULTIPLY: &[u8] = &[0x48, 0x0f, 0xaf];
pub const TEST: &[u8] = &[0x48, 0x85];

// Shifts, and instructions with a constant, by the number that takes a register's place.
pub const SHL: u8 = 4;
pub const SHR: u8 = 5;
pub const SAR: u8 = 7;
pub const WITH_OR: u8 = 1;
pub const WITH_AND: u8 = 4;
pub const WITH_ADD: u8 = 0;
pub const WITH_XOR: u8 = 6;
pub const WITH_COMPARE: u8 = 7;

// Conditions of jumps, `setcc` and `cmovcc`.
pub const BELOW: u8 = 2;
pub const NOT_BELOW: u8 = 3;
pub const EQUAL: u8 = 4;
pub const NOT_EQUAL: u8 = 5;
pub const BELOW_OR_EQUAL: u8 = 6;
pub const ABOVE: u8 = 7;
pub const LESS: u8 = 12;
pub const GREATER: u8 = 15;

pub fn condition(how: Comparison) -> u8 {
    match how {
        Comparison::Less => BELOW,
        Comparison::Equal => EQUAL,
        Comparison::LessOrEqual => BELOW_OR_EQUAL,
        Comparison::Greater => ABOVE,
        Comparison::NotEqual => NOT_EQUAL,
        Comparison::GreaterOrEqual => NOT_BELOW,
    }
}

impl Assembler {
    /// Jumps within an operation's code. Returns the place of the distance.
    pub fn jump_ahead(&mut self, condition: u8) -> usize {
        self.code.extend([0x0f, 0x80 | condition, 0, 0, 0, 0]);
        self.code.len() - 4
    }

    /// Lets such a jump go here.
    pub fn land(&mut self, jump: usize) {
        let distance = self.code.len() - jump - 4;
        self.code[jump..jump + 4].copy_from_slice(&(distance as u32).to_le_bytes());
        self.held = None;
    }

    /// Exchanges the lower two bytes of a register.
    pub fn rotate_16(&mut self, register: Reg) {
        self.registers(&[0x66, 0xc1], 0, register);
        self.code.push(8);
    }

    /// Shifts a register.
    pub fn shift(&mut self, how: u8, register: Reg, by: u8) {
        if by > 0 {
            self.registers(&[0x48, 0xc1], how, register);
            self.code.push(by);
        }
    }

    /// Sets a register to a constant.
    pub fn constant(&mut self, to: Reg, value: u64) {
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
    pub fn with_constant(&mut self, instruction: u8, register: Reg, value: u64) {
        match i32::try_from(value as i64) {
            Ok(small) => {
                self.registers(&[0x48, 0x81], instruction, register);
                self.code.extend(small.to_le_bytes());
            }
            Err(_) => {
                debug_assert_ne!(register, RDX);
                self.constant(RDX, value);
                // The same instruction for two registers.
                self.registers(&[0x48, instruction << 3 | 3], register, RDX);
            }
        }
    }

    /// Copies a register if a condition holds.
    pub fn move_if(&mut self, condition: u8, to: Reg, from: Reg) {
        self.registers(&[0x48, 0x0f, 0x40 | condition], to, from);
    }

    /// Jumps to an operation if a condition holds.
    pub fn jump_if(&mut self, condition: u8, to: Address) {
        self.jump(&[0x0f, 0x80 | condition], to);
    }

    /// Jumps to an operation.
    pub fn jump(&mut self, instruction: &[u8], to: Address) {
        self.code.extend(instruction);
        self.jumps.push((self.code.len(), to));
        self.code.extend([0; 4]);
    }

    /// An instruction on a register and memory at an offset from `base`.
    pub fn memory(&mut self, instruction: &[u8], register: Reg, base: Reg, at: u32) {
        // The prefix of operands of 64 bits extends the base to register 8 and above.
        self.code.push(instruction[0] | base >> 3);
        self.code.extend(&instruction[1..]);
        self.code.push(0x80 | register << 3 | base & 7);
        self.code.extend(at.to_le_bytes());
    }

    /// An instruction on two registers.
    pub fn registers(&mut self, instruction: &[u8], register: Reg, other: Reg) {
        self.code.extend(instruction);
        self.code.push(0xc0 | register << 3 | other);
    }
}
