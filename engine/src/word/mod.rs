//! Expressions of at most 64 bits as straight-line code.
//!
//! p4c substitutes what it inlines, so that one expression may compute the same sum a dozen times.
//! Here every distinct operation of an expression stands once, operands before their users, and is
//! computed in 64 bits, which is exact where [`Lowering`] found it to be.

mod lowering;
mod op;

use super::bits::Slot;
use super::expression::{Env, Num, Test};
use lowering::{Lowering, fit, range};
pub(super) use op::{At, Op};

/// How the result's 64 bits are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Signed,
    Unsigned,
}

/// A number of at most 64 bits.
#[derive(Debug, Clone)]
pub(super) struct Word {
    form: Form,
    meaning: Meaning,
}

/// How the number is found. Most take one operation.
#[derive(Debug, Clone)]
pub(super) enum Form {
    Const(u64),
    Field(Slot),
    Arg(Slot),
    /// Straight-line code of at most [`MAX_OPS`] operations; the last one's result counts.
    Ops(Box<[Op]>),
}

/// The longest code of one number.
pub(super) const MAX_OPS: usize = 128;

impl Word {
    /// How it is found.
    pub fn form(&self) -> &Form {
        &self.form
    }

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
        match &self.form {
            Form::Const(value) => *value,
            Form::Field(slot) => slot.load_word(&env.phv.bytes),
            Form::Arg(slot) => slot.load_word(env.args),
            Form::Ops(ops) => run_ops(ops, env),
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
        last = op.result(|at| results[usize::from(at) % N], |leaf| leaf.find(env));
        results[index % N] = last;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::super::bits::SLACK;
    use super::super::expression::{Cast, Comparison, Op as Arithmetic};
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
        #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(400, 4000)))]
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
        match Word::of_num(num, None).unwrap().form {
            Form::Ops(ops) => ops.len(),
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
    fn fields_that_follow_each_other_are_read_at_once() {
        let field = |bit, width| Num::Field(Slot::new(bit, width, false));
        let behind = |high, by, low| {
            let high = Num::Binary(Arithmetic::Shl, Box::new((high, Num::Const(by))));
            Num::Binary(Arithmetic::Or, Box::new((high, low)))
        };
        let both = behind(behind(field(0, 4), 4, field(4, 4)), 16, field(8, 16));
        assert_eq!(operations(&both), 1);
        // 12 bits, then a field that stands elsewhere, then two that follow each other.
        let apart = behind(
            behind(behind(field(0, 4), 8, field(4, 8)), 8, field(40, 8)),
            16,
            field(48, 16),
        );
        assert_eq!(operations(&apart), 4);
        let mut phv = Phv {
            bytes: vec![0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0],
        };
        phv.bytes.extend([0; SLACK]);
        let layout = Layout::empty();
        let env = Env {
            phv: &phv,
            args: &[],
            layout: &layout,
            registers: &[],
        };
        let value = |tree| Word::of_num(tree, None).unwrap().eval(env);
        assert_eq!(value(&both), 0x12_3456);
        assert_eq!(value(&apart), 0x1_23bc_def0);
    }

    #[test]
    fn wide_expressions_stay_trees() {
        let wide = Num::Field(Slot::new(0, 100, false));
        assert!(Word::of_num(&wide, None).is_none());
        assert!(Word::of_num(&wide, Some(64)).is_some());
        let shifted = Num::Binary(Arithmetic::Shr, Box::new((wide, Num::Const(1))));
        assert!(Word::of_num(&shifted, Some(8)).is_none());
    }
}
