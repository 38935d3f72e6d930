//! Expressions of at most 64 bits as straight-line code.
//!
//! p4c substitutes what it inlines, so that one expression may compute the same sum a dozen times.
//! Here every distinct operation of an expression stands once, operands before their users, and is
//! computed in 64 bits, which is exact where [`Lowering`] found it to be.

use std::collections::HashMap;

use super::bits::Slot;
use super::compile::Bound;
use super::expression::{Cast, Comparison, Env, HeaderRef, Num, Op as Arithmetic, Test};

/// The position of an operation, whose result is meant.
type At = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Const(u64),
    Field(Slot),
    Arg(Slot),
    Valid(usize),
    Register(usize, At),
    Fill(usize, i64),
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
    NotZero(At),
    Negate(At),
    Choose(At, At, At),
}

/// How the result's 64 bits are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Signed,
    Unsigned,
}

/// A number of at most 64 bits.
#[derive(Debug, Clone)]
pub(super) struct Word {
    code: Code,
    meaning: Meaning,
}

/// How the number is found. Most take one operation.
#[derive(Debug, Clone)]
enum Code {
    Const(u64),
    Field(Slot),
    Arg(Slot),
    /// Straight-line code of at most [`MAX_OPS`] operations; the last one's result counts.
    Ops(Box<[Op]>),
}

const MAX_OPS: usize = 128;

impl Word {
    /// The value.
    #[inline]
    pub fn eval(&self, env: Env) -> i128 {
        let bits = self.bits(env);
        match self.meaning {
            Meaning::Signed => i128::from(bits as i64),
            Meaning::Unsigned => i128::from(bits),
        }
    }

    /// The value's low 64 bits.
    #[inline(always)]
    pub fn bits(&self, env: Env) -> u64 {
        match &self.code {
            Code::Const(value) => *value,
            Code::Field(slot) => slot.load_word(&env.phv.bytes),
            Code::Arg(slot) => slot.load_word(env.args),
            Code::Ops(ops) => run_ops(ops, env),
        }
    }

    /// Code for a number of which only `low` bits matter, or all; `None` if it needs more than 64.
    pub fn of_num(num: &Num, low: Option<u32>) -> Option<Word> {
        let mut lowering = Lowering::default();
        let at = lowering.num(num)?;
        let meaning = match fit(range(num)) {
            Some(meaning) => meaning,
            None if low.is_some_and(|bits| bits <= 64) => Meaning::Signed,
            None => return None,
        };
        lowering.finish(at, meaning)
    }

    /// Code for a condition, 0 or 1; `None` if it needs more than 64 bits.
    pub fn of_test(test: &Test) -> Option<Word> {
        let mut lowering = Lowering::default();
        let at = lowering.test(test)?;
        lowering.finish(at, Meaning::Unsigned)
    }
}

#[inline(never)]
fn run_ops(ops: &[Op], env: Env) -> u64 {
    match ops.len() {
        0..=8 => run::<8>(ops, env),
        9..=32 => run::<32>(ops, env),
        _ => run::<MAX_OPS>(ops, env),
    }
}

/// Runs straight-line code. `N` is a power of two, at least the number of operations.
fn run<const N: usize>(ops: &[Op], env: Env) -> u64 {
    let mut results = [0u64; N];
    let mut last = 0;
    for (index, op) in ops.iter().enumerate() {
        let at = |at: At| results[usize::from(at) % N];
        last = match *op {
            Op::Const(value) => value,
            Op::Field(slot) => slot.load_word(&env.phv.bytes),
            Op::Arg(slot) => slot.load_word(env.args),
            Op::Valid(header) => u64::from(env.phv.is_valid(header)),
            Op::Register(array, index) => {
                env.registers[array].load(i128::from(at(index) as i64)) as u64
            }
            Op::Fill(stack, plus) => (env.phv.next(&env.layout.stacks[stack]) as i64 + plus) as u64,
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
            Op::NotZero(a) => u64::from(at(a) != 0),
            Op::Negate(a) => at(a) ^ 1,
            Op::Choose(test, yes, no) => {
                if at(test) != 0 {
                    at(yes)
                } else {
                    at(no)
                }
            }
        };
        results[index % N] = last;
    }
    last
}

/// How 64 bits can hold every value within a bound; `None` if they cannot.
fn fit(bound: Bound) -> Option<Meaning> {
    match bound {
        Bound { bits: 0..=63, .. } => Some(Meaning::Signed),
        Bound {
            bits: 64,
            signed: false,
        } => Some(Meaning::Unsigned),
        _ => None,
    }
}

/// The values that evaluation of a tree can give.
fn range(num: &Num) -> Bound {
    match num {
        Num::Const(value) => Bound::of_const(&(*value).into()),
        Num::Field(slot) | Num::Arg(slot) => Bound::of_slot(*slot).of_num(),
        Num::Late(field) => Bound::of_slot(field.slot).of_num(),
        Num::Fill { plus, .. } => Bound {
            bits: 16,
            signed: *plus < 0,
        },
        Num::Binary(op, sides) => {
            let (a, b) = (range(&sides.0), range(&sides.1));
            let by = match sides.1 {
                Num::Const(by) => u32::try_from(by).ok(),
                _ => None,
            };
            match (op, by) {
                (Arithmetic::Shl, Some(by)) => a.shifted_left(by).of_num(),
                (Arithmetic::Shl, None) => Bound::ANY,
                (Arithmetic::Shr, by) => a.shifted_right(by.unwrap_or(0)),
                (op, _) => a.combined(*op, b).of_num(),
            }
        }
        Num::Not(value) => Bound {
            signed: true,
            ..range(value)
        },
        Num::Cast(Cast::SaturateUnsigned, width, _) => Bound::unsigned(*width).of_num(),
        Num::Cast(_, width, _) => Bound {
            bits: width.saturating_sub(1),
            signed: true,
        },
        Num::Choose(parts) => range(&parts.1).join(range(&parts.2)),
        Num::FromTest(_) => Bound::unsigned(1),
        Num::Register { .. } | Num::Low(_) | Num::Nearest(_) | Num::Word(_) => Bound::ANY,
    }
}

/// Turns trees into code. The result of every operation agrees with its tree in the low 64 bits;
/// where a tree's whole value is used, its range must fit them.
#[derive(Default)]
struct Lowering {
    ops: Vec<Op>,
    known: HashMap<Op, At>,
}

impl Lowering {
    fn push(&mut self, op: Op) -> Option<At> {
        if let Some(at) = self.known.get(&op) {
            return Some(*at);
        }
        if self.ops.len() == MAX_OPS {
            return None;
        }
        let at = self.ops.len() as At;
        self.ops.push(op);
        self.known.insert(op, at);
        Some(at)
    }

    fn finish(mut self, at: At, meaning: Meaning) -> Option<Word> {
        if usize::from(at) + 1 != self.ops.len() {
            // The result was computed on the way: bring it to the end.
            let zero = self.push(Op::Const(0))?;
            if self.ops.len() == MAX_OPS {
                return None;
            }
            self.ops.push(Op::Or(at, zero));
        }
        let code = match *self.ops.as_slice() {
            [Op::Const(value)] => Code::Const(value),
            [Op::Field(slot)] => Code::Field(slot),
            [Op::Arg(slot)] => Code::Arg(slot),
            _ => Code::Ops(self.ops.into()),
        };
        Some(Word { code, meaning })
    }

    fn num(&mut self, num: &Num) -> Option<At> {
        match num {
            Num::Const(value) => self.push(Op::Const(*value as u64)),
            Num::Field(slot) => self.push(Op::Field(low_word(*slot))),
            Num::Arg(slot) => self.push(Op::Arg(low_word(*slot))),
            Num::Register { array, index } => {
                let at = self.whole(index, &[Meaning::Signed])?.0;
                self.push(Op::Register(*array, at))
            }
            Num::Fill { stack, plus } => self.push(Op::Fill(*stack, i64::try_from(*plus).ok()?)),
            Num::Binary(op, sides) => self.binary(*op, &sides.0, &sides.1),
            Num::Not(value) => {
                let at = self.num(value)?;
                self.push(Op::Not(at))
            }
            Num::Cast(cast, width, value) => self.cast(*cast, *width, value),
            Num::Choose(parts) => {
                let test = self.test(&parts.0)?;
                let (yes, no) = (self.num(&parts.1)?, self.num(&parts.2)?);
                self.push(Op::Choose(test, yes, no))
            }
            Num::FromTest(test) => self.test(test),
            Num::Late(_) | Num::Low(_) | Num::Nearest(_) | Num::Word(_) => None,
        }
    }

    /// A tree whose whole value is used, and how it is to be read.
    fn whole(&mut self, num: &Num, allowed: &[Meaning]) -> Option<(At, Meaning)> {
        let meaning = fit(range(num)).filter(|meaning| allowed.contains(meaning))?;
        Some((self.num(num)?, meaning))
    }

    /// Two trees whose whole values are used, both to be read in one way.
    fn both(&mut self, left: &Num, right: &Num) -> Option<(At, At, Meaning)> {
        let bounds = [range(left), range(right)];
        let meaning = if bounds
            .iter()
            .all(|bound| fit(*bound) == Some(Meaning::Signed))
        {
            Meaning::Signed
        } else if bounds
            .iter()
            .all(|bound| !bound.signed && fit(*bound).is_some())
        {
            Meaning::Unsigned
        } else {
            return None;
        };
        Some((self.num(left)?, self.num(right)?, meaning))
    }

    fn binary(&mut self, op: Arithmetic, left: &Num, right: &Num) -> Option<At> {
        const BOTH: &[Meaning] = &[Meaning::Signed, Meaning::Unsigned];
        match (op, right) {
            (Arithmetic::Add | Arithmetic::And | Arithmetic::Or | Arithmetic::Xor, _)
                if constant(left).is_some() && constant(right).is_none() =>
            {
                self.binary(op, right, left)
            }
            (Arithmetic::And, Num::Const(mask)) => {
                let at = self.num(left)?;
                self.push(Op::AndConst(at, *mask as u64))
            }
            (Arithmetic::Or, Num::Const(bits)) => {
                let at = self.num(left)?;
                self.push(Op::OrConst(at, *bits as u64))
            }
            (Arithmetic::Xor, Num::Const(bits)) => {
                let at = self.num(left)?;
                self.push(Op::XorConst(at, *bits as u64))
            }
            (Arithmetic::Add, Num::Const(value)) => {
                let at = self.num(left)?;
                self.push(Op::AddConst(at, *value as u64))
            }
            (Arithmetic::Sub, Num::Const(value)) => {
                let at = self.num(left)?;
                self.push(Op::AddConst(at, (*value as u64).wrapping_neg()))
            }
            (Arithmetic::Shl, Num::Const(by @ 0..64)) => {
                let at = self.num(left)?;
                self.push(Op::ShlConst(at, *by as u8))
            }
            (Arithmetic::Shr, Num::Const(by @ 0..64)) if !range(left).signed => {
                let at = self.whole(left, BOTH)?.0;
                self.push(Op::ShrConst(at, *by as u8))
            }
            (Arithmetic::Shl, _) => {
                let (at, by) = (self.num(left)?, self.amount(right)?);
                self.push(Op::Shl(at, by))
            }
            (Arithmetic::Shr, _) => {
                let (at, meaning) = self.whole(left, BOTH)?;
                let by = self.amount(right)?;
                self.push(match meaning {
                    Meaning::Signed => Op::ShrSigned(at, by),
                    Meaning::Unsigned => Op::ShrUnsigned(at, by),
                })
            }
            (Arithmetic::Div | Arithmetic::Mod, _) => {
                if range(left).signed || range(right).signed {
                    return None;
                }
                let (a, b) = (self.whole(left, BOTH)?.0, self.whole(right, BOTH)?.0);
                self.push(match op {
                    Arithmetic::Div => Op::DivUnsigned(a, b),
                    _ => Op::ModUnsigned(a, b),
                })
            }
            _ => {
                let (a, b) = (self.num(left)?, self.num(right)?);
                self.push(match op {
                    Arithmetic::Add => Op::Add(a, b),
                    Arithmetic::Sub => Op::Sub(a, b),
                    Arithmetic::Mul => Op::Mul(a, b),
                    Arithmetic::And => Op::And(a, b),
                    Arithmetic::Or => Op::Or(a, b),
                    _ => Op::Xor(a, b),
                })
            }
        }
    }

    /// An amount to shift by: not negative, so that as 64 bits it is what it is.
    fn amount(&mut self, num: &Num) -> Option<At> {
        if range(num).signed {
            return None;
        }
        Some(self.whole(num, &[Meaning::Signed, Meaning::Unsigned])?.0)
    }

    fn cast(&mut self, cast: Cast, width: u32, value: &Num) -> Option<At> {
        match cast {
            // The low 64 bits are what they were.
            Cast::Wrap if width >= 64 => self.num(value),
            Cast::Wrap => {
                let at = self.num(value)?;
                self.push(Op::Wrap(at, width as u8))
            }
            Cast::Saturate => {
                let at = self.whole(value, &[Meaning::Signed])?.0;
                let top = i64::MAX >> (64 - width.min(64));
                self.push(Op::Clamp(at, !top, top))
            }
            Cast::SaturateUnsigned => {
                let at = self.whole(value, &[Meaning::Signed])?.0;
                // From 63 bits on, nothing that is here exceeds the top.
                let top = i64::MAX >> (63 - width.min(63));
                self.push(Op::Clamp(at, 0, top))
            }
        }
    }

    fn test(&mut self, test: &Test) -> Option<At> {
        match test {
            Test::Const(value) => self.push(Op::Const(u64::from(*value))),
            Test::Compare(how, sides) => self.compare(*how, &sides.0, &sides.1),
            Test::NotZero(num) => {
                let at = self.whole(num, &[Meaning::Signed, Meaning::Unsigned])?.0;
                self.push(Op::NotZero(at))
            }
            Test::Valid(HeaderRef::Fixed(header)) => self.push(Op::Valid(*header)),
            Test::Same(sides) => {
                let (a, b) = (self.test(&sides.0)?, self.test(&sides.1)?);
                self.push(Op::Equal(a, b))
            }
            Test::Not(test) => {
                let at = self.test(test)?;
                self.push(Op::Negate(at))
            }
            Test::And(sides) => {
                let (a, b) = (self.test(&sides.0)?, self.test(&sides.1)?);
                self.push(Op::And(a, b))
            }
            Test::Or(sides) => {
                let (a, b) = (self.test(&sides.0)?, self.test(&sides.1)?);
                self.push(Op::Or(a, b))
            }
            Test::Choose(parts) => {
                let test = self.test(&parts.0)?;
                let (yes, no) = (self.test(&parts.1)?, self.test(&parts.2)?);
                self.push(Op::Choose(test, yes, no))
            }
            Test::Valid(_)
            | Test::AnyValid(_)
            | Test::Field(..)
            | Test::Fields(..)
            | Test::All(_)
            | Test::Any(_)
            | Test::CompareBig(..)
            | Test::NotZeroBig(_)
            | Test::EqualHeaders(_)
            | Test::EqualUnions(_)
            | Test::Word(_) => None,
        }
    }

    fn compare(&mut self, how: Comparison, left: &Num, right: &Num) -> Option<At> {
        if let (Comparison::Equal | Comparison::NotEqual, Some(value)) = (how, constant(right)) {
            // A constant that does not fit 64 bits is left to `both`, which refuses it.
            if fit(range(left)).is_some() && fit(range(right)) == fit(range(left)) {
                let at = self.num(left)?;
                let at = self.push(Op::EqualConst(at, value as u64))?;
                return match how {
                    Comparison::Equal => Some(at),
                    _ => self.push(Op::Negate(at)),
                };
            }
        }
        let (a, b, meaning) = self.both(left, right)?;
        let less = |a, b| match meaning {
            Meaning::Signed => Op::Less(a, b),
            Meaning::Unsigned => Op::LessUnsigned(a, b),
        };
        let (op, negated) = match how {
            Comparison::Equal => (Op::Equal(a, b), false),
            Comparison::NotEqual => (Op::Equal(a, b), true),
            Comparison::Less => (less(a, b), false),
            Comparison::GreaterOrEqual => (less(a, b), true),
            Comparison::Greater => (less(b, a), false),
            Comparison::LessOrEqual => (less(b, a), true),
        };
        let at = self.push(op)?;
        if negated {
            self.push(Op::Negate(at))
        } else {
            Some(at)
        }
    }
}

fn constant(num: &Num) -> Option<i128> {
    match num {
        Num::Const(value) => Some(*value),
        _ => None,
    }
}

/// The low 64 bits of a field.
fn low_word(slot: Slot) -> Slot {
    if slot.width <= 64 {
        slot
    } else {
        slot.part(0, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bits::SLACK;
    use super::super::layout::Layout;
    use super::super::phv::Phv;
    use super::*;
    use proptest::prelude::*;

    fn leaf() -> impl Strategy<Value = Num> {
        prop_oneof![
            any::<i64>().prop_map(|value| Num::Const(value.into())),
            (0i128..70).prop_map(Num::Const),
            (0usize..40, 1u32..=64, any::<bool>())
                .prop_map(|(bit, width, signed)| Num::Field(Slot::new(bit, width, signed))),
        ]
    }

    fn tree() -> impl Strategy<Value = Num> {
        let op = prop::sample::select(vec![
            Arithmetic::Add,
            Arithmetic::Sub,
            Arithmetic::Mul,
            Arithmetic::Div,
            Arithmetic::Mod,
            Arithmetic::And,
            Arithmetic::Or,
            Arithmetic::Xor,
            Arithmetic::Shl,
            Arithmetic::Shr,
        ]);
        let cast = prop::sample::select(vec![Cast::Wrap, Cast::Saturate, Cast::SaturateUnsigned]);
        let how = prop::sample::select(vec![
            Comparison::Equal,
            Comparison::NotEqual,
            Comparison::Less,
            Comparison::LessOrEqual,
            Comparison::Greater,
            Comparison::GreaterOrEqual,
        ]);
        leaf().prop_recursive(5, 40, 3, move |inner| {
            let pair = || (inner.clone(), inner.clone());
            let compare =
                (how.clone(), pair()).prop_map(|(how, sides)| Test::Compare(how, Box::new(sides)));
            prop_oneof![
                4 => (op.clone(), pair()).prop_map(|(op, sides)| Num::Binary(op, Box::new(sides))),
                1 => inner.clone().prop_map(|value| Num::Not(Box::new(value))),
                2 => (cast.clone(), 1u32..=64, inner.clone())
                    .prop_map(|(cast, width, value)| Num::Cast(cast, width, Box::new(value))),
                1 => compare.clone().prop_map(|test| Num::FromTest(Box::new(test))),
                1 => (compare, pair())
                    .prop_map(|(test, (yes, no))| Num::Choose(Box::new((test, yes, no)))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn code_agrees_with_its_tree(
            tree in tree(),
            content in prop::collection::vec(any::<u8>(), 16),
            low in prop::option::of(1u32..=64),
        ) {
            let mut phv = Phv { bytes: content };
            phv.bytes.extend([0; SLACK]);
            let layout = Layout::empty();
            let env = Env { phv: &phv, args: &[], layout: &layout, registers: &[] };
            if let Some(word) = Word::of_num(&tree, low) {
                let (found, expected) = (word.eval(env), tree.eval(env));
                match low {
                    Some(bits) => prop_assert_eq!(found << (128 - bits), expected << (128 - bits)),
                    None => prop_assert_eq!(found, expected),
                }
            }
            let test = Test::NotZero(tree);
            if let Some(word) = Word::of_test(&test) {
                prop_assert_eq!(word.bits(env), u64::from(test.eval(env)));
            }
        }
    }

    fn operations(num: &Num) -> usize {
        match Word::of_num(num, None).unwrap().code {
            Code::Ops(ops) => ops.len(),
            _ => 1,
        }
    }

    #[test]
    fn equal_operations_stand_once() {
        let field = || Num::Field(Slot::new(0, 16, false));
        let sum = || Num::Binary(Arithmetic::Add, Box::new((field(), Num::Const(3))));
        let product = Num::Binary(Arithmetic::Mul, Box::new((sum(), sum())));
        assert_eq!(operations(&product), 3);
        let choice = Num::Choose(Box::new((Test::Const(true), sum(), field())));
        assert_eq!(operations(&choice), 4);
    }

    #[test]
    fn what_does_not_fit_stays_a_tree() {
        let wide = Num::Field(Slot::new(0, 100, false));
        assert!(Word::of_num(&wide, None).is_none());
        assert!(Word::of_num(&wide, Some(64)).is_some());
        let shifted = Num::Binary(Arithmetic::Shr, Box::new((wide, Num::Const(1))));
        assert!(Word::of_num(&shifted, Some(8)).is_none());
    }
}
