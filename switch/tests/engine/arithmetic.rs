//! Every operation, compared with arithmetic on integers of any size.

use num_bigint::{BigInt, BigUint, Sign};
use proptest::prelude::*;

use super::program;

/// Reads fields off a packet, bit by bit.
#[derive(Default)]
struct BitReader {
    at: usize,
}

impl BitReader {
    fn take(&mut self, bytes: &[u8], width: usize) -> BigUint {
        let value = (self.at..self.at + width).fold(BigUint::ZERO, |value, bit| {
            (value << 1) | BigUint::from(bytes[bit / 8] >> (7 - bit % 8) & 1)
        });
        self.at += width;
        value
    }
}

fn wrap(value: &BigInt, bits: u32) -> BigUint {
    let all: BigInt = (BigInt::from(1) << bits) - 1;
    (value & all).to_biguint().expect("masked")
}

fn signed(value: u32) -> BigInt {
    BigInt::from(((value << 8) as i32) >> 8)
}

fn unsigned_cap(value: BigInt, bits: u32) -> BigUint {
    let all: BigInt = (BigInt::from(1) << bits) - 1;
    value
        .clamp(BigInt::ZERO, all)
        .to_biguint()
        .expect("not negative")
}

fn signed_cap(value: BigInt, bits: u32) -> BigUint {
    let top = BigInt::from(1) << (bits - 1);
    wrap(&value.clamp(-&top, top - 1), bits)
}

#[derive(Debug, Clone)]
struct Operands {
    a: u32,
    b: u32,
    s: u32,
    t: u32,
    c: u128,
    d: u128,
    e: Vec<u8>,
    f: Vec<u8>,
    n: u8,
}

impl Operands {
    fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(self.a.to_be_bytes());
        frame.extend(self.b.to_be_bytes());
        frame.extend(&self.s.to_be_bytes()[1..]);
        frame.extend(&self.t.to_be_bytes()[1..]);
        frame.extend(self.c.to_be_bytes());
        frame.extend(self.d.to_be_bytes());
        frame.extend(&self.e);
        frame.extend(&self.f);
        frame.push(self.n);
        frame
    }
}

/// Edge values as often as random values.
fn edgy<T: Clone + std::fmt::Debug + Arbitrary + 'static>(
    edges: Vec<T>,
) -> impl Strategy<Value = T> {
    prop_oneof![any::<T>(), prop::sample::select(edges)]
}

fn operands() -> impl Strategy<Value = Operands> {
    let word = || edgy(vec![0u32, 1, u32::MAX, 1 << 31, (1 << 31) - 1]);
    let short = || word().prop_map(|value| value & 0xff_ffff);
    let long = || edgy(vec![0u128, 1, u128::MAX, 1 << 127, (1 << 127) - 1]);
    let longer = || {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 25),
            Just(vec![0; 25]),
            Just(vec![0xff; 25]),
        ]
    };
    let amount = prop_oneof![0u8..40, any::<u8>()];
    let parts = (
        word(),
        word(),
        short(),
        short(),
        long(),
        long(),
        longer(),
        longer(),
        amount,
    );
    parts.prop_map(|(a, b, s, t, c, d, e, f, n)| Operands {
        a,
        b,
        s,
        t,
        c,
        d,
        e,
        f,
        n,
    })
}

/// Expected results with their widths, in the order of the headers.
fn expected(o: &Operands) -> Vec<(&'static str, u32, BigUint)> {
    let (a, b) = (BigInt::from(o.a), BigInt::from(o.b));
    let (s, t) = (signed(o.s), signed(o.t));
    let (c, d) = (BigInt::from(o.c), BigInt::from(o.d));
    let e = BigInt::from_bytes_be(Sign::Plus, &o.e);
    let f = BigInt::from_bytes_be(Sign::Plus, &o.f);
    let n = usize::from(o.n);
    let bit = |value: bool| BigUint::from(u8::from(value));
    let narrow = |value: BigInt| wrap(&value, 32);
    let of24 = |value: BigInt| wrap(&value, 24);
    let of128 = |value: BigInt| wrap(&value, 128);
    let of200 = |value: BigInt| wrap(&value, 200);
    vec![
        ("sum", 32, narrow(&a + &b)),
        ("difference", 32, narrow(&a - &b)),
        ("product", 32, narrow(&a * &b)),
        ("both", 32, narrow(&a & &b)),
        ("either", 32, narrow(&a | &b)),
        ("one", 32, narrow(&a ^ &b)),
        ("inverse", 32, narrow(!&a)),
        ("negative", 32, narrow(-&a)),
        ("left", 32, narrow(&a << n)),
        ("right", 32, narrow(&a >> n)),
        ("capped_sum", 32, unsigned_cap(&a + &b, 32)),
        ("capped_difference", 32, unsigned_cap(&a - &b, 32)),
        ("joined", 64, wrap(&((&a << 32) + &b), 64)),
        ("slice", 12, wrap(&(&a >> 12), 12)),
        ("nibble", 4, wrap(&b, 4)),
        ("chosen", 32, narrow(a.clone().min(b.clone()))),
        (
            "patched",
            32,
            BigUint::from(o.a & 0xffff_00ff | (o.b & 0xff) << 8),
        ),
        ("signed sum", 24, of24(&s + &t)),
        ("signed difference", 24, of24(&s - &t)),
        ("signed product", 24, of24(&s * &t)),
        ("signed negative", 24, of24(-&s)),
        ("signed left", 24, of24(&s << n)),
        ("signed right", 24, of24(&s >> n)),
        ("signed capped_sum", 24, signed_cap(&s + &t, 24)),
        ("signed capped_difference", 24, signed_cap(&s - &t, 24)),
        ("widened", 40, wrap(&s, 40)),
        ("narrowed", 8, wrap(&s, 8)),
        ("bits", 24, of24(s.clone())),
        ("wide sum", 128, of128(&c + &d)),
        ("wide difference", 128, of128(&c - &d)),
        ("wide product", 128, of128(&c * &d)),
        ("wide left", 128, of128(&c << n)),
        ("wide right", 128, of128(&c >> n)),
        ("wide capped_sum", 128, unsigned_cap(&c + &d, 128)),
        ("sum200", 200, of200(&e + &f)),
        ("difference200", 200, of200(&e - &f)),
        ("product200", 200, of200(&e * &f)),
        ("left200", 200, of200(&e << n)),
        ("right200", 200, of200(&e >> n)),
        ("inverse200", 200, of200(!&e)),
        ("slice200", 48, wrap(&(&e >> 103), 48)),
        ("less", 1, bit(a < b)),
        ("less_or_equal", 1, bit(a <= b)),
        ("equal", 1, bit(a == b)),
        ("signed_less", 1, bit(s < t)),
        ("wide_less", 1, bit(c < d)),
        ("wide_equal", 1, bit(c == d)),
        ("wider_less", 1, bit(e < f)),
        ("logic", 1, bit(a > b && n != 0)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(40, 300)))]
    #[test]
    fn every_operation_wraps_and_saturates_as_p4_specifies(
        operands in prop::collection::vec(operands(), 8),
    ) {
        let mut testbed = program!("arithmetic");
        for operands in operands {
            let frame = operands.frame();
            let sent = testbed.send(5, &frame);
            prop_assert_eq!(sent.len(), 1);
            let (port, packet) = &sent[0];
            prop_assert_eq!(*port, 5);
            prop_assert_eq!(&packet[..frame.len()], &frame[..]);
            let results = &packet[frame.len()..];
            let mut bits = BitReader::default();
            for (name, width, value) in expected(&operands) {
                let found = bits.take(results, width as usize);
                prop_assert_eq!(found, value, "{} of {:?}", name, operands);
            }
            prop_assert_eq!(bits.at, results.len() * 8);
        }
    }
}

#[test]
fn truncated_frames_are_dropped() {
    let mut testbed = program!("arithmetic");
    assert_eq!(testbed.send(5, &[0; 40]), []);
}
