//! Integer expressions.

use num_bigint::{BigInt, Sign};

use super::super::bits::{MAX_BITS, MAX_NARROW, Slot, mask};
use super::super::error::LoadError;
use super::super::expression::{Big, Cast, Num, Op, low_i128};
use super::super::json::{Operation, Term};
use super::bound::{Bound, Need};
use super::place::slot_value;
use super::{Kind, Scope, Value};

/// Twice the widest field, and some.
const MAX_INTERMEDIATE: u32 = 1 << 21;

/// The longest left shift whose result is kept whole; p4c masks all of them.
const MAX_EXACT_SHIFT_BITS: u32 = 12;

impl Scope<'_> {
    pub(super) fn value(&self, term: &Term, need: Need) -> Result<(Value, Bound), LoadError> {
        let (value, bound) = self.value_of_any_size(term, need)?;
        if bound.bits > MAX_INTERMEDIATE {
            let what = format!("an intermediate value of {} bits", bound.bits);
            return Err(LoadError::unsupported(what, self.at));
        }
        Ok((value, bound))
    }

    fn value_of_any_size(&self, term: &Term, need: Need) -> Result<(Value, Bound), LoadError> {
        match term {
            Term::Hex(value) => {
                let bound = Bound::of_const(value);
                Ok(match (i128::try_from(value), need) {
                    (Ok(num), _) => (Value::Num(Num::Const(num)), bound),
                    (Err(_), need) if need.is_narrow() => {
                        (Value::Num(Num::Const(low_i128(value))), Bound::ANY)
                    }
                    (Err(_), _) => (Value::Big(Big::Const(value.clone())), bound),
                })
            }
            Term::Argument(position) => {
                let slot = *self.params.get(*position).ok_or_else(|| {
                    LoadError::malformed(format!("it has no parameter {position}"), self.at)
                })?;
                Ok(slot_value(slot, need, Num::Arg, Big::Arg))
            }
            Term::Field(..) | Term::StackField(..) | Term::UnionStackField(..) => {
                Ok(self.field(term)?.value(need))
            }
            Term::Register(name, index) => {
                let array = self.register(name)?;
                let slot = Slot::new(0, self.registers[array].1, false);
                let index = Box::new(self.value(index, Need::Exact)?.0.into_amount());
                let num = |_| Num::Register {
                    array,
                    index: index.clone(),
                };
                let big = |_| Big::Register {
                    array,
                    index: index.clone(),
                };
                Ok(slot_value(slot, need, num, big))
            }
            Term::Bool(value) => Ok((
                Value::Num(Num::Const(i128::from(*value))),
                Bound::unsigned(1),
            )),
            Term::Operation(operation) => self.operation(term, operation, need),
            _ => Err(self.mismatch("an integer", term)),
        }
    }

    /// The register array of a name.
    pub fn register(&self, name: &str) -> Result<usize, LoadError> {
        self.registers
            .iter()
            .position(|(known, _)| known == name)
            .ok_or_else(|| {
                LoadError::malformed(format!("there is no register array {name}"), self.at)
            })
    }

    fn operation(
        &self,
        term: &Term,
        operation: &Operation,
        need: Need,
    ) -> Result<(Value, Bound), LoadError> {
        let left = || self.operand(operation, &operation.left);
        let right = || self.operand(operation, &operation.right);
        match operation.op.as_str() {
            "+" if operation.left.is_none() => self.value(right()?, need),
            "-" if operation.left.is_none() => {
                self.ring(Op::Sub, &Term::Hex(BigInt::ZERO), right()?, need)
            }
            "+" => self.ring(Op::Add, left()?, right()?, need),
            "-" => self.ring(Op::Sub, left()?, right()?, need),
            "*" => self.ring(Op::Mul, left()?, right()?, need),
            "&" => self.and(left()?, right()?, need),
            "|" => self.ring(Op::Or, left()?, right()?, need),
            "^" => self.ring(Op::Xor, left()?, right()?, need),
            "~" => {
                let (value, bound) = self.value(right()?, need)?;
                let value = match (value, need) {
                    // Where the bits that matter are all that the value has, none of the others
                    // need be set, and no mask must clear them.
                    (Value::Num(num), Need::Low(low))
                        if !bound.signed && bound.bits <= low && low <= 127 =>
                    {
                        let ones = Num::Const(mask(low) as i128);
                        let flipped = Num::Binary(Op::Xor, Box::new((num, ones)));
                        return Ok((Value::Num(flipped), Bound::unsigned(low)));
                    }
                    (value, _) => value,
                };
                let value = match value {
                    Value::Num(num) => Value::Num(Num::Not(Box::new(num))),
                    Value::Big(big) => Value::Big(Big::Not(Box::new(big))),
                };
                Ok((
                    value,
                    Bound {
                        signed: true,
                        ..bound
                    },
                ))
            }
            "<<" => self.shift_left(left()?, right()?, need),
            ">>" => self.shift_right(left()?, right()?, need),
            "/" => self.exact_binary(Op::Div, left()?, right()?, need),
            "%" => self.exact_binary(Op::Mod, left()?, right()?, need),
            "two_comp_mod" => self.cast(Cast::Wrap, left()?, right()?, need),
            "sat_cast" => self.cast(Cast::Saturate, left()?, right()?, need),
            "usat_cast" => self.cast(Cast::SaturateUnsigned, left()?, right()?, need),
            "b2d" => {
                let test = Box::new(self.test_tree(right()?)?);
                Ok((Value::Num(Num::FromTest(test)), Bound::unsigned(1)))
            }
            "?" => {
                let cond = self.test_tree(self.operand(operation, &operation.cond)?)?;
                let (yes, no) = (self.value(left()?, need)?, self.value(right()?, need)?);
                let bound = yes.1.join(no.1);
                let value = match (yes.0, no.0) {
                    (Value::Num(yes), Value::Num(no)) => {
                        Value::Num(Num::Choose(Box::new((cond, yes, no))))
                    }
                    (yes, no) => {
                        Value::Big(Big::Choose(Box::new((cond, yes.into_big(), no.into_big()))))
                    }
                };
                Ok((value, bound))
            }
            "size_stack" => self.fill(right()?, 0),
            "last_stack_index" => self.fill(right()?, -1),
            "access_field" => Ok(self.field(term)?.value(need)),
            _ if self.kind(term) == Kind::Bool => Err(self.mismatch("an integer", term)),
            _ => Err(self.unknown(operation)),
        }
    }

    fn fill(&self, stack: &Term, plus: i128) -> Result<(Value, Bound), LoadError> {
        let stack = self.stack(stack)?;
        let bound = Bound {
            bits: 16,
            signed: plus < 0,
        };
        Ok((Value::Num(Num::Fill { stack, plus }), bound))
    }

    /// Operations whose low result bits depend on low operand bits only.
    fn ring(
        &self,
        op: Op,
        left: &Term,
        right: &Term,
        need: Need,
    ) -> Result<(Value, Bound), LoadError> {
        let (left, right) = (self.value(left, need)?, self.value(right, need)?);
        let bound = left.1.combined(op, right.1);
        Ok(match (left.0, right.0) {
            (Value::Num(left), Value::Num(right)) if need.is_narrow() || bound.is_narrow() => (
                Value::Num(Num::Binary(op, Box::new((left, right)))),
                bound.of_num(),
            ),
            (left, right) => {
                let sides = Box::new((left.into_big(), right.into_big()));
                narrow_if(Big::Binary(op, sides), bound, need)
            }
        })
    }

    /// `&` with a constant needs no more of the other side than the constant has bits.
    fn and(&self, left: &Term, right: &Term, need: Need) -> Result<(Value, Bound), LoadError> {
        let (value, constant) = match (left, right) {
            (value, Term::Hex(constant)) | (Term::Hex(constant), value) => (value, constant),
            _ => return self.ring(Op::And, left, right, need),
        };
        let bits = constant.bits() as u32;
        if constant.sign() == Sign::Minus || bits > MAX_NARROW {
            return self.ring(Op::And, left, right, need);
        }
        let wanted = match need {
            Need::Low(low) => low.min(bits),
            Need::Exact => bits,
        };
        let (value, bound) = self.value(value, Need::Low(wanted))?;
        let Value::Num(num) = value else {
            unreachable!("at most 128 low bits are always narrow");
        };
        let ones = constant & BigInt::from(mask(wanted)) == BigInt::from(mask(wanted));
        let fits = !bound.signed && bound.bits <= bits;
        // A mask is needed if it clears bits that matter: those that are wanted, or others that
        // the value may have.
        let narrow = need.is_narrow();
        if ones && (fits || narrow && need == Need::Low(wanted)) {
            return Ok((Value::Num(num), bound));
        }
        // The low bits of a field are a field.
        match num {
            Num::Field(slot) if ones && !slot.signed && wanted <= 127 => {
                return Ok((
                    Value::Num(Num::Field(slot.part(0, wanted))),
                    Bound::unsigned(wanted),
                ));
            }
            Num::Arg(slot) if ones && !slot.signed && wanted <= 127 => {
                return Ok((
                    Value::Num(Num::Arg(slot.part(0, wanted))),
                    Bound::unsigned(wanted),
                ));
            }
            _ => {}
        }
        let num = Num::Binary(Op::And, Box::new((num, Num::Const(low_i128(constant)))));
        if bits <= 127 {
            Ok((Value::Num(num), Bound::unsigned(bits)))
        } else if narrow {
            Ok((Value::Num(num), Bound::ANY))
        } else {
            Ok((
                Value::Big(Big::FromBits(Box::new(num))),
                Bound::unsigned(bits),
            ))
        }
    }

    fn shift_left(
        &self,
        value: &Term,
        amount: &Term,
        need: Need,
    ) -> Result<(Value, Bound), LoadError> {
        let (amount_value, amount_bound) = self.value(amount, Need::Exact)?;
        let longest = match &amount_value {
            Value::Num(Num::Const(amount)) => u32::try_from(*amount).unwrap_or(u32::MAX),
            _ if amount_bound.bits <= MAX_EXACT_SHIFT_BITS => mask(amount_bound.bits) as u32,
            _ => u32::MAX,
        };
        let amount = amount_value.into_amount();
        let (value, bound) = self.value(value, need)?;
        let most = match need {
            Need::Low(cap) if !need.is_narrow() => longest.min(cap),
            _ => longest,
        };
        let grown = bound.shifted_left(most);
        match (value, need) {
            (Value::Num(num), need) if need.is_narrow() || grown.is_narrow() => {
                let shifted = Num::Binary(Op::Shl, Box::new((num, amount)));
                Ok((Value::Num(shifted), grown.of_num()))
            }
            (value, need) => {
                let cap = match need {
                    Need::Low(bits) => bits,
                    Need::Exact if longest < 1 << MAX_EXACT_SHIFT_BITS => u32::MAX,
                    Need::Exact => {
                        let what = "a left shift of unbounded length";
                        return Err(LoadError::unsupported(what, self.at));
                    }
                };
                let (value, amount) = (Box::new(value.into_big()), Box::new(amount));
                Ok(narrow_if(Big::Shl { value, amount, cap }, grown, need))
            }
        }
    }

    fn shift_right(
        &self,
        value: &Term,
        amount: &Term,
        need: Need,
    ) -> Result<(Value, Bound), LoadError> {
        let amount = self.value(amount, Need::Exact)?.0.into_amount();
        // A slice of a field is a field: p4c prints f[7:4] as (f >> 4) & 0xf.
        if let (Term::Field(header, field), Num::Const(low)) = (value, &amount) {
            let slot = self.layout.field(header, field, self.at)?;
            if let (false, Ok(low)) = (slot.signed, u32::try_from(*low)) {
                if low >= slot.width {
                    return Ok((Value::Num(Num::Const(0)), Bound::unsigned(0)));
                }
                let width = match need {
                    Need::Low(bits) => bits.min(slot.width - low),
                    Need::Exact => slot.width - low,
                };
                return Ok(slot_value(
                    slot.part(low, width),
                    need,
                    Num::Field,
                    Big::Field,
                ));
            }
        }
        let (value, bound) = self.value(value, Need::Exact)?;
        let shifted = match amount {
            Num::Const(by) => bound.shifted_right(u32::try_from(by).unwrap_or(u32::MAX)),
            _ => bound,
        };
        Ok(match value {
            Value::Num(num) => (
                Value::Num(Num::Binary(Op::Shr, Box::new((num, amount)))),
                shifted,
            ),
            Value::Big(big) => {
                let (value, amount) = (Box::new(big), Box::new(amount));
                narrow_if(Big::Shr { value, amount }, shifted, need)
            }
        })
    }

    /// Operations that need all of their operands.
    fn exact_binary(
        &self,
        op: Op,
        left: &Term,
        right: &Term,
        need: Need,
    ) -> Result<(Value, Bound), LoadError> {
        let (left, right) = (
            self.value(left, Need::Exact)?,
            self.value(right, Need::Exact)?,
        );
        let bound = left.1.combined(op, right.1);
        Ok(match (left.0, right.0) {
            (Value::Num(left), Value::Num(right)) if bound.is_narrow() => {
                (Value::Num(Num::Binary(op, Box::new((left, right)))), bound)
            }
            (left, right) => {
                let sides = Box::new((left.into_big(), right.into_big()));
                narrow_if(Big::Binary(op, sides), bound, need)
            }
        })
    }

    fn cast(
        &self,
        cast: Cast,
        value: &Term,
        width: &Term,
        need: Need,
    ) -> Result<(Value, Bound), LoadError> {
        let width = u32::try_from(self.constant(width)?)
            .ok()
            .filter(|width| (1..=MAX_BITS).contains(width));
        let width = width.ok_or_else(|| {
            let what = format!("the width of a cast must be in 1..={MAX_BITS}");
            LoadError::malformed(what, self.at)
        })?;
        let inner = match cast {
            Cast::Wrap => Need::Low(width),
            _ => Need::Exact,
        };
        let bound = match cast {
            Cast::SaturateUnsigned => Bound::unsigned(width),
            _ => Bound {
                bits: width - 1,
                signed: true,
            },
        };
        Ok(match self.value(value, inner)?.0 {
            Value::Num(num) if bound.is_narrow() || cast == Cast::SaturateUnsigned => (
                Value::Num(Num::Cast(cast, width, Box::new(num))),
                bound.of_num(),
            ),
            value => {
                let big = Box::new(value.into_big());
                narrow_if(Big::Cast(cast, width, big), bound, need)
            }
        })
    }
}

/// Where at most 128 low bits are needed, a number does.
fn narrow_if(big: Big, bound: Bound, need: Need) -> (Value, Bound) {
    if need.is_narrow() {
        (Value::Num(Num::Low(Box::new(big))), Bound::ANY)
    } else {
        (Value::Big(big), bound)
    }
}
