//! From trees to code.

use std::collections::HashMap;

use num_bigint::{BigInt, Sign};

use super::super::bits::{Slot, mask};
use super::super::compile::Bound;
use super::super::expression::{
    Cast, Comparison, FieldRef, HeaderRef, Num, Op as Arithmetic, Test, low_word,
};
use super::{At, MAX_OPS, Op, Ops};

/// The representation of a value in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Signed,
    Unsigned,
}

/// Returns the representation that can hold every value within a bound, or `None` if 64 bits are too few.
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

/// The most operations that a number may have before those are removed that its result does not need.
const MAX_BUILT: usize = 4 * MAX_OPS;

/// Turns trees into code. A result agrees with its tree in as many low bits as its user needs, at most 64; where a tree's whole value
/// is used, its bound must fit 64 bits.
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
    pub fn finish(self, at: At) -> Option<Ops> {
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
        (ops.len() <= MAX_OPS).then(|| ops.into())
    }

    /// A tree whose lowest `need` bits, at most 64, are used.
    pub fn num(&mut self, num: &Num, need: u32) -> Option<At> {
        match num {
            Num::Const(value) => self.push(Op::Const(low_word(value))),
            Num::Field(slot) => self.push(Op::Field(low_part(*slot, 64))),
            Num::Arg(slot) => self.push(Op::Arg(low_part(*slot, 64))),
            // The tree is evaluated.
            Num::Element(_) | Num::Fill { .. } => None,
            Num::Ahead(offset, width) => {
                let cut = width.saturating_sub(64);
                self.push(Op::Ahead(offset + cut, (width - cut) as u8))
            }
            Num::Register { array, index, .. } => {
                let at = self.amount(index)?;
                self.push(Op::Register(*array, at))
            }
            Num::Binary(op, sides) => self.binary(*op, &sides.0, &sides.1, need),
            // If the needed bits are all bits of the value, the others need not be set.
            Num::Not(value) if need < 64 && fits(value.bound(), need) => {
                let at = self.num(value, need)?;
                self.push(Op::XorConst(at, mask(need)))
            }
            Num::Not(value) => {
                let at = self.num(value, need)?;
                self.push(Op::Not(at))
            }
            Num::Cast(cast, width, value) => self.cast(*cast, *width, value, need),
            Num::Choose(parts) => {
                let test = self.test(&parts.0)?;
                let (yes, no) = (self.num(&parts.1, need)?, self.num(&parts.2, need)?);
                self.push(Op::Choose(test, yes, no))
            }
            Num::FromTest(test) => self.test(test),
        }
    }

    /// A tree whose whole value is used, and how it is to be read.
    fn whole(&mut self, num: &Num) -> Option<(At, Meaning)> {
        let meaning = fit(num.bound())?;
        Some((self.num(num, 64)?, meaning))
    }

    /// A tree whose whole value is used as an amount or index. A negative one is a large unsigned number.
    pub fn amount(&mut self, num: &Num) -> Option<At> {
        Some(self.whole(num)?.0)
    }

    /// Two trees whose whole values are used, both to be read in one way.
    fn both(&mut self, left: &Num, right: &Num) -> Option<(At, At, Meaning)> {
        let bounds = [left.bound(), right.bound()];
        let signed = |bound: &Bound| fit(*bound) == Some(Meaning::Signed);
        let unsigned = |bound: &Bound| !bound.signed && fit(*bound).is_some();
        let meaning = match bounds {
            _ if bounds.iter().all(signed) => Meaning::Signed,
            _ if bounds.iter().all(unsigned) => Meaning::Unsigned,
            _ => return None,
        };
        Some((self.num(left, 64)?, self.num(right, 64)?, meaning))
    }

    fn binary(&mut self, op: Arithmetic, left: &Num, right: &Num, need: u32) -> Option<At> {
        use Arithmetic::*;
        match (op, left, right) {
            (Add | And | Or | Xor, Num::Const(_), other) if !matches!(other, Num::Const(_)) => {
                self.binary(op, right, left, need)
            }
            (And, _, Num::Const(bits)) => self.and(left, bits, need),
            (Add | Sub | Or | Xor, _, Num::Const(value)) => {
                let (at, value) = (self.num(left, need)?, low_word(value));
                self.push(match op {
                    Add => Op::AddConst(at, value),
                    Sub => Op::AddConst(at, value.wrapping_neg()),
                    Or => Op::OrConst(at, value),
                    _ => Op::XorConst(at, value),
                })
            }
            (Shl, _, Num::Const(by)) => match u32::try_from(by) {
                Ok(by @ 0..64) => {
                    let at = self.num(left, need)?;
                    self.push(Op::ShlConst(at, by as u8))
                }
                _ => self.push(Op::Const(0)),
            },
            (Shl, ..) => {
                let by = self.positive(right)?;
                let at = self.num(left, need)?;
                self.push(Op::Shl(at, by))
            }
            (Shr, ..) => self.shift_right(left, right, need),
            (Div | Mod, ..) => {
                let (a, b) = (self.positive(left)?, self.positive(right)?);
                self.push(match op {
                    Div => Op::DivUnsigned(a, b),
                    _ => Op::ModUnsigned(a, b),
                })
            }
            _ => {
                let (a, b) = (self.num(left, need)?, self.num(right, need)?);
                self.push(match op {
                    Add => Op::Add(a, b),
                    Sub => Op::Sub(a, b),
                    Mul => Op::Mul(a, b),
                    And => Op::And(a, b),
                    Or => Op::Or(a, b),
                    _ => Op::Xor(a, b),
                })
            }
        }
    }

    /// `&` with a constant needs no more of the other side than the constant has bits.
    fn and(&mut self, value: &Num, bits: &BigInt, need: u32) -> Option<At> {
        let mask_bits = bits.bits().min(64) as u32;
        if bits.sign() == Sign::Minus {
            let at = self.num(value, need)?;
            return self.push(Op::AndConst(at, low_word(bits)));
        }
        let wanted = need.min(mask_bits);
        let ones = low_word(bits) & mask(wanted) == mask(wanted);
        // A mask is needed if it clears bits that matter: those that are wanted, or others that the value may have.
        if ones && fits(value.bound(), mask_bits) {
            return self.num(value, need);
        }
        if ones && need <= mask_bits {
            return self.num(value, need);
        }
        // The low bits of a field are a field.
        match value {
            Num::Field(slot) if ones && !slot.signed => {
                return self.push(Op::Field(low_part(*slot, wanted)));
            }
            Num::Arg(slot) if ones && !slot.signed => {
                return self.push(Op::Arg(low_part(*slot, wanted)));
            }
            _ => {}
        }
        let at = self.num(value, wanted)?;
        self.push(Op::AndConst(at, low_word(bits)))
    }

    fn shift_right(&mut self, value: &Num, by: &Num, need: u32) -> Option<At> {
        let amount = match by {
            Num::Const(by) => Some(u32::try_from(by).unwrap_or(u32::MAX)),
            _ => None,
        };
        match (value, amount) {
            // A slice of a field is a field: p4c prints f[7:4] as (f >> 4) & 0xf.
            (Num::Field(slot) | Num::Arg(slot), Some(low)) if !slot.signed => {
                let part = value.part(low, need)?;
                return self.num(&part, need);
            }
            (value, Some(by @ 0..64)) if !value.bound().signed => {
                let at = self.amount(value)?;
                return self.push(Op::ShrConst(at, by as u8));
            }
            _ => {}
        }
        let (at, meaning) = self.whole(value)?;
        let by = self.positive(by)?;
        self.push(match meaning {
            Meaning::Signed => Op::ShrSigned(at, by),
            Meaning::Unsigned => Op::ShrUnsigned(at, by),
        })
    }

    /// A whole value that is not negative, so that as 64 bits it is what it is.
    fn positive(&mut self, num: &Num) -> Option<At> {
        match num.bound().signed {
            true => None,
            false => self.amount(num),
        }
    }

    fn cast(&mut self, cast: Cast, width: u32, value: &Num, need: u32) -> Option<At> {
        match cast {
            Cast::Wrap if width >= need => self.num(value, need),
            Cast::Wrap => {
                let at = self.num(value, width)?;
                self.push(Op::Wrap(at, width as u8))
            }
            _ => {
                let (at, Meaning::Signed) = self.whole(value)? else {
                    return None;
                };
                // From 63 bits on, no signed word exceeds the top of the unsigned cast.
                let (low, high) = match cast {
                    Cast::SaturateUnsigned => (0, i64::MAX >> (63 - width.min(63))),
                    _ => (
                        i64::MIN >> (64 - width.min(64)),
                        i64::MAX >> (64 - width.min(64)),
                    ),
                };
                self.push(Op::Clamp(at, low, high))
            }
        }
    }

    pub fn test(&mut self, test: &Test) -> Option<At> {
        match test {
            Test::Const(value) => self.push(Op::Const(u64::from(*value))),
            Test::Compare(how, sides) => self.compare(*how, &sides.0, &sides.1),
            Test::Valid(HeaderRef::Fixed(header)) => self.push(Op::Valid(*header)),
            // The tree is evaluated.
            Test::Valid(HeaderRef::Element { .. }) | Test::EqualHeaders(_) => None,
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
        }
    }

    fn compare(&mut self, how: Comparison, left: &Num, right: &Num) -> Option<At> {
        use Comparison::*;
        let holds = match how {
            Equal | NotEqual => self.equal(left, right)?,
            Less | GreaterOrEqual => self.less(left, right)?,
            Greater | LessOrEqual => self.less(right, left)?,
        };
        match how {
            Equal | Less | Greater => Some(holds),
            _ => self.push(Op::Negate(holds)),
        }
    }

    fn equal(&mut self, left: &Num, right: &Num) -> Option<At> {
        if let (Num::Const(_), other) = (left, right)
            && !matches!(other, Num::Const(_))
        {
            return self.equal(right, left);
        }
        let [one, other] = [left, right].map(|side| fit(side.bound()));
        if let Num::Const(value) = right
            && one.is_some()
            && one == other
        {
            let at = self.num(left, 64)?;
            return self.push(Op::EqualConst(at, low_word(value)));
        }
        let (a, b, _) = self.both(left, right)?;
        self.push(Op::Equal(a, b))
    }

    fn less(&mut self, left: &Num, right: &Num) -> Option<At> {
        let (a, b, meaning) = self.both(left, right)?;
        self.push(match meaning {
            Meaning::Signed => Op::Less(a, b),
            Meaning::Unsigned => Op::LessUnsigned(a, b),
        })
    }
}

/// True if every value is unsigned with at most this many bits.
fn fits(bound: Bound, bits: u32) -> bool {
    !bound.signed && bound.bits <= bits
}

fn low_part(slot: Slot, bits: u32) -> Slot {
    match slot.width <= bits {
        true => slot,
        false => slot.part(0, bits),
    }
}

impl Num {
    /// Bits `low..low + width` of a field, of bits ahead, or of a number that has no others.
    pub fn part(&self, low: u32, width: u32) -> Option<Num> {
        let cut = |slot: Slot| slot.part(low, width.min(slot.width - low));
        Some(match self {
            num if fits(num.bound(), low) => Num::constant(0),
            Num::Field(slot) if !slot.signed => Num::Field(cut(*slot)),
            Num::Arg(slot) if !slot.signed => Num::Arg(cut(*slot)),
            Num::Element(field) if !field.slot.signed => {
                let (header, slot) = (field.header.clone(), cut(field.slot));
                Num::Element(Box::new(FieldRef { header, slot }))
            }
            Num::Ahead(offset, all) => {
                let width = width.min(all - low);
                Num::Ahead(offset + all - low - width, width)
            }
            num if low == 0 && fits(num.bound(), width) => num.clone(),
            _ => return None,
        })
    }
}
