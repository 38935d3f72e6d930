//! Expressions as trees, and their evaluation in integers of any size.
//!
//! As in BMv2, a number has any size, and is cut to a field's width when it is stored. Packets run `word`'s code instead wherever 64
//! bits suffice. Traces, and numbers that need more, are evaluated here.

use num_bigint::{BigInt, Sign};

use super::bits::{Slot, big_mask, low_bits};
use super::layout::Layout;
use super::phv::Phv;
use super::register::Register;

/// The inputs of an expression.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    pub phv: &'a Phv,
    /// The arguments of the action that runs.
    pub args: &'a [u8],
    pub layout: &'a Layout,
    pub registers: &'a [Register],
    /// The bytes behind those that the parser has extracted.
    pub ahead: &'a [u8],
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

#[derive(Debug, Clone)]
pub(super) enum Num {
    Const(BigInt),
    Field(Slot),
    /// A field of a stack's element.
    Element(Box<FieldRef>),
    Arg(Slot),
    /// Bits ahead of the parser: offset and width.
    Ahead(u32, u32),
    Register {
        array: usize,
        /// Width of a cell in bits.
        width: u32,
        index: Box<Num>,
    },
    /// The fill of a stack, plus a constant.
    Fill {
        stack: usize,
        plus: i64,
    },
    Binary(Op, Box<(Num, Num)>),
    Not(Box<Num>),
    Cast(Cast, u32, Box<Num>),
    Choose(Box<(Test, Num, Num)>),
    FromTest(Box<Test>),
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

#[derive(Debug, Clone)]
pub(super) enum Test {
    Const(bool),
    Compare(Comparison, Box<(Num, Num)>),
    Valid(HeaderRef),
    EqualHeaders(Box<(HeaderRef, HeaderRef)>),
    Same(Box<(Test, Test)>),
    Not(Box<Test>),
    And(Box<(Test, Test)>),
    Or(Box<(Test, Test)>),
    Choose(Box<(Test, Test, Test)>),
}

/// A header, perhaps by a computed index.
#[derive(Debug, Clone)]
pub(super) enum HeaderRef {
    Fixed(usize),
    /// Member `member` of element `index` of a stack.
    Element {
        stack: usize,
        index: Box<Num>,
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
    /// The computed index.
    pub fn index(&self) -> Option<&Num> {
        match self {
            HeaderRef::Fixed(_) => None,
            HeaderRef::Element { index, .. } => Some(index),
        }
    }

    /// The header instance, from the value of the index; `None` if that is outside the stack.
    pub fn at(&self, layout: &Layout, index: impl FnOnce() -> u64) -> Option<usize> {
        match self {
            HeaderRef::Fixed(header) => Some(*header),
            HeaderRef::Element { stack, member, .. } => {
                layout.stacks[*stack].element(index(), *member)
            }
        }
    }

    fn resolve(&self, env: Env) -> Option<usize> {
        self.at(env.layout, || match self.index() {
            Some(index) => index.eval_amount(env),
            None => 0,
        })
    }
}

impl FieldRef {
    /// The field's place, from the value of the index; `None` if that is outside the stack.
    pub fn at(&self, layout: &Layout, index: impl FnOnce() -> u64) -> Option<Slot> {
        let header = self.header.at(layout, index)?;
        Some(self.slot.at(layout.instances[header].base))
    }

    /// The field's place; `None` if the index is outside the stack.
    pub fn resolve(&self, env: Env) -> Option<Slot> {
        let header = self.header.resolve(env)?;
        Some(self.slot.at(env.layout.instances[header].base))
    }
}

/// All bits of a number matter.
pub(super) const EXACT: u32 = u32::MAX;

impl Num {
    /// A constant.
    pub fn constant(value: impl Into<BigInt>) -> Num {
        Num::Const(value.into())
    }

    /// An operation on two numbers.
    pub fn binary(op: Op, left: Num, right: Num) -> Num {
        Num::Binary(op, Box::new((left, right)))
    }

    /// The value. Only its lowest `need` bits are right.
    pub fn eval(&self, env: Env, need: u32) -> BigInt {
        match self {
            Num::Const(value) => value.clone(),
            Num::Field(slot) => slot.load_big(&env.phv.bytes),
            // Outside the stack, BMv2 is undefined; zero here.
            Num::Element(field) => {
                let slot = field.resolve(env);
                slot.map(|slot| slot.load_big(&env.phv.bytes))
                    .unwrap_or_default()
            }
            Num::Arg(slot) => slot.load_big(env.args),
            Num::Ahead(offset, width) => ahead(env.ahead, *offset, *width).unwrap_or_default(),
            Num::Register { array, index, .. } => {
                env.registers[*array].load_big(index.eval_amount(env))
            }
            Num::Fill { stack, plus } => {
                BigInt::from(env.phv.next(&env.layout.stacks[*stack]) as i64 + plus)
            }
            Num::Binary(op, sides) => op.eval(&sides.0, &sides.1, env, need),
            Num::Not(value) => !value.eval(env, need),
            Num::Cast(cast, width, value) => cast.apply(
                value.eval(env, if *cast == Cast::Wrap { *width } else { EXACT }),
                *width,
            ),
            Num::Choose(parts) if parts.0.eval(env) => parts.1.eval(env, need),
            Num::Choose(parts) => parts.2.eval(env, need),
            Num::FromTest(test) => BigInt::from(u8::from(test.eval(env))),
        }
    }

    /// The low 64 bits.
    pub fn eval_low(&self, env: Env) -> u64 {
        low_word(&self.eval(env, 64))
    }

    /// The value as an index or amount: the nearest signed number of 64 bits, or the value if that is an unsigned number of 64 bits.
    pub fn eval_amount(&self, env: Env) -> u64 {
        let value = self.eval(env, EXACT);
        let nearest = match value.sign() {
            Sign::Minus => i64::MIN,
            _ => i64::MAX,
        };
        u64::try_from(&value).unwrap_or(i64::try_from(value).unwrap_or(nearest) as u64)
    }
}

/// Bits ahead of the parser; `None` if there are fewer.
fn ahead(bytes: &[u8], offset: u32, width: u32) -> Option<BigInt> {
    let end = offset as usize + width as usize;
    let bytes = bytes.get(offset as usize / 8..end.div_ceil(8))?;
    let value = BigInt::from_bytes_be(Sign::Plus, bytes) >> (end.next_multiple_of(8) - end);
    Some(low_bits(&value, width).into())
}

/// The lowest 64 bits.
pub(super) fn low_word(value: &BigInt) -> u64 {
    low_bits(value, 64)
        .to_u64_digits()
        .first()
        .copied()
        .unwrap_or(0)
}

impl Op {
    fn eval(self, left: &Num, right: &Num, env: Env, need: u32) -> BigInt {
        let (need, amount) = match (self, left, right) {
            (Op::And, Num::Const(mask), _) | (Op::And, _, Num::Const(mask))
                if mask.sign() != Sign::Minus =>
            {
                (need.min(mask.bits() as u32), None)
            }
            (Op::Div | Op::Mod, ..) => (EXACT, None),
            (Op::Shl | Op::Shr, ..) => {
                let amount = u32::try_from(right.eval(env, EXACT)).unwrap_or(u32::MAX);
                (if self == Op::Shl { need } else { EXACT }, Some(amount))
            }
            _ => (need, None),
        };
        let left = |need| left.eval(env, need);
        if let Some(by) = amount {
            return match self {
                Op::Shl if by >= need => BigInt::ZERO,
                Op::Shl => left(need) << by,
                _ => left(EXACT) >> by,
            };
        }
        let (left, right) = (left(need), right.eval(env, need));
        match self {
            Op::Add => left + right,
            Op::Sub => left - right,
            Op::Mul => left * right,
            // BMv2 ends itself on a division by zero; zero here.
            Op::Div => left.checked_div(&right).unwrap_or_default(),
            Op::Mod if right == BigInt::ZERO => right,
            Op::Mod => left % right,
            Op::And => left & right,
            Op::Or => left | right,
            Op::Xor | Op::Shl | Op::Shr => left ^ right,
        }
    }
}

impl Cast {
    fn apply(self, value: BigInt, width: u32) -> BigInt {
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

impl Comparison {
    /// Returns the opposite comparison.
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

    /// Returns the comparison if `holds`, else its opposite.
    pub fn or_not(self, holds: bool) -> Comparison {
        if holds { self } else { self.negated() }
    }

    /// Returns the comparison with exchanged sides.
    pub fn reversed(self) -> Comparison {
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
}

impl Test {
    /// A number as a condition: not zero.
    pub fn not_zero(num: Num) -> Test {
        match num {
            Num::FromTest(test) => *test,
            num => Test::Compare(Comparison::NotEqual, Box::new((num, Num::constant(0)))),
        }
    }

    /// True if any of the conditions holds.
    pub fn any(tests: impl IntoIterator<Item = Test>) -> Test {
        let either = |left, right| Test::Or(Box::new((left, right)));
        tests
            .into_iter()
            .reduce(either)
            .unwrap_or(Test::Const(false))
    }

    pub fn eval(&self, env: Env) -> bool {
        match self {
            Test::Const(value) => *value,
            Test::Compare(how, sides) => {
                let (left, right) = (sides.0.eval(env, EXACT), sides.1.eval(env, EXACT));
                *how as u8 & (1 << (left.cmp(&right) as i8 + 1)) != 0
            }
            Test::Valid(header) => header.resolve(env).is_some_and(|h| env.phv.is_valid(h)),
            Test::EqualHeaders(sides) => match (sides.0.resolve(env), sides.1.resolve(env)) {
                (Some(left), Some(right)) => env.phv.equal(env.layout, left, right),
                _ => false,
            },
            Test::Same(sides) => sides.0.eval(env) == sides.1.eval(env),
            Test::Not(test) => !test.eval(env),
            Test::And(sides) => sides.0.eval(env) && sides.1.eval(env),
            Test::Or(sides) => sides.0.eval(env) || sides.1.eval(env),
            Test::Choose(parts) if parts.0.eval(env) => parts.1.eval(env),
            Test::Choose(parts) => parts.2.eval(env),
        }
    }
}
