use proptest::prelude::*;

use super::super::super::bits::{set_word_at, word_at};
use super::super::super::hash::{csum16, sum16};
use super::super::super::layout::WORK;
use super::*;

const NO_ARRAYS: Arrays = Arrays {
    registers: &[],
    counters: &[],
    checksums: &[],
};
/// Words of operands and results, before the fields.
const A: At = 0;
const B: At = 8;
const TO: At = 16;
const FIELDS: usize = 24;

/// Runs operations. The last one ends the machine code. Returns its address.
fn run(ops: Vec<Op>, words: &mut [u8; NEAR], frame: &[u8], parsed: &mut usize) -> Address {
    run_from(0, ops, words, frame, parsed)
}

fn run_from(
    from: Address,
    ops: Vec<Op>,
    words: &mut [u8; NEAR],
    frame: &[u8],
    parsed: &mut usize,
) -> Address {
    let mut code = Code {
        ops,
        ..Code::default()
    };
    let native = Native::new(&mut code, NO_ARRAYS).expect("machine code");
    let mut context = Context {
        frame: frame.as_ptr(),
        frame_bytes: frame.len(),
        parsed: *parsed,
        ..empty(&native)
    };
    let end = native.run(from, words, &[], &mut context);
    *parsed = context.parsed;
    end
}

/// The context of code that uses neither arrays nor a frame.
fn empty(native: &Native) -> Context {
    Context {
        registers: std::ptr::null_mut(),
        counters: std::ptr::null_mut(),
        frame: [].as_ptr(),
        frame_bytes: 0,
        parsed: 0,
        back: NOWHERE.into(),
        length: 0,
        starts: native.starts.as_ptr(),
        code: native.memory.at.as_ptr(),
    }
}

fn memory(content: &[u8]) -> Box<[u8; NEAR]> {
    let mut memory = vec![0; NEAR];
    memory[..content.len()].copy_from_slice(content);
    memory.into_boxed_slice().try_into().expect("its size")
}

fn compute(to: At, op: word::Op) -> Op {
    let mask = u64::MAX;
    Op::Compute { to, mask, op }
}

#[test]
fn operations_with_too_much_machine_code_are_interpreted() {
    let extract = || Op::Extract {
        base: 100,
        valid: 99,
        bytes: MAX_COPY,
    };
    let compile = |count| {
        let ops = std::iter::repeat_with(extract).take(count);
        let mut code = Code {
            ops: ops.chain([Op::End]).collect(),
            ..Code::default()
        };
        Native::new(&mut code, NO_ARRAYS)
    };
    assert!(compile(10).is_some());
    // The code of an extraction has more bytes than the header.
    assert!(compile(MAX_CODE / usize::from(MAX_COPY)).is_none());
}

/// Runs operations with arguments and arrays. The last one ends the machine code. Returns the first that has none.
fn run_with(
    ops: Vec<Op>,
    words: &mut [u8; NEAR],
    args: &[u8],
    (registers, counters): (&mut [Register], &mut [Counter]),
    checksums: &[Checksum],
) -> Address {
    let mut code = Code {
        ops,
        ..Code::default()
    };
    let arrays = Arrays {
        registers,
        counters,
        checksums,
    };
    let native = Native::new(&mut code, arrays).expect("machine code");
    let mut context = Context {
        registers: registers.as_mut_ptr(),
        counters: counters.as_mut_ptr(),
        length: 70,
        ..empty(&native)
    };
    native.run(0, words, args, &mut context)
}

#[test]
fn an_action_goes_on_behind_its_call() {
    let mut code = Code {
        // The middle part is an action, which the last part goes on behind.
        ops: vec![
            Op::Goto(3),
            compute(TO, word::Op::Const(5)),
            Op::End,
            compute(A, word::Op::Const(7)),
            Op::End,
        ],
        nodes: vec![3],
        actions: vec![1],
        ..Code::default()
    };
    let native = Native::new(&mut code, NO_ARRAYS).expect("machine code");
    let mut words = memory(&[]);
    for (from, back, ran) in [(1, 3, [7, 5]), (1, NOWHERE, [0, 5]), (3, NOWHERE, [7, 0])] {
        set_word_at(&mut words, A, 0);
        set_word_at(&mut words, TO, 0);
        let mut context = empty(&native);
        context.back = Address::into(back);
        let end = native.run(from, &mut words, &[], &mut context);
        assert_eq!([A, TO].map(|at| word_at(&words, at)), ran);
        // The end of all is the interpreter's.
        assert_eq!(end, if ran[0] == 7 { 4 } else { 2 });
        assert_eq!(context.back, u64::from(NOWHERE));
    }
}

proptest! {
    #[test]
    fn fields_are_read_and_written(
        content in prop::collection::vec(any::<u8>(), 64),
        (bit, width) in (0usize..150, 1u32..=64),
        value: u64,
    ) {
        let slot = Slot::new(FIELDS * 8 + bit, width, false);
        let Some(Place::Wire(wire)) = slot.place() else {
            return Ok(());
        };
        let mut expected = memory(&content);
        let field = slot.load_word(&expected[..]);
        set_word_at(&mut expected, TO, field);
        set_word_at(&mut expected, A, value);
        wire.store(&mut expected, value);
        let mut words = memory(&content);
        let ops = vec![
            compute(TO, word::Op::Field(slot)),
            compute(A, word::Op::Const(value)),
            Op::Store(wire, A),
            Op::End,
        ];
        prop_assert_eq!(run(ops, &mut words, &[], &mut 0), 3);
        prop_assert_eq!(&words[..80], &expected[..80]);
    }

    #[test]
    fn operations_agree_with_the_interpreter(
        a in prop_oneof![any::<u64>(), 0u64..4],
        b in prop_oneof![any::<u64>(), 0u64..4],
        constant in prop_oneof![any::<u64>(), any::<u32>().prop_map(u64::from), 0u64..4],
        width in 1u8..=64,
    ) {
        use word::Op::*;
        let (low, high) = ((constant as i64).min(a as i64 / 2), (constant as i64).max(b as i64));
        let by = width % 64;
        let ops = [
            Const(constant), Add(A, B), AddConst(A, constant), Sub(A, B), Mul(A, B), And(A, B),
            Or(A, B), Xor(A, B), AndConst(A, constant), OrConst(A, constant),
            XorConst(A, constant), Not(A), Negate(A), ShlConst(A, by), ShrConst(A, by),
            Wrap(A, width), Clamp(A, low.min(high), high), Equal(A, B), EqualConst(A, constant),
            Less(A, B), LessUnsigned(A, B), Choose(A, B, A),
        ];
        let mask = u64::MAX >> (64 - width);
        for op in ops {
            let words = [a, b];
            let expected = op.result(|at| words[usize::from(at / 8)]) & mask;
            let text = format!("{op:?}");
            let mut words = memory(&[]);
            set_word_at(&mut words, A, a);
            set_word_at(&mut words, B, b);
            // The second operand is in the register, too.
            let op = Op::Compute { to: TO, mask, op };
            let ops = vec![compute(B, AndConst(B, u64::MAX)), op, Op::End];
            prop_assert_eq!(run(ops, &mut words, &[], &mut 0), 2);
            prop_assert_eq!(word_at(&words, TO), expected, "{}", text);
        }
        for how in [Comparison::Less, Comparison::Equal, Comparison::LessOrEqual,
            Comparison::Greater, Comparison::NotEqual, Comparison::GreaterOrEqual]
        {
            let mut words = memory(&[]);
            set_word_at(&mut words, A, a);
            set_word_at(&mut words, B, b);
            let ops = vec![
                Op::If { how, at: A, to: 2, value: constant }, Op::End,
                Op::IfWords { how, a: A, b: B, to: 4 }, Op::End,
                Op::End,
            ];
            let first = how.holds_for(a, constant);
            let expected = if !first { 1 } else if how.holds_for(a, b) { 4 } else { 3 };
            prop_assert_eq!(run(ops, &mut words, &[], &mut 0), expected);
        }
    }

    #[test]
    fn arguments_registers_and_counters_agree_with_the_interpreter(
        args in prop::collection::vec(any::<u8>(), 40),
        (bit, width) in (0usize..180, 1u32..=64),
        cell in prop_oneof![0u64..5, any::<u64>()],
        (cell_bits, value) in (1u32..=64, any::<u64>()),
    ) {
        let argument = Slot::new(bit, width, false);
        let register = |id, bits| Register::new(id, "r".into(), 3, bits, false);
        let counter = |id| Counter { id, name: "c".into(), cells: vec![CounterCell::default(); 3].into() };
        let (mut registers, mut counters) = ([register(1, 9), register(2, cell_bits)], [counter(1), counter(2)]);
        let (mut known_registers, mut known_counters) = (registers.clone(), [counter(1), counter(2)]);
        known_registers[1].store_word(cell, value);
        known_counters[1].count(cell, 70);
        let mut words = memory(&[]);
        set_word_at(&mut words, A, cell);
        set_word_at(&mut words, B, value);
        let ops = vec![
            Op::WriteRegister { index: A, from: B, register: 1 },
            Op::ReadRegister { to: B, index: A, register: 1 },
            Op::Count { index: A, counter: 1 },
            compute(TO, word::Op::Arg(argument)),
            Op::End,
        ];
        let end = run_with(ops, &mut words, &args, (&mut registers, &mut counters), &[]);
        let cells = |all: &[Register; 2]| [0, 1, 2].map(|at| (all[0].load_word(at), all[1].load_word(at)));
        prop_assert_eq!(cells(&registers), cells(&known_registers));
        prop_assert_eq!(counters[0].cells(), known_counters[0].cells());
        prop_assert_eq!(counters[1].cells(), known_counters[1].cells());
        prop_assert_eq!(word_at(&words, B), known_registers[1].load_word(cell).unwrap_or(value));
        if argument.place().is_some() {
            prop_assert_eq!(end, 4);
            prop_assert_eq!(word_at(&words, TO), argument.load_word(&args));
        } else {
            prop_assert_eq!(end, 3);
        }
    }

    #[test]
    fn checksums_are_updated_and_wrong_ones_are_left_to_the_interpreter(
        content in prop::collection::vec(any::<u8>(), 18),
        flip in 1u8..,
    ) {
        let field = |at: usize, bytes: u32| match Slot::new((FIELDS + at) * 8, bytes * 8, false).place() {
            Some(Place::Wire(wire)) => wire,
            place => panic!("{place:?}"),
        };
        let checksums = [Checksum {
            header: 3,
            target: Slot::new((FIELDS + 18) * 8, 16, false),
            calculation: 0,
            fields: Some(vec![field(0, 4), field(4, 4), field(8, 4), field(12, 4), field(16, 2)]),
            condition: None,
            update: true,
            verify: true,
        }];
        let mut words = memory(&[]);
        words[FIELDS..FIELDS + 18].copy_from_slice(&content);
        let run = |op, words: &mut [u8; NEAR]| run_with(vec![op, Op::End], words, &[], (&mut [], &mut []), &checksums);
        prop_assert_eq!(run(Op::Update(0), &mut words), 0, "the header is not valid");
        words[WORK + 3] = 1;
        prop_assert_eq!(run(Op::Update(0), &mut words), 1);
        let expected = csum16(sum16(&content)).to_be_bytes();
        prop_assert_eq!(&words[FIELDS + 18..FIELDS + 20], &expected);
        prop_assert_eq!(run(Op::Verify(0), &mut words), 1);
        words[FIELDS + 19] ^= flip;
        prop_assert_eq!(run(Op::Verify(0), &mut words), 0);
    }

    #[test]
    fn headers_are_extracted_unless_the_frame_ends(
        frame in prop::collection::vec(any::<u8>(), 0..80),
        start in 0usize..10,
        bytes in 1u16..70,
        ahead in (0u32..70, 1u8..=57),
    ) {
        let start = start.min(frame.len());
        let (mut words, mut parsed) = (memory(&[]), start);
        let op = word::Op::Ahead(ahead.0, ahead.1);
        let ops = || vec![
            compute(TO, op),
            compute(A, word::Op::AndConst(TO, u64::MAX)),
            Op::Extract { base: 100, valid: 99, bytes },
            Op::End,
        ];
        let mut end = run(ops(), &mut words, &frame, &mut parsed);
        let bits = |bit: usize| u64::from(frame[start + bit / 8] >> (7 - bit % 8) & 1);
        if start + ahead.0 as usize / 8 + 8 <= frame.len() {
            let range = ahead.0 as usize..ahead.0 as usize + usize::from(ahead.1);
            let expected = range.fold(0, |value, bit| value << 1 | bits(bit));
            prop_assert_eq!(word_at(&words, TO), expected);
        } else {
            prop_assert_eq!(end, 0);
            // The interpreter finds the bits.
            set_word_at(&mut words, TO, 7);
            end = run_from(1, ops(), &mut words, &frame, &mut parsed);
        }
        prop_assert_eq!(word_at(&words, A), word_at(&words, TO));
        let behind = start + usize::from(bytes);
        if behind <= frame.len() {
            prop_assert_eq!((end, parsed, words[99]), (3, behind, 1));
            prop_assert_eq!(&words[100..100 + usize::from(bytes)], &frame[start..behind]);
            prop_assert_eq!(words[100 + usize::from(bytes)], 0);
        } else {
            prop_assert_eq!((end, parsed, words[99]), (2, start, 0));
        }
    }
}
