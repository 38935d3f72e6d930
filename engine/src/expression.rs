//! Expressions: evaluation.
//!
//! BMv2 computes with integers of any size and truncates them to a field's width when it stores them. Here most expressions
//! are a [`Num`] in 128-bit two's complement, which is exact: `compile` chooses it only if no intermediate value can be wider or
//! only low bits are used. Narrower ones are a [`Word`], wider ones a [`Big`].

use num_bigint::BigInt;

use super::bits::{Slot, big_mask, low_bits, mask};
use super::layout::Layout;
use super::phv::Phv;
use super::register::Register;
use super::word::{self, Form, Word};

/// What an expression may look at.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    pub phv: &'a Phv,
    /// The arguments of the action that runs.
    pub args: &'a [u8],
    pub layout: &'a Layout,
    pub registers: &'a [Register],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

/// Casts to a width in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cast {
    /// `two_comp_mod`: the low bits as a two's complement integer.
    Wrap,
    /// `sat_cast`: the nearest signed integer of that width.
    Saturate,
    /// `usat_cast`: the nearest unsigned integer of that width.
    SaturateUnsigned,
}

/// An integer of at most 128 bits.
#[derive(Debug, Clone)]
pub(super) enum Num {
    Const(i128),
    Field(Slot),
    /// A field whose place is known only when the packet is there, and the bits wanted of it.
    Late(Box<FieldRef>),
    Arg(Slot),
    Register {
        array: usize,
        index: Box<Num>,
    },
    /// The fill of a stack, plus a constant.
    Fill {
        stack: usize,
        plus: i128,
    },
    Binary(Op, Box<(Num, Num)>),
    Not(Box<Num>),
    Cast(Cast, u32, Box<Num>),
    Choose(Box<(Test, Num, Num)>),
    FromTest(Box<Test>),
    /// The low 128 bits.
    Low(Box<Big>),
    /// A wide value that is used as an amount or index: the nearest integer of 128 bits.
    Nearest(Box<Big>),
    Word(Word),
}

/// An integer of any width.
#[derive(Debug, Clone)]
pub(super) enum Big {
    Const(BigInt),
    Field(Slot),
    Late(Box<FieldRef>),
    Arg(Slot),
    Register {
        array: usize,
        index: Box<Num>,
    },
    Binary(Op, Box<(Big, Big)>),
    /// Shift by an amount; from `cap` on, no bit that matters is left.
    Shl {
        value: Box<Big>,
        amount: Box<Num>,
        cap: u32,
    },
    Shr {
        value: Box<Big>,
        amount: Box<Num>,
    },
    Not(Box<Big>),
    Cast(Cast, u32, Box<Big>),
    Choose(Box<(Test, Big, Big)>),
    FromNum(Box<Num>),
    /// The 128 bits of the number, unsigned.
    FromBits(Box<Num>),
}

/// A comparison, as the set of orders for which it holds: 1 less, 2 equal, 4 greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Less = 1,
    Equal = 2,
    LessOrEqual = 3,
    Greater = 4,
    NotEqual = 5,
    GreaterOrEqual = 6,
}

/// A condition.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Const(bool),
    Compare(Comparison, Box<(Num, Num)>),
    /// An unsigned field of at most 64 bits and a constant.
    Field(Comparison, Slot, u64),
    /// Two such fields.
    Fields(Comparison, Slot, Slot),
    CompareBig(Comparison, Box<(Big, Big)>),
    NotZero(Num),
    NotZeroBig(Big),
    Valid(HeaderRef),
    AnyValid(Box<[usize]>),
    EqualHeaders(Box<(HeaderRef, HeaderRef)>),
    /// Unions are equal if the same member is valid in both, and equal.
    EqualUnions(Box<[(usize, usize)]>),
    Same(Box<(Test, Test)>),
    Not(Box<Test>),
    And(Box<(Test, Test)>),
    Or(Box<(Test, Test)>),
    /// As `And` and `Or`, of any number; evaluated until the result is known.
    All(Box<[Test]>),
    Any(Box<[Test]>),
    Choose(Box<(Test, Test, Test)>),
    Word(Word),
}

/// A header, perhaps by an index that is computed.
#[derive(Debug, Clone)]
pub(super) enum HeaderRef {
    Fixed(usize),
    /// Member `member` of element `index` of a stack.
    Indexed {
        stack: usize,
        index: Box<Num>,
        member: usize,
    },
    /// Member `member` of the last element of a stack.
    Last {
        stack: usize,
        member: usize,
    },
}

/// A field of a header that is found by an index.
#[derive(Debug, Clone)]
pub(super) struct FieldRef {
    pub header: HeaderRef,
    /// The field relative to its header's start.
    pub slot: Slot,
}

impl HeaderRef {
    /// The header instance; `None` if the index is outside the stack.
    pub fn resolve(&self, env: Env) -> Option<usize> {
        let (stack, index, member) = match self {
            HeaderRef::Fixed(header) => return Some(*header),
            HeaderRef::Indexed {
                stack,
                index,
                member,
            } => (*stack, usize::try_from(index.eval(env)).ok()?, *member),
            HeaderRef::Last { stack, member } => {
                let fill = env.phv.next(&env.layout.stacks[*stack]);
                (*stack, fill.checked_sub(1)?, *member)
            }
        };
        env.layout.stacks[stack]
            .elements
            .get(index)
            .map(|element| element[member])
    }
}

impl FieldRef {
    /// Where the field is; `None` if the index is outside the stack.
    pub fn resolve(&self, env: Env) -> Option<Slot> {
        let header = self.header.resolve(env)?;
        Some(self.slot.at(env.layout.instances[header].base))
    }
}

impl Num {
    #[inline]
    pub fn eval(&self, env: Env) -> i128 {
        match self {
            Num::Word(word) => word.eval(env),
            tree => tree.eval_tree(env),
        }
    }

    #[inline(never)]
    fn eval_tree(&self, env: Env) -> i128 {
        match self {
            Num::Const(value) => *value,
            Num::Field(slot) => slot.load_int(&env.phv.bytes),
            // Outside the stack, BMv2 is undefined; zero here.
            Num::Late(field) => field
                .resolve(env)
                .map_or(0, |slot| slot.load_int(&env.phv.bytes)),
            Num::Arg(slot) => slot.load_int(env.args),
            Num::Register { array, index } => env.registers[*array].load(index.eval(env)),
            Num::Fill { stack, plus } => env.phv.next(&env.layout.stacks[*stack]) as i128 + plus,
            Num::Binary(op, sides) => op.apply(sides.0.eval(env), sides.1.eval(env)),
            Num::Not(value) => !value.eval(env),
            Num::Cast(cast, width, value) => cast.apply(value.eval(env), *width),
            Num::Choose(parts) => {
                if parts.0.eval(env) {
                    parts.1.eval(env)
                } else {
                    parts.2.eval(env)
                }
            }
            Num::FromTest(test) => i128::from(test.eval(env)),
            Num::Word(word) => word.eval(env),
            Num::Low(value) => low_i128(&value.eval(env)),
            Num::Nearest(value) => {
                let value = value.eval(env);
                let limit = if value < BigInt::ZERO {
                    i128::MIN
                } else {
                    i128::MAX
                };
                i128::try_from(value).unwrap_or(limit)
            }
        }
    }
}

/// The lowest 128 bits.
pub(super) fn low_i128(value: &BigInt) -> i128 {
    let low = low_bits(value, 128);
    u128::try_from(low).expect("128 bits") as i128
}

impl Op {
    fn apply(self, left: i128, right: i128) -> i128 {
        match self {
            Op::Add => left.wrapping_add(right),
            Op::Sub => left.wrapping_sub(right),
            Op::Mul => left.wrapping_mul(right),
            // BMv2 ends itself on a division by zero; zero here.
            Op::Div => left.checked_div(right).unwrap_or(0),
            Op::Mod => left.checked_rem(right).unwrap_or(0),
            Op::And => left & right,
            Op::Or => left | right,
            Op::Xor => left ^ right,
            Op::Shl => match u32::try_from(right) {
                Ok(amount) if amount < 128 => left << amount,
                _ => 0,
            },
            Op::Shr => left >> u32::try_from(right).unwrap_or(127).min(127),
        }
    }

    fn apply_big(self, left: BigInt, right: BigInt) -> BigInt {
        match self {
            Op::Add => left + right,
            Op::Sub => left - right,
            Op::Mul => left * right,
            Op::Div => left.checked_div(&right).unwrap_or_default(),
            Op::Mod if right == BigInt::ZERO => BigInt::ZERO,
            Op::Mod => left % right,
            Op::And => left & right,
            Op::Or => left | right,
            Op::Xor => left ^ right,
            Op::Shl | Op::Shr => unreachable!("shifts have their own nodes"),
        }
    }
}

impl Cast {
    fn apply(self, value: i128, width: u32) -> i128 {
        let width = width.min(128);
        if width == 0 {
            return 0;
        }
        match self {
            Cast::Wrap => (value << (128 - width)) >> (128 - width),
            Cast::Saturate => {
                let limit = mask(width - 1) as i128;
                value.clamp(-limit - 1, limit)
            }
            Cast::SaturateUnsigned if width >= 127 => value.max(0),
            Cast::SaturateUnsigned => value.clamp(0, mask(width) as i128),
        }
    }

    fn apply_big(self, value: BigInt, width: u32) -> BigInt {
        if width == 0 {
            return BigInt::ZERO;
        }
        let limit = BigInt::from(big_mask(width - 1));
        match self {
            Cast::Wrap => {
                let low = BigInt::from(low_bits(&value, width));
                if low > limit {
                    low - (BigInt::from(1) << width)
                } else {
                    low
                }
            }
            Cast::Saturate => value.clamp(-&limit - 1, limit),
            Cast::SaturateUnsigned => value.clamp(BigInt::ZERO, BigInt::from(big_mask(width))),
        }
    }
}

impl Big {
    pub fn eval(&self, env: Env) -> BigInt {
        match self {
            Big::Const(value) => value.clone(),
            Big::Field(slot) => slot.load_big(&env.phv.bytes),
            Big::Late(field) => field
                .resolve(env)
                .map(|slot| slot.load_big(&env.phv.bytes))
                .unwrap_or_default(),
            Big::Arg(slot) => slot.load_big(env.args),
            Big::Register { array, index } => env.registers[*array].load_big(index.eval(env)),
            Big::Binary(op, sides) => op.apply_big(sides.0.eval(env), sides.1.eval(env)),
            Big::Shl { value, amount, cap } => match u32::try_from(amount.eval(env)) {
                Ok(amount) if amount < *cap => value.eval(env) << amount,
                _ => BigInt::ZERO,
            },
            Big::Shr { value, amount } => {
                let value = value.eval(env);
                match u32::try_from(amount.eval(env)) {
                    Ok(amount) => value >> amount,
                    Err(_) => value >> value_bits_limit(),
                }
            }
            Big::Not(value) => !value.eval(env),
            Big::Cast(cast, width, value) => cast.apply_big(value.eval(env), *width),
            Big::Choose(parts) => {
                if parts.0.eval(env) {
                    parts.1.eval(env)
                } else {
                    parts.2.eval(env)
                }
            }
            Big::FromNum(value) => BigInt::from(value.eval(env)),
            Big::FromBits(value) => BigInt::from(value.eval(env) as u128),
        }
    }
}

/// A right shift by this much leaves nothing but the sign of any value that fits a frame.
fn value_bits_limit() -> u32 {
    u32::MAX
}

impl Comparison {
    /// What holds where this does not.
    pub fn negated(self) -> Comparison {
        match self {
            Comparison::Equal => Comparison::NotEqual,
            Comparison::NotEqual => Comparison::Equal,
            Comparison::Less => Comparison::GreaterOrEqual,
            Comparison::LessOrEqual => Comparison::Greater,
            Comparison::Greater => Comparison::LessOrEqual,
            Comparison::GreaterOrEqual => Comparison::Less,
        }
    }

    /// The comparison, or what holds where it does not.
    pub fn or_not(self, holds: bool) -> Comparison {
        if holds { self } else { self.negated() }
    }

    /// What holds with the sides exchanged.
    fn reversed(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            same => same,
        }
    }

    /// Without branches, which a packet's fields would make unpredictable.
    #[inline(always)]
    pub fn holds_for(self, left: u64, right: u64) -> bool {
        let order =
            u8::from(left < right) | u8::from(left == right) << 1 | u8::from(left > right) << 2;
        self as u8 & order != 0
    }

    fn holds<T: Ord>(self, left: &T, right: &T) -> bool {
        self as u8 & (1 << (left.cmp(right) as i8 + 1)) != 0
    }
}

impl Test {
    /// The same condition, quicker to evaluate: what it is made of is evaluated only until the
    /// result is known, field by field where that is possible, as code where not.
    pub fn lowered(self) -> Test {
        let flat = |sides: Box<(Test, Test)>, parts: fn(Test) -> Result<Vec<Test>, Test>| {
            let sides = [sides.0.lowered(), sides.1.lowered()];
            let sides = sides.map(|side| parts(side).unwrap_or_else(|side| vec![side]));
            sides.concat().into()
        };
        match self {
            Test::And(sides) => Test::All(flat(sides, |side| match side {
                Test::All(parts) => Ok(parts.into()),
                side => Err(side),
            })),
            Test::Or(sides) => Test::Any(flat(sides, |side| match side {
                Test::Any(parts) => Ok(parts.into()),
                side => Err(side),
            })),
            Test::Not(test) => match test.lowered() {
                Test::Field(how, slot, value) => Test::Field(how.negated(), slot, value),
                Test::Fields(how, left, right) => Test::Fields(how.negated(), left, right),
                test => Test::Not(Box::new(test)),
            },
            test => match test.of_fields() {
                Some(test) => test,
                None => Word::of_test(&test).map_or(test, Test::Word),
            },
        }
    }

    /// Calls `found` with each operation that reads a field or a validity which this may compare with a constant.
    pub fn subjects(&self, found: &mut impl FnMut(word::Op)) {
        match self {
            Test::Field(_, slot, _) => found(word::Op::Field(*slot)),
            Test::Not(test) => test.subjects(found),
            Test::All(tests) | Test::Any(tests) => {
                tests.iter().for_each(|test| test.subjects(found));
            }
            Test::Word(word) => match word.form() {
                Form::Field(slot) => found(word::Op::Field(*slot)),
                Form::Ops(ops) => {
                    let leaf =
                        |op: &&word::Op| matches!(op, word::Op::Field(_) | word::Op::Valid(_));
                    ops.iter().filter(leaf).for_each(|op| found(*op));
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn of_fields(&self) -> Option<Test> {
        let short = |slot: &Slot| !slot.signed && slot.width <= 64;
        let (how, sides) = match self {
            Test::NotZero(Num::Field(slot)) if short(slot) => {
                return Some(Test::Field(Comparison::NotEqual, *slot, 0));
            }
            Test::Compare(how, sides) => (*how, sides),
            _ => return None,
        };
        match &**sides {
            (Num::Field(left), Num::Field(right)) if short(left) && short(right) => {
                Some(Test::Fields(how, *left, *right))
            }
            (Num::Field(slot), Num::Const(value)) if short(slot) => {
                Some(Test::Field(how, *slot, u64::try_from(*value).ok()?))
            }
            (Num::Const(value), Num::Field(slot)) if short(slot) => Some(Test::Field(
                how.reversed(),
                *slot,
                u64::try_from(*value).ok()?,
            )),
            _ => None,
        }
    }

    pub fn eval(&self, env: Env) -> bool {
        let valid = |header: Option<usize>| header.is_some_and(|h| env.phv.is_valid(h));
        match self {
            Test::Const(value) => *value,
            Test::Compare(how, sides) => how.holds(&sides.0.eval(env), &sides.1.eval(env)),
            Test::Field(how, slot, value) => how.holds_for(slot.load_word(&env.phv.bytes), *value),
            Test::Fields(how, left, right) => how.holds_for(
                left.load_word(&env.phv.bytes),
                right.load_word(&env.phv.bytes),
            ),
            Test::All(tests) => tests.iter().all(|test| test.eval(env)),
            Test::Any(tests) => tests.iter().any(|test| test.eval(env)),
            Test::CompareBig(how, sides) => how.holds(&sides.0.eval(env), &sides.1.eval(env)),
            Test::NotZero(value) => value.eval(env) != 0,
            Test::NotZeroBig(value) => value.eval(env) != BigInt::ZERO,
            Test::Valid(header) => valid(header.resolve(env)),
            Test::AnyValid(headers) => headers.iter().any(|h| env.phv.is_valid(*h)),
            Test::EqualHeaders(sides) => match (sides.0.resolve(env), sides.1.resolve(env)) {
                (Some(left), Some(right)) => env.phv.equal(env.layout, left, right),
                _ => false,
            },
            Test::EqualUnions(members) => members
                .iter()
                .any(|(left, right)| env.phv.equal(env.layout, *left, *right)),
            Test::Same(sides) => sides.0.eval(env) == sides.1.eval(env),
            Test::Not(test) => !test.eval(env),
            Test::And(sides) => sides.0.eval(env) && sides.1.eval(env),
            Test::Or(sides) => sides.0.eval(env) || sides.1.eval(env),
            Test::Choose(parts) => {
                if parts.0.eval(env) {
                    parts.1.eval(env)
                } else {
                    parts.2.eval(env)
                }
            }
            Test::Word(word) => word.bits(env) != 0,
        }
    }
}
