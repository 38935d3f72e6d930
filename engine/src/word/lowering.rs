//! From trees to code.

use std::collections::HashMap;

use super::super::bits::Slot;
use super::super::compile::Bound;
use super::super::expression::{Cast, Comparison, HeaderRef, Num, Op as Arithmetic, Test};
use super::{At, Form, MAX_OPS, Meaning, Op, Word};

/// How 64 bits can hold every value within a bound; `None` if they cannot.
pub(super) fn fit(bound: Bound) -> Option<Meaning> {
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
pub(super) fn range(num: &Num) -> Bound {
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

/// The most operations that a number may have before those are removed that its result does not need.
const MAX_BUILT: usize = 4 * MAX_OPS;

/// Turns trees into code. The result of every operation agrees with its tree in the low 64 bits;
/// where a tree's whole value is used, its range must fit them.
#[derive(Default)]
pub(super) struct Lowering {
    ops: Vec<Op>,
    known: HashMap<Op, At>,
}

impl Lowering {
    fn push(&mut self, op: Op) -> Option<At> {
        if let Some(at) = self.known.get(&op) {
            return Some(*at);
        }
        if let Op::Or(high, low) = op
            && let Some(joined) = self.joined(high, low)
        {
            return Some(joined);
        }
        if self.ops.len() == MAX_BUILT {
            return None;
        }
        let at = self.ops.len() as At;
        self.ops.push(op);
        self.known.insert(op, at);
        Some(at)
    }

    /// `field << n | next` as one field, if `next` has `n` bits and stands behind it on the wire; also for the last of several fields.
    fn joined(&mut self, high: At, low: At) -> Option<At> {
        let (Op::ShlConst(high, by), Op::Field(next)) = (self.op(high), self.op(low)) else {
            return None;
        };
        let joined = |field: Slot| field.joined(next).filter(|_| u32::from(by) == next.width);
        match self.op(high) {
            Op::Field(field) => self.push(Op::Field(joined(field)?)),
            Op::Or(rest, last) => {
                let Op::Field(last) = self.op(last) else {
                    return None;
                };
                let last = self.push(Op::Field(joined(last)?))?;
                let rest = match self.op(rest) {
                    Op::ShlConst(rest, more) if by + more < 64 => Op::ShlConst(rest, by + more),
                    _ => Op::ShlConst(rest, by),
                };
                let rest = self.push(rest)?;
                self.push(Op::Or(rest, last))
            }
            _ => None,
        }
    }

    fn op(&self, at: At) -> Op {
        self.ops[usize::from(at)]
    }

    /// The operations that the result at `at` needs, which is the last one's.
    pub fn finish(self, at: At, meaning: Meaning) -> Option<Word> {
        let mut needed = vec![false; self.ops.len()];
        needed[usize::from(at)] = true;
        for at in (0..=usize::from(at)).rev() {
            if needed[at] {
                let operands = self.ops[at].operands();
                operands
                    .into_iter()
                    .for_each(|it| needed[usize::from(it)] = true);
            }
        }
        let (mut ops, mut places) = (Vec::new(), vec![0; needed.len()]);
        for (at, op) in self.ops.iter().enumerate().filter(|(at, _)| needed[*at]) {
            places[at] = ops.len() as At;
            ops.push(op.moved(|operand| places[usize::from(operand)]));
        }
        if ops.len() > MAX_OPS {
            return None;
        }
        let form = match *ops.as_slice() {
            [Op::Const(value)] => Form::Const(value),
            [Op::Field(slot)] => Form::Field(slot),
            [Op::Arg(slot)] => Form::Arg(slot),
            _ => Form::Ops(ops.into()),
        };
        Some(Word { form, meaning })
    }

    pub fn num(&mut self, num: &Num) -> Option<At> {
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

    pub fn test(&mut self, test: &Test) -> Option<At> {
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
