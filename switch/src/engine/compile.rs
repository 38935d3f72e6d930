//! Expressions: translation from the file.
//!
//! Every integer expression is translated for a [`Need`]: exactly, or only the low bits that its
//! user keeps. Sums, products, bit operations and left shifts need only low bits of their operands
//! to give low bits of their result, and p4c masks nearly every one of them, so nearly all of a
//! program is 128-bit arithmetic, and nearly all of p4c's masks are not needed. Where 128 bits
//! could overflow, a [`Bound`] tells, and the expression becomes a [`Big`].

use num_bigint::{BigInt, Sign};

use super::bits::{MAX_BITS, MAX_NARROW, Slot, mask};
use super::error::LoadError;
use super::expression::{Big, Cast, Comparison, Env, FieldRef, HeaderRef, Num, Op, Test, low_i128};
use super::json::{Operand, Operation, Term};
use super::layout::Layout;
use super::word::Word;

/// What an expression may refer to.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub layout: &'a Layout,
    /// Names and cell widths of the register arrays, in order.
    pub registers: &'a [(String, u32)],
    /// Where the parameters of the enclosing action stand among its arguments.
    pub params: &'a [Slot],
    /// The enclosing object, for messages.
    pub at: &'a str,
}

/// A translated integer expression.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Num(Num),
    Big(Big),
}

/// What the user of an expression does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Any bit may matter.
    Exact,
    /// Only so many low bits matter.
    Low(u32),
}

impl Need {
    /// Whether 128 low bits are enough.
    fn is_narrow(self) -> bool {
        matches!(self, Need::Low(bits) if bits <= MAX_NARROW)
    }
}

/// The values that a translated expression can have: `-2^bits..2^bits` if it is signed, else
/// `0..2^bits`. If all bits are needed these are also the values that it should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bound {
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
    fn is_narrow(self) -> bool {
        self.bits <= 127
    }
}

/// Twice the widest field, and some.
const MAX_INTERMEDIATE: u32 = 1 << 21;

/// All bits of a number.
const BITS: Need = Need::Low(MAX_NARROW);

/// The longest left shift whose result is kept whole; p4c masks all of them.
const MAX_EXACT_SHIFT_BITS: u32 = 12;

/// The kinds of things that expressions stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    Bool,
    Header,
    Union,
    Other,
}

impl<'a> Scope<'a> {
    /// An integer of which all bits matter.
    pub fn exact(&self, term: &Term) -> Result<Value, LoadError> {
        Ok(self.value(term, Need::Exact)?.0.lowered(None))
    }

    /// An integer that is stored in `width` bits.
    pub fn stored(&self, term: &Term, width: u32) -> Result<Value, LoadError> {
        Ok(self.value(term, Need::Low(width))?.0.lowered(Some(width)))
    }

    /// An integer that is used as an index, amount or id: exact up to 128 bits, saturated beyond.
    pub fn number(&self, term: &Term) -> Result<Num, LoadError> {
        Ok(self.value(term, Need::Exact)?.0.lowered(None).into_amount())
    }

    /// A condition.
    pub fn test(&self, term: &Term) -> Result<Test, LoadError> {
        Ok(lowered(self.test_tree(term)?))
    }

    /// A condition that may be given as an integer: not zero.
    pub fn test_or_data(&self, term: &Term) -> Result<Test, LoadError> {
        if self.kind_is_bool(term) {
            return self.test(term);
        }
        Ok(lowered(not_zero(self.value(term, Need::Exact)?.0)))
    }

    /// A condition as an integer, 0 or 1.
    pub fn bit(&self, term: &Term) -> Result<Value, LoadError> {
        Ok(Value::Num(Num::FromTest(Box::new(self.test(term)?))))
    }

    /// A number that must be known when the program is loaded.
    pub fn constant(&self, term: &Term) -> Result<BigInt, LoadError> {
        match term {
            Term::Hex(value) => Ok(value.clone()),
            _ => Err(LoadError::malformed(
                format!("expected a constant, found {term:?}"),
                self.at,
            )),
        }
    }

    fn test_tree(&self, term: &Term) -> Result<Test, LoadError> {
        let operation = match term {
            Term::Bool(value) => return Ok(Test::Const(*value)),
            Term::Operation(operation) => operation,
            _ => return Err(self.mismatch("a condition", term)),
        };
        let left = || self.operand(operation, &operation.left);
        let right = || self.operand(operation, &operation.right);
        let both = || Ok((self.test_tree(left()?)?, self.test_tree(right()?)?));
        Ok(match operation.op.as_str() {
            "and" => Test::And(Box::new(both()?)),
            "or" => Test::Or(Box::new(both()?)),
            "not" => Test::Not(Box::new(self.test_tree(right()?)?)),
            "==" => self.equal(left()?, right()?)?,
            "!=" => match self.equal(left()?, right()?)? {
                Test::Compare(_, sides) => Test::Compare(Comparison::NotEqual, sides),
                Test::CompareBig(_, sides) => Test::CompareBig(Comparison::NotEqual, sides),
                other => Test::Not(Box::new(other)),
            },
            "<" => self.compare(Comparison::Less, left()?, right()?)?,
            "<=" => self.compare(Comparison::LessOrEqual, left()?, right()?)?,
            ">" => self.compare(Comparison::Greater, left()?, right()?)?,
            ">=" => self.compare(Comparison::GreaterOrEqual, left()?, right()?)?,
            "valid" => Test::Valid(self.header(right()?)?),
            "valid_union" => Test::AnyValid(self.union(right()?)?.into()),
            "d2b" => not_zero(self.value(right()?, Need::Exact)?.0),
            "?" => {
                let cond = self.test_tree(self.operand(operation, &operation.cond)?)?;
                let (yes, no) = both()?;
                Test::Choose(Box::new((cond, yes, no)))
            }
            _ => return Err(self.unknown(operation)),
        })
    }

    /// Whether a term is a condition.
    pub fn kind_is_bool(&self, term: &Term) -> bool {
        self.kind(term) == Kind::Bool
    }

    /// A header.
    pub fn header(&self, term: &Term) -> Result<HeaderRef, LoadError> {
        let operation = match term {
            Term::Header(name) => return Ok(HeaderRef::Fixed(self.layout.find(name, self.at)?)),
            Term::Operation(operation) => operation,
            _ => return Err(self.mismatch("a header", term)),
        };
        match operation.op.as_str() {
            "dereference_header_stack" | "dereference_stack" => {
                let (stack, index) = self.dereference(operation)?;
                Ok(HeaderRef::Indexed {
                    stack,
                    index: Box::new(index),
                    member: 0,
                })
            }
            "access_union_header" => {
                let union = self.operand(operation, &operation.left)?;
                let member = self.position(operation)?;
                match union {
                    Term::Operation(inner) if inner.op == "dereference_union_stack" => {
                        let (stack, index) = self.dereference(inner)?;
                        self.member(self.layout.stacks[stack].elements[0].len(), member)?;
                        Ok(HeaderRef::Indexed {
                            stack,
                            index: Box::new(index),
                            member,
                        })
                    }
                    union => {
                        let members = self.union(union)?;
                        self.member(members.len(), member)?;
                        Ok(HeaderRef::Fixed(members[member]))
                    }
                }
            }
            _ => Err(self.unknown(operation)),
        }
    }

    /// The members of a header union that is known when the program is loaded.
    pub fn union(&self, term: &Term) -> Result<Vec<usize>, LoadError> {
        match term {
            Term::HeaderUnion(name) => Ok(self.layout.find_union(name, self.at)?.to_vec()),
            Term::Operation(operation) => Err(LoadError::unsupported(
                format!("a header union by {}", operation.op),
                self.at,
            )),
            _ => Err(self.mismatch("a header union", term)),
        }
    }

    /// A stack of headers or of header unions.
    pub fn stack(&self, term: &Term) -> Result<usize, LoadError> {
        match term {
            Term::HeaderStack(name) | Term::HeaderUnionStack(name) => {
                self.layout.find_stack(name, self.at)
            }
            _ => Err(self.mismatch("a header stack", term)),
        }
    }

    /// A field that can be assigned to.
    pub fn field(&self, term: &Term) -> Result<Place, LoadError> {
        match term {
            Term::Field(header, field) => {
                Ok(Place::Fixed(self.layout.field(header, field, self.at)?))
            }
            Term::StackField(stack, field) => {
                let stack = self.layout.find_stack(stack, self.at)?;
                self.late(HeaderRef::Last { stack, member: 0 }, field)
            }
            Term::UnionStackField(stack, member, field) => {
                let stack = self.layout.find_stack(stack, self.at)?;
                let members = &self.layout.stacks[stack].members;
                let member = members
                    .iter()
                    .position(|name| name == member)
                    .ok_or_else(|| {
                        LoadError::malformed(format!("the union has no member {member}"), self.at)
                    })?;
                self.late(HeaderRef::Last { stack, member }, field)
            }
            Term::Operation(operation) if operation.op == "access_field" => {
                let header = self.header(self.operand(operation, &operation.left)?)?;
                let field = self.position(operation)?;
                let shape = self.layout.shape(self.sample(&header));
                let found = shape.fields.get(field).ok_or_else(|| {
                    let what = format!("type {} has no field {field}", shape.name);
                    LoadError::malformed(what, self.at)
                })?;
                match header {
                    HeaderRef::Fixed(header) => Ok(Place::Fixed(self.layout.slot(header, field))),
                    header => Ok(Place::Late(FieldRef {
                        header,
                        slot: found.slot,
                    })),
                }
            }
            _ => Err(self.mismatch("a field", term)),
        }
    }

    fn late(&self, header: HeaderRef, field: &str) -> Result<Place, LoadError> {
        let shape = self.layout.shape(self.sample(&header));
        let slot = shape.fields[shape.find(field, self.at)?].slot;
        Ok(Place::Late(FieldRef { header, slot }))
    }

    /// A header of the same type as the one that `header` will be.
    fn sample(&self, header: &HeaderRef) -> usize {
        match header {
            HeaderRef::Fixed(header) => *header,
            HeaderRef::Indexed { stack, member, .. } | HeaderRef::Last { stack, member } => {
                self.layout.stacks[*stack].elements[0][*member]
            }
        }
    }

    fn value(&self, term: &Term, need: Need) -> Result<(Value, Bound), LoadError> {
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

    fn equal(&self, left: &Term, right: &Term) -> Result<Test, LoadError> {
        match self.kind(left) {
            Kind::Bool => Ok(Test::Same(Box::new((
                self.test_tree(left)?,
                self.test_tree(right)?,
            )))),
            Kind::Header => {
                let sides = (self.header(left)?, self.header(right)?);
                let type_of = |side| &self.layout.shape(self.sample(side)).name;
                if type_of(&sides.0) != type_of(&sides.1) {
                    return Ok(Test::Const(false));
                }
                Ok(Test::EqualHeaders(Box::new(sides)))
            }
            Kind::Union => {
                let (left, right) = (self.union(left)?, self.union(right)?);
                Ok(Test::EqualUnions(left.into_iter().zip(right).collect()))
            }
            _ => self.compare(Comparison::Equal, left, right),
        }
    }

    fn compare(&self, how: Comparison, left: &Term, right: &Term) -> Result<Test, LoadError> {
        let (a, b) = (
            self.value(left, Need::Exact)?,
            self.value(right, Need::Exact)?,
        );
        if let (Value::Num(left), Value::Num(right)) = (&a.0, &b.0) {
            return Ok(Test::Compare(how, Box::new((left.clone(), right.clone()))));
        }
        // IPv6 addresses: unsigned values of 128 bits are equal if their bits are.
        let plain = |term: &Term, bound: Bound| {
            let operation = matches!(term, Term::Operation(_));
            !operation && !bound.signed && bound.bits <= MAX_NARROW
        };
        if how == Comparison::Equal && plain(left, a.1) && plain(right, b.1) {
            let sides = (self.value(left, BITS)?.0, self.value(right, BITS)?.0);
            if let (Value::Num(left), Value::Num(right)) = sides {
                return Ok(Test::Compare(how, Box::new((left, right))));
            }
        }
        Ok(Test::CompareBig(
            how,
            Box::new((a.0.into_big(), b.0.into_big())),
        ))
    }

    fn kind(&self, term: &Term) -> Kind {
        match term {
            Term::Bool(_) => Kind::Bool,
            Term::Header(_) => Kind::Header,
            Term::HeaderUnion(_) => Kind::Union,
            Term::Field(..) | Term::Hex(_) | Term::Argument(_) | Term::Register(..) => Kind::Data,
            Term::StackField(..) | Term::UnionStackField(..) => Kind::Data,
            Term::Operation(operation) => match operation.op.as_str() {
                "==" | "!=" | "<" | "<=" | ">" | ">=" | "and" | "or" | "not" => Kind::Bool,
                "valid" | "valid_union" | "d2b" => Kind::Bool,
                "dereference_header_stack" | "dereference_stack" => Kind::Header,
                "access_union_header" => Kind::Header,
                "dereference_union_stack" => Kind::Union,
                "?" => match &operation.left {
                    Some(Operand::Term(term)) => self.kind(term),
                    _ => Kind::Other,
                },
                _ => Kind::Data,
            },
            _ => Kind::Other,
        }
    }

    fn dereference(&self, operation: &Operation) -> Result<(usize, Num), LoadError> {
        let stack = self.stack(self.operand(operation, &operation.left)?)?;
        let index = self.number(self.operand(operation, &operation.right)?)?;
        Ok((stack, index))
    }

    fn operand<'t>(
        &self,
        operation: &Operation,
        operand: &'t Option<Operand>,
    ) -> Result<&'t Term, LoadError> {
        match operand {
            Some(Operand::Term(term)) => Ok(term),
            _ => {
                let what = format!("an operand of {} is missing", operation.op);
                Err(LoadError::malformed(what, self.at))
            }
        }
    }

    fn position(&self, operation: &Operation) -> Result<usize, LoadError> {
        match operation.right {
            Some(Operand::Position(position)) => Ok(position),
            _ => {
                let what = format!("the position in {} is missing", operation.op);
                Err(LoadError::malformed(what, self.at))
            }
        }
    }

    fn member(&self, members: usize, member: usize) -> Result<(), LoadError> {
        if member < members {
            return Ok(());
        }
        Err(LoadError::malformed(
            format!("the header union has no member {member}"),
            self.at,
        ))
    }

    fn mismatch(&self, expected: &str, found: &Term) -> LoadError {
        LoadError::malformed(format!("expected {expected}, found {found:?}"), self.at)
    }

    fn unknown(&self, operation: &Operation) -> LoadError {
        LoadError::unsupported(format!("operation {}", operation.op), self.at)
    }
}

/// A field that can be read and written.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Fixed(Slot),
    Late(FieldRef),
}

impl Place {
    /// Its width in bits.
    pub fn width(&self) -> u32 {
        match self {
            Place::Fixed(slot) => slot.width,
            Place::Late(field) => field.slot.width,
        }
    }

    fn value(self, need: Need) -> (Value, Bound) {
        match self {
            Place::Fixed(slot) => slot_value(slot, need, Num::Field, Big::Field),
            Place::Late(FieldRef { header, slot }) => {
                let field = |slot| {
                    Box::new(FieldRef {
                        header: header.clone(),
                        slot,
                    })
                };
                slot_value(
                    slot,
                    need,
                    |slot| Num::Late(field(slot)),
                    |s| Big::Late(field(s)),
                )
            }
        }
    }
}

/// What is read from a slot, narrow if it is or if that is enough.
fn slot_value(
    slot: Slot,
    need: Need,
    num: impl Fn(Slot) -> Num,
    big: impl Fn(Slot) -> Big,
) -> (Value, Bound) {
    let bound = Bound::of_slot(slot);
    if bound.is_narrow() {
        (Value::Num(num(slot)), bound)
    } else if need.is_narrow() {
        (
            Value::Num(num(slot.part(0, slot.width.min(MAX_NARROW)))),
            Bound::ANY,
        )
    } else {
        (Value::Big(big(slot)), bound)
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

/// A condition as code, where it can be.
fn lowered(test: Test) -> Test {
    Word::of_test(&test).map_or(test, Test::Word)
}

fn not_zero(value: Value) -> Test {
    match value {
        Value::Num(Num::FromTest(test)) => *test,
        Value::Num(num) => Test::NotZero(num),
        Value::Big(big) => Test::NotZeroBig(big),
    }
}

impl Value {
    /// A number as code, where it can be; `low` bits of it matter, or all.
    fn lowered(self, low: Option<u32>) -> Value {
        match self {
            Value::Num(num) => Value::Num(Word::of_num(&num, low).map_or(num, Num::Word)),
            big => big,
        }
    }

    fn into_big(self) -> Big {
        match self {
            Value::Num(num) => Big::FromNum(Box::new(num)),
            Value::Big(big) => big,
        }
    }

    fn into_amount(self) -> Num {
        match self {
            Value::Num(num) => num,
            Value::Big(big) => Num::Nearest(Box::new(big)),
        }
    }
}

impl Value {
    /// The value, of any width.
    pub fn eval_big(&self, env: Env) -> BigInt {
        match self {
            Value::Num(num) => BigInt::from(num.eval(env)),
            Value::Big(big) => big.eval(env),
        }
    }
}
