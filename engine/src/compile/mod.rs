//! Expressions: translation from the file.
//!
//! p4c masks nearly every operation. So an expression that is stored needs only the low bits of most of its parts
//! ([`Num::eval`]), and no intermediate value grows without bounds.

mod bound;
mod place;

use num_bigint::BigInt;

use super::bits::{MAX_BITS, Slot};
use super::error::LoadError;
use super::expression::{Cast, Comparison, EXACT, HeaderRef, Num, Op, Test};
use super::json::{Operand, Operation, Term};
use super::layout::Layout;

pub(super) use bound::Bound;
pub(super) use place::Place;

/// Twice the widest field, and some.
const MAX_INTERMEDIATE: u32 = 1 << 21;

/// The names that an expression may refer to.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub layout: &'a Layout,
    /// Names and cell widths of the register arrays, in order.
    pub registers: &'a [(String, u32)],
    /// The places of the enclosing action's parameters among its arguments.
    pub params: &'a [Slot],
    /// The enclosing object, for messages.
    pub at: &'a str,
}

/// The kinds of things that expressions stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    Bool,
    Header,
    Union,
    Other,
}

impl Scope<'_> {
    /// A number that is used whole: an index, amount or id.
    pub fn number(&self, term: &Term) -> Result<Num, LoadError> {
        self.checked(self.value(term)?, EXACT)
    }

    /// A number that is stored in `width` bits.
    pub fn stored(&self, term: &Term, width: u32) -> Result<Num, LoadError> {
        self.checked(self.value(term)?, width)
    }

    /// A condition that may be given as an integer: not zero.
    pub fn test_or_data(&self, term: &Term) -> Result<Test, LoadError> {
        match self.kind_is_bool(term) {
            true => self.test(term),
            false => Ok(Test::not_zero(self.number(term)?)),
        }
    }

    /// A condition as a number, 0 or 1.
    pub fn bit(&self, term: &Term) -> Result<Num, LoadError> {
        Ok(Num::FromTest(Box::new(self.test(term)?)))
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

    /// Checks that evaluating the lowest `need` bits of a number takes little memory.
    fn checked(&self, num: Num, need: u32) -> Result<Num, LoadError> {
        let mut widest = 0;
        num.bound_for(need, &mut widest);
        let what = match widest {
            0..=MAX_INTERMEDIATE => return Ok(num),
            u32::MAX => "a left shift of unbounded length".to_owned(),
            bits => format!("an intermediate value of {bits} bits"),
        };
        Err(LoadError::unsupported(what, self.at))
    }

    /// A condition.
    pub fn test(&self, term: &Term) -> Result<Test, LoadError> {
        let operation = match term {
            Term::Bool(value) => return Ok(Test::Const(*value)),
            Term::Operation(operation) => operation,
            _ => return Err(self.mismatch("a condition", term)),
        };
        let left = || self.operand(operation, &operation.left);
        let right = || self.operand(operation, &operation.right);
        let both = || Ok((self.test(left()?)?, self.test(right()?)?));
        Ok(match operation.op.as_str() {
            "and" => Test::And(Box::new(both()?)),
            "or" => Test::Or(Box::new(both()?)),
            "not" => Test::Not(Box::new(self.test(right()?)?)),
            "==" => self.equal(left()?, right()?)?,
            "!=" => Test::Not(Box::new(self.equal(left()?, right()?)?)),
            "<" => self.compare(Comparison::Less, left()?, right()?)?,
            "<=" => self.compare(Comparison::LessOrEqual, left()?, right()?)?,
            ">" => self.compare(Comparison::Greater, left()?, right()?)?,
            ">=" => self.compare(Comparison::GreaterOrEqual, left()?, right()?)?,
            "valid" => Test::Valid(self.header(right()?)?),
            "valid_union" => {
                let members = self.union(right()?)?.into_iter();
                Test::any(members.map(|member| Test::Valid(HeaderRef::Fixed(member))))
            }
            "d2b" => Test::not_zero(self.number(right()?)?),
            "?" => {
                let cond = self.test(self.operand(operation, &operation.cond)?)?;
                let (yes, no) = both()?;
                Test::Choose(Box::new((cond, yes, no)))
            }
            _ => return Err(self.unknown(operation)),
        })
    }

    /// True if a term is a condition.
    pub fn kind_is_bool(&self, term: &Term) -> bool {
        self.kind(term) == Kind::Bool
    }

    fn equal(&self, left: &Term, right: &Term) -> Result<Test, LoadError> {
        match self.kind(left) {
            Kind::Bool => Ok(Test::Same(Box::new((self.test(left)?, self.test(right)?)))),
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
                // Unions are equal if the same member is valid in both, and equal.
                let members = left.into_iter().zip(right);
                Ok(Test::any(members.map(|(left, right)| {
                    let sides = (HeaderRef::Fixed(left), HeaderRef::Fixed(right));
                    Test::EqualHeaders(Box::new(sides))
                })))
            }
            _ => self.compare(Comparison::Equal, left, right),
        }
    }

    fn compare(&self, how: Comparison, left: &Term, right: &Term) -> Result<Test, LoadError> {
        let sides = (self.number(left)?, self.number(right)?);
        Ok(Test::Compare(how, Box::new(sides)))
    }

    fn value(&self, term: &Term) -> Result<Num, LoadError> {
        match term {
            Term::Hex(value) => Ok(Num::Const(value.clone())),
            Term::Bool(value) => Ok(Num::constant(u8::from(*value))),
            Term::Argument(position) => {
                let slot = self.params.get(*position).ok_or_else(|| {
                    LoadError::malformed(format!("it has no parameter {position}"), self.at)
                })?;
                Ok(Num::Arg(*slot))
            }
            Term::Field(header, field) if field == "$valid$" => {
                let header = HeaderRef::Fixed(self.layout.find(header, self.at)?);
                Ok(Num::FromTest(Box::new(Test::Valid(header))))
            }
            Term::Field(..) | Term::StackField(..) | Term::UnionStackField(..) => {
                Ok(self.field(term)?.value())
            }
            Term::Register(name, index) => {
                let array = self.register(name)?;
                Ok(Num::Register {
                    array,
                    width: self.registers[array].1,
                    index: Box::new(self.number(index)?),
                })
            }
            Term::Operation(operation) => self.operation(term, operation),
            _ => Err(self.mismatch("an integer", term)),
        }
    }

    /// The register array of a name.
    pub fn register(&self, name: &str) -> Result<usize, LoadError> {
        let found = self.registers.iter().position(|(known, _)| known == name);
        LoadError::found(found, "register array", name, self.at)
    }

    fn operation(&self, term: &Term, operation: &Operation) -> Result<Num, LoadError> {
        let left = || self.operand(operation, &operation.left);
        let right = || self.operand(operation, &operation.right);
        let binary = |op| Ok(Num::binary(op, self.value(left()?)?, self.value(right()?)?));
        let cast = |cast| {
            let width = u32::try_from(self.constant(right()?)?).ok();
            let width = width.filter(|width| (1..=MAX_BITS).contains(width));
            let width = width.ok_or_else(|| {
                let what = format!("the width of a cast must be in 1..={MAX_BITS}");
                LoadError::malformed(what, self.at)
            })?;
            Ok(Num::Cast(cast, width, Box::new(self.value(left()?)?)))
        };
        let fill = |plus| {
            let stack = self.stack(right()?)?;
            Ok(Num::Fill { stack, plus })
        };
        match operation.op.as_str() {
            "+" if operation.left.is_none() => self.value(right()?),
            "-" if operation.left.is_none() => Ok(Num::binary(
                Op::Sub,
                Num::constant(0),
                self.value(right()?)?,
            )),
            "+" => binary(Op::Add),
            "-" => binary(Op::Sub),
            "*" => binary(Op::Mul),
            "&" => binary(Op::And),
            "|" => binary(Op::Or),
            "^" => binary(Op::Xor),
            "<<" => binary(Op::Shl),
            ">>" => binary(Op::Shr),
            "/" => binary(Op::Div),
            "%" => binary(Op::Mod),
            "~" => Ok(Num::Not(Box::new(self.value(right()?)?))),
            "two_comp_mod" => cast(Cast::Wrap),
            "sat_cast" => cast(Cast::Saturate),
            "usat_cast" => cast(Cast::SaturateUnsigned),
            "b2d" => self.bit(right()?),
            "?" => {
                let cond = self.test(self.operand(operation, &operation.cond)?)?;
                let parts = (cond, self.value(left()?)?, self.value(right()?)?);
                Ok(Num::Choose(Box::new(parts)))
            }
            "size_stack" => fill(0),
            "last_stack_index" => fill(-1),
            "access_field" => Ok(self.field(term)?.value()),
            _ if self.kind(term) == Kind::Bool => Err(self.mismatch("an integer", term)),
            _ => Err(self.unknown(operation)),
        }
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

    fn mismatch(&self, expected: &str, found: &Term) -> LoadError {
        LoadError::malformed(format!("expected {expected}, found {found:?}"), self.at)
    }

    fn unknown(&self, operation: &Operation) -> LoadError {
        LoadError::unsupported(format!("operation {}", operation.op), self.at)
    }
}
