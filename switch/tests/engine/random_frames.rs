//! Random frames through every program: nothing panics, and neither tracing nor the P4Info changes the output.

use std::num::NonZeroU16;

use proptest::prelude::*;
use ultima_switch::engine::trace::Recorder;
use ultima_switch::engine::{
    CloneSession, EgressOutcome, Engine, IngressOutcome, Limits, MeterConfig, QueueInfo, Replica,
};

use super::control::{Testbed, exact, lpm};
use super::program;

/// The program `copies` with groups, sessions, a meter and an entry, so that every order has an effect.
fn copies() -> Testbed {
    let mut testbed = program!("copies");
    let replicas = vec![Replica { port: 1, rid: 1 }, Replica { port: 2, rid: 9 }];
    let pre = testbed.engine.pre_mut();
    for id in 1..4 {
        pre.insert_group(id, replicas.clone()).unwrap();
        let session = CloneSession {
            replicas: replicas.clone(),
            ..CloneSession::default()
        };
        pre.insert_session(id, session).unwrap();
    }
    let config = MeterConfig {
        cir: 1,
        cburst: 1,
        pir: 1,
        pburst: 1,
    };
    let id = testbed.meter("Serve.speed");
    testbed
        .engine
        .meter_mut(id)
        .unwrap()
        .write(1, Some(config))
        .unwrap();
    testbed.insert("Serve.marks", &[exact(1)], "Serve.mark", &[7]);
    testbed
}

/// Loads a program of `tests/programs` without its P4Info.
macro_rules! bare {
    ($name:literal) => {{
        let mut testbed = program!($name);
        let json = include_bytes!(concat!("../programs/", $name, ".json"));
        testbed.engine = Engine::load_bare(json, Limits::default()).expect("the program loads");
        testbed
    }};
}

/// Ultima's program with a job, which admits [`multicast`] at every port.
pub fn ultima() -> Testbed {
    let program = ultima_p4::v1model();
    let mut testbed = Testbed::new(program.device_config, program.p4info);
    let (admit, forward) = (
        "UltimaIngress.admission.admit_from_host",
        "UltimaIngress.routing.forward",
    );
    let job = ("UltimaIngress.jobs.job", "UltimaIngress.jobs.set_job");
    testbed.insert(job.0, &[exact(0)], job.1, &[1, 1, 2]);
    for port in 0..30 {
        let source = [
            exact(port),
            exact(0),
            exact(0),
            exact(0),
            exact(0x0a00_0001),
        ];
        testbed.insert("UltimaIngress.admission.source", &source, admit, &[1]);
    }
    let route = [lpm(0x0a00_0000, 8)];
    testbed.insert(
        "UltimaIngress.routing.route",
        &route,
        forward,
        &[2, 0x0200_0000_0002],
    );
    for rank in 1..3 {
        let (table, action) = (
            "UltimaEgress.delivery.replica",
            "UltimaEgress.delivery.readdress",
        );
        let args = [0x0200_0000_0000 | rank, 0x0a00_0000 | rank, 0x554c + rank];
        testbed.insert(table, &[exact(0), exact(rank)], action, &args);
    }
    for port in 0..4 {
        let (table, action) = ("UltimaEgress.shares.share", "UltimaEgress.shares.set_share");
        testbed.insert(table, &[exact(0), exact(port)], action, &[port + 1]);
    }
    let replicas = (0..4).map(|rid| Replica { port: rid, rid }).collect();
    let pre = testbed.engine.pre_mut();
    pre.insert_group(1, replicas).expect("a valid group");
    testbed
}

/// Sends frames and runs egress for every copy, up to a limit because egress clones of clones multiply.
fn run(testbed: &mut Testbed, frames: &[Vec<u8>]) -> Result<(), TestCaseError> {
    for (at, frame) in frames.iter().enumerate() {
        let mut copies = Vec::new();
        let now = at as u64;
        let outcome = testbed
            .engine
            .ingress(at as u16 % 512, frame, now, &mut copies);
        if outcome == IngressOutcome::Forwarded {
            prop_assert!(!copies.is_empty());
        }
        let (mut out, mut served) = (Vec::new(), 0);
        while let Some(copy) = copies.pop() {
            let outcome =
                testbed
                    .engine
                    .egress(copy, QueueInfo::default(), now, &mut out, &mut copies);
            if outcome == EgressOutcome::Sent {
                prop_assert!(out.len() <= frame.len() + 512);
            }
            served += 1;
            if served == 200 {
                break;
            }
        }
    }
    Ok(())
}

/// Sends the same frames through two engines, the second of which records. Asserts equal outcomes.
fn agree(mut plain: Testbed, mut traced: Testbed, frames: &[Vec<u8>]) -> Result<(), TestCaseError> {
    for (at, frame) in frames.iter().enumerate() {
        let (port, now) = (at as u16 % 512, at as u64);
        let recorder = Box::new(Recorder::new(NonZeroU16::MIN));
        traced.engine.record(recorder);
        let all = [&mut plain, &mut traced].map(|testbed| {
            let (mut copies, mut out, mut seen) = (Vec::new(), Vec::new(), Vec::new());
            let outcome = testbed.engine.ingress(port, frame, now, &mut copies);
            while let Some(copy) = copies.pop() {
                let (port, rid, len) = (copy.port, copy.rid, copy.len);
                let queue = QueueInfo::default();
                let outcome = testbed
                    .engine
                    .egress(copy, queue, now, &mut out, &mut copies);
                seen.push((port, rid, len, outcome, out.clone()));
                if seen.len() == 50 {
                    break;
                }
            }
            (outcome, seen)
        });
        prop_assert_eq!(&all[0], &all[1]);
        let recorder = traced.engine.recorded().expect("a recorder");
        prop_assert!(!recorder.finish(port, now, frame.clone()).events.is_empty());
    }
    Ok(())
}

/// Frames that begin as the program expects, so that more of them get past its parser.
fn frames(first: std::ops::Range<u8>) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let orders = (
        first,
        any::<u8>(),
        prop::collection::vec(any::<u8>(), 0..300),
    );
    let ordered = orders.prop_map(|(order, argument, mut rest)| {
        rest.splice(0..0, [order, argument]);
        rest
    });
    let any = prop::collection::vec(any::<u8>(), 0..200);
    prop::collection::vec(prop_oneof![3 => ordered, 1 => any], 1..30)
}

/// A packet of rank 0 to its group.
pub fn multicast() -> Vec<u8> {
    let mut frame = vec![0x02; 12];
    frame.extend([
        0x08, 0x00, 0x45, 0, 0, 100, 0, 0, 0x40, 0, 64, 17, 0x41, 0x2c, 10, 0, 0, 1, 239, 85, 0, 7,
    ]);
    frame.extend([0x55, 0x4c, 0x55, 0x4c, 0, 80, 0, 0, 0x55, 0x4c, 0x11, 0]);
    frame.extend([0; 68]);
    frame
}

/// Frames that look like Ultima's, with some bytes changed.
fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let good = multicast();
    let changes = prop::collection::vec((0usize..good.len(), any::<u8>()), 0..6);
    let changed = (changes, 0usize..=good.len()).prop_map(move |(changes, cut)| {
        let mut frame = good.clone();
        changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
        frame.truncate(if cut % 3 == 0 { cut } else { frame.len() });
        frame
    });
    prop::collection::vec(changed, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(8, 60)))]

    #[test]
    fn copies_survives(frames in frames(0..25)) {
        run(&mut copies(), &frames)?;
    }

    #[test]
    fn parsing_survives(frames in frames(0..12)) {
        run(&mut program!("parsing"), &frames)?;
    }

    #[test]
    fn arithmetic_survives(frames in frames(0..255)) {
        run(&mut program!("arithmetic"), &frames)?;
    }

    #[test]
    fn lookups_survives(frames in frames(0..255)) {
        run(&mut program!("lookups"), &frames)?;
    }

    #[test]
    fn ultima_survives(frames in packets()) {
        run(&mut ultima(), &frames)?;
    }
}

proptest! {
    // Each case loads up to ten engines.
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(3, 60)))]

    #[test]
    fn programs_behave_the_same_without_their_p4info(frames in frames(0..25)) {
        agree(bare!("parsing"), program!("parsing"), &frames)?;
        agree(bare!("arithmetic"), program!("arithmetic"), &frames)?;
        agree(bare!("lookups"), program!("lookups"), &frames)?;
        agree(bare!("profiles"), program!("profiles"), &frames)?;
        agree(bare!("value_sets"), program!("value_sets"), &frames)?;
    }

    #[test]
    fn recording_changes_nothing(frames in frames(0..25), packets in packets()) {
        agree(copies(), copies(), &frames)?;
        agree(program!("parsing"), program!("parsing"), &frames)?;
        agree(program!("arithmetic"), program!("arithmetic"), &frames)?;
        agree(program!("lookups"), program!("lookups"), &frames)?;
        agree(ultima(), ultima(), &packets)?;
    }
}
