//! Expressions of at most 64 bits as straight-line code.
//!
//! p4c substitutes what it inlines, so that one expression may compute the same sum a dozen times.
//! Here every distinct operation of an expression stands once, operands before their users, and is
//! computed in 64 bits, which is exact where [`Lowering`] found it to be.

mod lowering;
mod op;

use super::expression::{Num, Test};
use lowering::Lowering;
pub(super) use op::{At, Op};

/// Straight-line code of 1 to [`MAX_OPS`] operations; the last one's result counts.
pub(super) type Ops = Box<[Op]>;

/// The longest code of one number.
pub(super) const MAX_OPS: usize = 128;

/// Code for the lowest `need` bits of a number, at most 64; `None` if it needs wider numbers.
pub(super) fn low(num: &Num, need: u32) -> Option<Ops> {
    let mut lowering = Lowering::default();
    let at = lowering.num(num, need)?;
    lowering.finish(at)
}

/// Code for a number, a negative one in two's complement; `None` if it needs more than 64 bits.
pub(super) fn whole(num: &Num) -> Option<Ops> {
    let mut lowering = Lowering::default();
    let at = lowering.amount(num)?;
    lowering.finish(at)
}

/// Code for a condition, 0 or 1; `None` if it needs more than 64 bits.
pub(super) fn of_test(test: &Test) -> Option<Ops> {
    let mut lowering = Lowering::default();
    let at = lowering.test(test)?;
    lowering.finish(at)
}

#[cfg(test)]
mod tests {
    use super::super::bits::{SLACK, Slot, low_bits, mask};
    use super::super::expression::{Cast, Comparison, EXACT, Env, Op as Arithmetic};
    use super::super::layout::Layout;
    use super::super::phv::Phv;
    use super::*;
    use proptest::prelude::*;

    fn leaf() -> impl Strategy<Value = Num> {
        prop_oneof![
            any::<i64>().prop_map(Num::constant),
            any::<u128>().prop_map(Num::constant),
            (0i64..70).prop_map(Num::constant),
            (0u32..140).prop_map(|bits| Num::constant(mask(bits.min(64)))),
            (0usize..40, 1u32..=64, any::<bool>())
                .prop_map(|(bit, width, signed)| Num::Field(Slot::new(bit, width, signed))),
            (0usize..40, 65u32..=200)
                .prop_map(|(bit, width)| Num::Field(Slot::new(bit, width, false))),
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
            other in tree(),
            content in prop::collection::vec(any::<u8>(), 32),
            need in 1u32..=64,
            place in (0u32..200, 1u32..=64),
        ) {
            let mut phv = Phv { bytes: content };
            phv.bytes.extend([0; SLACK]);
            let layout = Layout::empty();
            let env = Env { phv: &phv, args: &[], layout: &layout, registers: &[], ahead: &[] };
            let small = |need| {
                let mut widest = 0;
                tree.bound_for(need, &mut widest);
                other.bound_for(need, &mut widest);
                widest < 1 << 16
            };
            if !small(64) {
                return Ok(());
            }
            if let Some(word) = low(&tree, need) {
                prop_assert_eq!(run(&word, env) & mask(need), tree.eval_low(env) & mask(need));
            }
            if !small(EXACT) {
                return Ok(());
            }
            if let Some(word) = whole(&tree) {
                prop_assert_eq!(run(&word, env), tree.eval_amount(env));
            }
            let (from, width) = place;
            if let Some(part) = tree.part(from, width) {
                let whole = tree.eval(env, EXACT) >> from;
                prop_assert_eq!(low_bits(&part.eval(env, width), width), low_bits(&whole, width));
            }
            for how in [Comparison::Equal, Comparison::Less, Comparison::GreaterOrEqual] {
                let test = Test::Compare(how, Box::new((tree.clone(), other.clone())));
                if let Some(word) = of_test(&test) {
                    prop_assert_eq!(run(&word, env), u64::from(test.eval(env)));
                }
            }
        }
    }

    /// Returns the result of a packet's code.
    fn run(ops: &[Op], env: Env) -> u64 {
        let mut results = Vec::new();
        for op in ops {
            let result = op.find(|at| results[usize::from(at)], env);
            results.push(result);
        }
        results[results.len() - 1]
    }

    fn operations(num: &Num) -> usize {
        whole(num).unwrap().len()
    }

    #[test]
    fn equal_operations_stand_once() {
        let field = || Num::Field(Slot::new(0, 16, false));
        let sum = || Num::Binary(Arithmetic::Add, Box::new((field(), Num::constant(3))));
        let product = Num::Binary(Arithmetic::Mul, Box::new((sum(), sum())));
        assert_eq!(operations(&product), 3);
        let choice = Num::Choose(Box::new((Test::Const(true), sum(), field())));
        assert_eq!(operations(&choice), 4);
    }

    #[test]
    fn fields_that_follow_each_other_are_read_at_once() {
        let field = |bit, width| Num::Field(Slot::new(bit, width, false));
        let behind = |high, by, low| {
            let high = Num::Binary(Arithmetic::Shl, Box::new((high, Num::constant(by))));
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
            ahead: &[],
        };
        let value = |tree| run(&whole(tree).unwrap(), env);
        assert_eq!(value(&both), 0x12_3456);
        assert_eq!(value(&apart), 0x1_23bc_def0);
    }

    #[test]
    fn wide_numbers_have_no_words() {
        let address = |bit| Num::Field(Slot::new(bit, 128, false));
        let same = Test::Compare(Comparison::Equal, Box::new((address(0), address(128))));
        assert!(of_test(&same).is_none());
        assert!(whole(&address(0)).is_none());
        assert!(low(&address(0), 64).is_some());
    }
}
