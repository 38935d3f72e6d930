//! Expressions: translation from the file.
//!
//! Every integer expression is translated for a [`Need`]: its exact value, or only the low bits that its user keeps. The low
//! bits of sums, products, bit operations and left shifts depend only on the low bits of their operands, and p4c masks nearly
//! every one of them. So 128-bit arithmetic suffices for nearly all expressions, and most of p4c's masks are redundant. If a
//! [`Bound`] shows that 128 bits could overflow, the expression becomes a [`Big`].

mod bound;
mod integer;
mod place;

use num_bigint::BigInt;

use super::bits::{MAX_NARROW, Slot};
use super::error::LoadError;
use super::expression::{Big, Comparison, Env, Num, Test};
use super::json::{Operand, Operation, Term};
use super::layout::Layout;
use super::word::Word;

pub(super) use bound::Bound;
use bound::Need;
pub(super) use place::Place;

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

/// All bits of a number.
const BITS: Need = Need::Low(MAX_NARROW);

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
        Ok(self.test_tree(term)?.lowered())
    }

    /// A condition that may be given as an integer: not zero.
    pub fn test_or_data(&self, term: &Term) -> Result<Test, LoadError> {
        if self.kind_is_bool(term) {
            return self.test(term);
        }
        Ok(not_zero(self.value(term, Need::Exact)?.0).lowered())
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

    /// The value, of any width.
    pub fn eval_big(&self, env: Env) -> BigInt {
        match self {
            Value::Num(num) => BigInt::from(num.eval(env)),
            Value::Big(big) => big.eval(env),
        }
    }
}
