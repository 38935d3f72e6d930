//! Bounds of expressions, which decide whether a machine integer suffices.

use num_bigint::{BigInt, Sign};

use super::super::bits::{MAX_NARROW, Slot};
use super::super::expression::Op;

/// What the user of an expression does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Any bit may matter.
    Exact,
    /// Only so many low bits matter.
    Low(u32),
}

impl Need {
    /// Whether 128 low bits are enough.
    pub fn is_narrow(self) -> bool {
        matches!(self, Need::Low(bits) if bits <= MAX_NARROW)
    }
}

/// The values that a translated expression can have: `-2^bits..2^bits` if it is signed, else
/// `0..2^bits`. If all bits are needed these are also the values that it should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub bits: u32,
    pub signed: bool,
}

impl Bound {
    /// Whatever 128 bits can hold.
    pub const ANY: Bound = Bound {
        bits: 127,
        signed: true,
    };

    pub fn unsigned(bits: u32) -> Bound {
        Bound {
            bits,
            signed: false,
        }
    }

    pub fn of_slot(slot: Slot) -> Bound {
        Bound {
            bits: slot.width - u32::from(slot.signed && slot.width > 0),
            signed: slot.signed,
        }
    }

    pub fn of_const(value: &BigInt) -> Bound {
        Bound {
            bits: value.bits() as u32,
            signed: value.sign() == Sign::Minus,
        }
    }

    pub fn join(self, other: Bound) -> Bound {
        Bound {
            bits: self.bits.max(other.bits),
            signed: self.signed || other.signed,
        }
    }

    /// The bound of a number: what does not fit wraps.
    pub fn of_num(self) -> Bound {
        if self.is_narrow() { self } else { Bound::ANY }
    }

    /// The bound of an operation other than a shift.
    pub fn combined(self, op: Op, other: Bound) -> Bound {
        let (a, b) = (self, other);
        let signed = a.signed || b.signed;
        match op {
            Op::Add => Bound {
                bits: a.bits.max(b.bits) + 1,
                signed,
            },
            Op::Sub => Bound {
                bits: a.bits.max(b.bits) + 1,
                signed: true,
            },
            Op::Mul => Bound {
                bits: a.bits + b.bits + 1,
                signed,
            },
            // A quotient by -1 has one bit more.
            Op::Div | Op::Mod => {
                let widest = a.join(b);
                Bound {
                    bits: widest.bits + u32::from(signed),
                    ..widest
                }
            }
            Op::And if !a.signed && !b.signed => Bound::unsigned(a.bits.min(b.bits)),
            Op::And if !a.signed => a,
            Op::And if !b.signed => b,
            Op::And | Op::Or | Op::Xor | Op::Shl | Op::Shr => a.join(b),
        }
    }

    /// The bound after a left shift by at most so much.
    pub fn shifted_left(self, by: u32) -> Bound {
        Bound {
            bits: self.bits.saturating_add(by),
            ..self
        }
    }

    /// The bound after a right shift by at least so much.
    pub fn shifted_right(self, by: u32) -> Bound {
        Bound {
            bits: self.bits.saturating_sub(by),
            ..self
        }
    }

    /// Whether every value fits 128-bit two's complement.
    pub fn is_narrow(self) -> bool {
        self.bits <= 127
    }
}
