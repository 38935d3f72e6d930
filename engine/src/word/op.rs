//! The operations that code is made of.

use std::cell::RefCell;

use super::super::bits::{Slot, mask};
use super::super::expression::Env;

/// An operand: the position of an operation of the same expression, or a machine word of the header vector.
pub(crate) type At = u16;

/// An operation on results of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Const(u64),
    Field(Slot),
    Arg(Slot),
    Valid(usize),
    Register(usize, At),
    /// Bits ahead of the parser, at most 64: offset and width.
    Ahead(u32, u8),
    Add(At, At),
    AddConst(At, u64),
    Sub(At, At),
    Mul(At, At),
    And(At, At),
    Or(At, At),
    Xor(At, At),
    AndConst(At, u64),
    OrConst(At, u64),
    XorConst(At, u64),
    Not(At),
    Shl(At, At),
    ShlConst(At, u8),
    ShrSigned(At, At),
    ShrUnsigned(At, At),
    ShrConst(At, u8),
    DivUnsigned(At, At),
    ModUnsigned(At, At),
    Wrap(At, u8),
    Clamp(At, i64, i64),
    Equal(At, At),
    EqualConst(At, u64),
    Less(At, At),
    LessUnsigned(At, At),
    Negate(At),
    Choose(At, At, At),
}

impl Op {
    /// The result of an operation that reads more than words, from the results of its operands.
    pub fn find(&self, at: impl Fn(At) -> u64, env: Env) -> u64 {
        match *self {
            Op::Field(slot) => slot.load_word(&env.phv.bytes),
            Op::Arg(slot) => slot.load_word(env.args),
            Op::Valid(header) => u64::from(env.phv.is_valid(header)),
            Op::Register(array, index) => env.registers[array].load_word(at(index)).unwrap_or(0),
            Op::Ahead(offset, width) => bits_ahead(env.ahead, offset as usize, width),
            _ => self.result(at),
        }
    }

    /// The result of an operation on words.
    #[inline(always)]
    pub fn result(&self, at: impl Fn(At) -> u64) -> u64 {
        match *self {
            Op::Const(value) => value,
            Op::Add(a, b) => at(a).wrapping_add(at(b)),
            Op::AddConst(a, value) => at(a).wrapping_add(value),
            Op::Sub(a, b) => at(a).wrapping_sub(at(b)),
            Op::Mul(a, b) => at(a).wrapping_mul(at(b)),
            Op::And(a, b) => at(a) & at(b),
            Op::Or(a, b) => at(a) | at(b),
            Op::Xor(a, b) => at(a) ^ at(b),
            Op::AndConst(a, mask) => at(a) & mask,
            Op::OrConst(a, bits) => at(a) | bits,
            Op::XorConst(a, bits) => at(a) ^ bits,
            Op::Not(a) => !at(a),
            Op::Shl(a, b) => match at(b) {
                by @ 0..64 => at(a) << by,
                _ => 0,
            },
            Op::ShlConst(a, by) => at(a) << (by % 64),
            Op::ShrSigned(a, b) => ((at(a) as i64) >> at(b).min(63)) as u64,
            Op::ShrUnsigned(a, b) => match at(b) {
                by @ 0..64 => at(a) >> by,
                _ => 0,
            },
            Op::ShrConst(a, by) => at(a) >> (by % 64),
            Op::DivUnsigned(a, b) => at(a).checked_div(at(b)).unwrap_or(0),
            Op::ModUnsigned(a, b) => at(a).checked_rem(at(b)).unwrap_or(0),
            Op::Wrap(a, width) => {
                let unused = 64 - u32::from(width);
                (((at(a) << unused) as i64) >> unused) as u64
            }
            Op::Clamp(a, low, high) => (at(a) as i64).clamp(low, high) as u64,
            Op::Equal(a, b) => u64::from(at(a) == at(b)),
            Op::EqualConst(a, value) => u64::from(at(a) == value),
            Op::Less(a, b) => u64::from((at(a) as i64) < at(b) as i64),
            Op::LessUnsigned(a, b) => u64::from(at(a) < at(b)),
            Op::Negate(a) => at(a) ^ 1,
            Op::Choose(test, yes, no) => {
                if at(test) != 0 {
                    at(yes)
                } else {
                    at(no)
                }
            }
            _ => unreachable!("it reads more than words"),
        }
    }

    /// The same operation with its operands elsewhere.
    pub fn moved(self, to: impl Fn(At) -> At) -> Op {
        match self {
            Op::Const(_) | Op::Field(_) | Op::Arg(_) | Op::Valid(_) | Op::Ahead(..) => self,
            Op::Register(array, a) => Op::Register(array, to(a)),
            Op::Add(a, b) => Op::Add(to(a), to(b)),
            Op::AddConst(a, value) => Op::AddConst(to(a), value),
            Op::Sub(a, b) => Op::Sub(to(a), to(b)),
            Op::Mul(a, b) => Op::Mul(to(a), to(b)),
            Op::And(a, b) => Op::And(to(a), to(b)),
            Op::Or(a, b) => Op::Or(to(a), to(b)),
            Op::Xor(a, b) => Op::Xor(to(a), to(b)),
            Op::AndConst(a, bits) => Op::AndConst(to(a), bits),
            Op::OrConst(a, bits) => Op::OrConst(to(a), bits),
            Op::XorConst(a, bits) => Op::XorConst(to(a), bits),
            Op::Not(a) => Op::Not(to(a)),
            Op::Shl(a, b) => Op::Shl(to(a), to(b)),
            Op::ShlConst(a, by) => Op::ShlConst(to(a), by),
            Op::ShrSigned(a, b) => Op::ShrSigned(to(a), to(b)),
            Op::ShrUnsigned(a, b) => Op::ShrUnsigned(to(a), to(b)),
            Op::ShrConst(a, by) => Op::ShrConst(to(a), by),
            Op::DivUnsigned(a, b) => Op::DivUnsigned(to(a), to(b)),
            Op::ModUnsigned(a, b) => Op::ModUnsigned(to(a), to(b)),
            Op::Wrap(a, width) => Op::Wrap(to(a), width),
            Op::Clamp(a, low, high) => Op::Clamp(to(a), low, high),
            Op::Equal(a, b) => Op::Equal(to(a), to(b)),
            Op::EqualConst(a, value) => Op::EqualConst(to(a), value),
            Op::Less(a, b) => Op::Less(to(a), to(b)),
            Op::LessUnsigned(a, b) => Op::LessUnsigned(to(a), to(b)),
            Op::Negate(a) => Op::Negate(to(a)),
            Op::Choose(test, yes, no) => Op::Choose(to(test), to(yes), to(no)),
        }
    }

    /// The operands.
    pub fn operands(self) -> Vec<At> {
        let operands = RefCell::new(Vec::new());
        let _ = self.moved(|at| {
            operands.borrow_mut().push(at);
            at
        });
        operands.into_inner()
    }

    /// Returns the maximum width of the result in bits, from those of the operands.
    pub fn bits(self, of: impl Fn(At) -> u32) -> u32 {
        let of_const = |value: u64| 64 - value.leading_zeros();
        match self {
            Op::Const(value) => of_const(value),
            Op::Field(slot) | Op::Arg(slot) if !slot.signed => slot.width,
            Op::AndConst(a, bits) => of(a).min(of_const(bits)),
            Op::OrConst(a, bits) | Op::XorConst(a, bits) => of(a).max(of_const(bits)),
            Op::And(a, b) => of(a).min(of(b)),
            Op::Or(a, b) | Op::Xor(a, b) => of(a).max(of(b)),
            Op::Add(a, b) => (of(a).max(of(b)) + 1).min(64),
            Op::AddConst(a, value) => (of(a).max(of_const(value)) + 1).min(64),
            Op::ShlConst(a, by) => (of(a) + u32::from(by)).min(64),
            Op::ShrConst(a, by) => of(a).saturating_sub(by.into()),
            Op::Choose(_, yes, no) => of(yes).max(of(no)),
            Op::Clamp(_, 0.., high) => of_const(high as u64),
            Op::Ahead(_, width) => width.into(),
            Op::Valid(_)
            | Op::Equal(..)
            | Op::EqualConst(..)
            | Op::Less(..)
            | Op::LessUnsigned(..)
            | Op::Negate(_) => 1,
            _ => 64,
        }
    }
}

/// Bits of a frame, at most 64; zero if there are not as many.
fn bits_ahead(bytes: &[u8], offset: usize, width: u8) -> u64 {
    let end = offset + usize::from(width);
    let bytes = bytes.get(offset / 8..end.div_ceil(8)).unwrap_or_default();
    let value = bytes
        .iter()
        .fold(0u128, |value, byte| value << 8 | u128::from(*byte));
    (value >> (end.next_multiple_of(8) - end)) as u64 & mask(width.into())
}
