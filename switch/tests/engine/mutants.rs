//! Programs with random faults: each is rejected or runs, and nothing panics.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::{Value, json};
use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::text;
use ultima_switch::engine::{CloneSession, Limits, QueueInfo, Replica};

/// The paths of all values in a document except source positions.
fn paths(value: &Value, here: &str, found: &mut Vec<String>) {
    found.push(here.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                paths(item, &format!("{here}/{index}"), found);
            }
        }
        Value::Object(members) => {
            for (name, member) in members.iter().filter(|(name, _)| *name != "source_info") {
                let name = name.replace('~', "~0").replace('/', "~1");
                paths(member, &format!("{here}/{name}"), found);
            }
        }
        _ => {}
    }
}

/// A number at or beyond a limit.
fn number(rng: &mut Xoshiro256PlusPlus) -> Value {
    let numbers = [
        0,
        1,
        7,
        65,
        129,
        524_280,
        524_281,
        u64::from(u32::MAX),
        u64::MAX,
    ];
    json!(numbers[rng.random_range(0..numbers.len())])
}

fn digits(rng: &mut Xoshiro256PlusPlus) -> Value {
    let digits = [
        "0x0",
        "-0x1",
        "0x80",
        "0xffffffff",
        "0xffffffffffffffffffffffffffffffffff",
    ];
    json!(digits[rng.random_range(0..digits.len())])
}

/// Changes one value of a program. Replaces a number or constant, adds or removes an array item, removes an
/// object member, or copies another value of the program.
fn mutate(program: &mut Value, all: &[String], rng: &mut Xoshiro256PlusPlus) {
    let other = program
        .pointer(&all[rng.random_range(0..all.len())])
        .cloned();
    let Some(place) = program.pointer_mut(&all[rng.random_range(0..all.len())]) else {
        return;
    };
    match place {
        Value::Number(_) => *place = number(rng),
        Value::String(text) if text.starts_with("0x") => *place = digits(rng),
        Value::Array(items) if !items.is_empty() && rng.random() => {
            let at = rng.random_range(0..items.len());
            if rng.random() {
                items.remove(at);
            } else {
                items.push(items[at].clone());
            }
        }
        Value::Object(members) if !members.is_empty() && rng.random_range(0..4) == 0 => {
            let name = members
                .keys()
                .nth(rng.random_range(0..members.len()))
                .cloned();
            members.remove(&name.expect("a member"));
        }
        place => *place = other.unwrap_or(Value::Null),
    }
}

/// Loads a program and, if it loads, sends frames through it.
fn survives(json: &str, p4info: &P4Info, rng: &mut Xoshiro256PlusPlus) -> bool {
    let Ok(mut engine) = ultima_switch::p4info::load(json.as_bytes(), p4info, Limits::default())
    else {
        return false;
    };
    let replicas = vec![Replica { port: 1, rid: 1 }];
    engine
        .pre_mut()
        .insert_group(1, replicas.clone())
        .expect("a valid group");
    let session = CloneSession {
        replicas,
        ..CloneSession::default()
    };
    engine
        .pre_mut()
        .insert_session(1, session)
        .expect("a valid session");
    for _ in 0..10 {
        let length = rng.random_range(0..100);
        let frame: Vec<u8> = (0..length)
            .map(|_| rng.random::<u8>() >> (length % 8))
            .collect();
        let (mut copies, mut out) = (Vec::new(), Vec::new());
        engine.ingress(1, &frame, 1, &mut copies);
        for _ in 0..20 {
            let Some(copy) = copies.pop() else { break };
            engine.egress(copy, QueueInfo::default(), 2, &mut out, &mut copies);
        }
    }
    true
}

#[test]
fn faulty_programs_are_refused_or_run() {
    let programs = [
        (
            include_str!("../programs/copies.json"),
            include_str!("../programs/copies.p4info.txtpb"),
        ),
        (
            include_str!("../programs/lookups.json"),
            include_str!("../programs/lookups.p4info.txtpb"),
        ),
        (
            include_str!("../programs/parsing.json"),
            include_str!("../programs/parsing.p4info.txtpb"),
        ),
        (
            include_str!("../programs/arithmetic.json"),
            include_str!("../programs/arithmetic.p4info.txtpb"),
        ),
        (
            include_str!("../programs/profiles.json"),
            include_str!("../programs/profiles.p4info.txtpb"),
        ),
        (
            include_str!("../programs/translated.json"),
            include_str!("../programs/translated.p4info.txtpb"),
        ),
        (
            include_str!("../programs/value_sets.json"),
            include_str!("../programs/value_sets.p4info.txtpb"),
        ),
    ];
    for (seed, (json, p4info)) in programs.into_iter().enumerate() {
        let program: Value = serde_json::from_str(json).expect("p4c prints JSON");
        let p4info = text::parse(p4info).expect("p4c prints text format");
        let mut all = Vec::new();
        paths(&program, "", &mut all);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed as u64);
        let (count, mut loaded) = (ultima_testing::cases(60, 400) as usize, 0);
        for _ in 0..count {
            let mut mutant = program.clone();
            for _ in 0..rng.random_range(1..4) {
                mutate(&mut mutant, &all, &mut rng);
            }
            loaded += usize::from(survives(&mutant.to_string(), &p4info, &mut rng));
        }
        // Some faults must leave a program that loads, and some must not.
        let few = (count / 100).max(1);
        assert!(
            (few..count - few).contains(&loaded),
            "program {seed}: {loaded} of {count} loaded"
        );
    }
}
