//! Tables of every match kind with 10, 10³ and 10⁵ entries: the cost of a lookup, and of inserting and deleting an entry.
//!
//! A lookup is measured as the ingress of a packet that its entry drops; `lookup/none` is one
//! without a table.

#[expect(dead_code, reason = "benches need less of it than tests")]
#[path = "../tests/engine/control.rs"]
mod control;

use std::hint::black_box;

use control::{Testbed, bytes, exact, lpm};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ultima_switch::engine::{Match, TableEntry};

const JSON: &[u8] = include_bytes!("../tests/programs/tables.json");
const P4INFO: &str = include_str!("../tests/programs/tables.p4info.txtpb");
const SIZES: [u64; 3] = [10, 1_000, 100_000];
const FORWARD: &str = "Tables.forward";
const DROP_PORT: u128 = 511;

/// A table of the program.
struct Kind {
    name: &'static str,
    /// The key that packets carry.
    number: u8,
    table: &'static str,
    /// Entry `i`'s match fields and priority.
    entry: fn(u64) -> (Vec<Option<Match>>, i32),
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "exact",
        number: 1,
        table: "Tables.exact_one",
        entry: |i| (vec![Some(exact(mac(i).into()))], 0),
    },
    Kind {
        name: "lpm",
        number: 2,
        table: "Tables.prefix",
        entry: |i| (vec![Some(route(i))], 0),
    },
    Kind {
        name: "ternary",
        number: 3,
        table: "Tables.masked",
        entry: |i| {
            // 16 masks of the address by 4 of the port.
            let address = u32::MAX << (i % 16);
            let port = [0, 0xff00, 0x00ff, 0xffff][(i / 16 % 4) as usize];
            let fields = vec![
                ternary(self::address(i) & address, address),
                ternary(scrambled(i) as u32 & port, port),
            ];
            (fields, 1 + (scrambled(i) % 1_000) as i32)
        },
    },
    Kind {
        name: "range",
        number: 4,
        table: "Tables.ranged",
        entry: |i| {
            let low = address(i);
            let high = low.saturating_add(scrambled(i) as u32 >> 12);
            let priority = 1 + (scrambled(i) % 1_000) as i32;
            (vec![Some(range(low, high))], priority)
        },
    },
    Kind {
        name: "mixed",
        number: 5,
        table: "Tables.mixed",
        entry: |i| {
            let port = scrambled(i) as u32 & 0xffff;
            let oui = ternary_mac(mac(i), [0xffff_ff00_0000, 0][(i % 2) as usize]);
            let fields = vec![
                Some(exact((i % 4).into())),
                Some(route(i)),
                oui,
                Some(range(port, port | 0xff)),
            ];
            (fields, 1 + (scrambled(i) % 1_000) as i32)
        },
    },
];

/// A number that looks random (the finalizer of SplitMix64); different for different `i`.
fn scrambled(i: u64) -> u64 {
    let mut x = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn mac(i: u64) -> u64 {
    scrambled(i) >> 16
}

/// Multiplication by an odd number permutes: the first 2^32 addresses differ.
fn address(i: u64) -> u32 {
    (i as u32).wrapping_mul(0x9e37_79b1)
}

/// A prefix as long as routes are, most of 24 bits.
fn route(i: u64) -> Match {
    let len = [24, 24, 24, 22, 20, 16, 28, 32][(i % 8) as usize];
    let network = (i as u32).wrapping_mul(0x9e37_79b1) >> (32 - len) << (32 - len);
    lpm(network.into(), len)
}

fn ternary(value: u32, mask: u32) -> Option<Match> {
    ternary_mac(value.into(), mask.into())
}

fn ternary_mac(value: u64, mask: u64) -> Option<Match> {
    let (value, mask_bytes) = (bytes((value & mask).into()), bytes(mask.into()));
    (mask != 0).then_some(Match::Ternary {
        value,
        mask: mask_bytes,
    })
}

fn range(low: u32, high: u32) -> Match {
    let (low, high) = (bytes(low.into()), bytes(high.into()));
    Match::Range { low, high }
}

/// The entry as the control plane writes it.
fn entry(testbed: &Testbed, kind: &Kind, i: u64) -> TableEntry {
    let (fields, priority) = (kind.entry)(i);
    TableEntry {
        key: testbed.key(kind.table, &fields),
        priority,
        action: Some(testbed.call(FORWARD, &[DROP_PORT]).into()),
        ..TableEntry::default()
    }
}

/// A switch whose table has about this many entries. Entries that a short prefix or mask makes equal are omitted.
fn testbed(kind: &Kind, entries: u64) -> Testbed {
    let mut testbed = Testbed::new(JSON, P4INFO);
    for i in 0..entries {
        let entry = entry(&testbed, kind, i);
        let id = testbed.table(kind.table);
        let mut table = testbed.engine.table_mut(id).expect("the table exists");
        let _ = table.insert(entry);
    }
    testbed
}

/// A packet for a table that matches entry `i`, if the table has it.
fn frame(number: u8, i: u64) -> Vec<u8> {
    let mut frame = vec![number];
    frame.extend(&mac(i).to_be_bytes()[2..]);
    frame.extend(address(i).to_be_bytes());
    frame.extend((scrambled(i) as u16).to_be_bytes());
    frame.push((i % 4) as u8);
    frame
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup");
    group.throughput(Throughput::Elements(1));
    let none = Testbed::new(JSON, P4INFO);
    measure(&mut group, "none", none, &[frame(0, 0)]);
    for kind in &KINDS {
        for entries in SIZES {
            // Packets of different entries, in random order.
            let picked = (0..4096).map(|i| scrambled(i) % entries);
            let frames: Vec<_> = picked.map(|i| frame(kind.number, i)).collect();
            let name = format!("{}/{entries}", kind.name);
            measure(&mut group, &name, testbed(kind, entries), &frames);
        }
    }
    group.finish();
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

fn measure(group: &mut Group, name: &str, mut testbed: Testbed, frames: &[Vec<u8>]) {
    let (mut copies, mut next) = (Vec::new(), frames.iter().cycle());
    group.bench_function(name, |b| {
        b.iter(|| {
            let frame = next.next().map_or(&[][..], Vec::as_slice);
            testbed.engine.ingress(0, black_box(frame), 1, &mut copies);
            // A packet that no entry matches.
            copies.clear();
        });
    });
}

fn writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert and delete");
    group.throughput(Throughput::Elements(2));
    for kind in &KINDS {
        for entries in SIZES {
            let mut testbed = testbed(kind, entries);
            let more: Vec<_> = (entries..entries + 1_000)
                .map(|i| entry(&testbed, kind, i))
                .collect();
            let id = testbed.table(kind.table);
            let mut table = testbed.engine.table_mut(id).expect("the table exists");
            let mut next = more.iter().cycle();
            group.bench_function(format!("{}/{entries}", kind.name), |b| {
                b.iter(|| {
                    let Some(entry) = next.next() else { return };
                    if table.insert(entry.clone()).is_ok() {
                        table
                            .delete(&entry.key, entry.priority)
                            .expect("inserted above");
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, lookups, writes);
criterion_main!(benches);
