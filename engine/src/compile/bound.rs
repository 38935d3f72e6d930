//! Bounds of numbers, which decide whether a machine word suffices.

use num_bigint::Sign;

use super::super::bits::{Slot, mask};
use super::super::expression::{Cast, EXACT, Num, Op};

/// The values that a number can have: `-2^bits..2^bits` if it is signed, else `0..2^bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub bits: u32,
    pub signed: bool,
}

/// The longest left shift whose result is kept whole; p4c masks all of them.
const MAX_EXACT_SHIFT_BITS: u32 = 12;

impl Bound {
    fn new(bits: u32, signed: bool) -> Bound {
        Bound { bits, signed }
    }

    fn of_slot(slot: Slot) -> Bound {
        let sign = u32::from(slot.signed && slot.width > 0);
        Bound::new(slot.width - sign, slot.signed)
    }

    fn join(self, other: Bound) -> Bound {
        Bound::new(self.bits.max(other.bits), self.signed || other.signed)
    }
}

impl Num {
    /// The bound of the exact value.
    pub fn bound(&self) -> Bound {
        self.bound_for(EXACT, &mut 0)
    }

    /// The bound of what [`Num::eval`] gives. Raises `widest` to the bits of all numbers on the way.
    pub fn bound_for(&self, need: u32, widest: &mut u32) -> Bound {
        let bound = match self {
            Num::Const(value) => Bound::new(value.bits() as u32, value.sign() == Sign::Minus),
            Num::Field(slot) | Num::Arg(slot) => Bound::of_slot(*slot),
            Num::Element(field) => Bound::of_slot(field.slot),
            Num::Ahead(_, width) | Num::Register { width, .. } => Bound::new(*width, false),
            Num::Fill { plus, .. } => Bound::new(16, *plus < 0),
            Num::Binary(op, sides) => op.bound(&sides.0, &sides.1, need, widest),
            Num::Not(value) => Bound::new(value.bound_for(need, widest).bits, true),
            Num::Cast(cast, width, value) => {
                let wraps = *cast == Cast::Wrap;
                value.bound_for(if wraps { *width } else { EXACT }, widest);
                match cast {
                    Cast::SaturateUnsigned => Bound::new(*width, false),
                    _ => Bound::new(width - 1, true),
                }
            }
            Num::Choose(parts) => {
                let yes = parts.1.bound_for(need, widest);
                yes.join(parts.2.bound_for(need, widest))
            }
            Num::FromTest(_) => Bound::new(1, false),
        };
        *widest = bound.bits.max(*widest);
        bound
    }
}

impl Op {
    fn bound(self, left: &Num, right: &Num, need: u32, widest: &mut u32) -> Bound {
        let need = match (self, left, right) {
            (Op::And, Num::Const(mask), _) | (Op::And, _, Num::Const(mask))
                if mask.sign() != Sign::Minus =>
            {
                need.min(mask.bits() as u32)
            }
            (Op::Div | Op::Mod | Op::Shr, ..) => EXACT,
            _ => need,
        };
        let a = left.bound_for(need, widest);
        let b = match self {
            Op::Shl | Op::Shr => right.bound_for(EXACT, widest),
            _ => right.bound_for(need, widest),
        };
        let both = a.join(b);
        match (self, right) {
            (Op::Add, _) => Bound::new(both.bits.saturating_add(1), both.signed),
            (Op::Sub, _) => Bound::new(both.bits.saturating_add(1), true),
            (Op::Mul, _) => {
                Bound::new(a.bits.saturating_add(b.bits).saturating_add(1), both.signed)
            }
            // A quotient by -1 has one bit more.
            (Op::Div | Op::Mod, _) => {
                let sign = u32::from(both.signed);
                Bound::new(both.bits.saturating_add(sign), both.signed)
            }
            (Op::And, _) if !a.signed && !b.signed => Bound::new(a.bits.min(b.bits), false),
            (Op::And, _) if !a.signed => a,
            (Op::And, _) if !b.signed => b,
            (Op::And | Op::Or | Op::Xor, _) => both,
            (Op::Shl, amount) => {
                let longest = match amount {
                    Num::Const(by) => u32::try_from(by).unwrap_or(u32::MAX),
                    _ if b.bits <= MAX_EXACT_SHIFT_BITS => mask(b.bits) as u32,
                    _ => u32::MAX,
                };
                Bound::new(a.bits.saturating_add(longest.min(need)), a.signed)
            }
            (Op::Shr, Num::Const(by)) => {
                let by = u32::try_from(by).unwrap_or(u32::MAX);
                Bound::new(a.bits.saturating_sub(by), a.signed)
            }
            (Op::Shr, _) => a,
        }
    }
}
