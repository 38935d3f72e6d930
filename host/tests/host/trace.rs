//! A core's trace agrees with its counters, and tracing changes no result.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Network, Random, at_once, config, powers};
use ultima_host::trace::{Fate, Happened, PacketKind, Record, Sink, Timer};
use ultima_host::{ClosedBy, Coding, Config, OperationId, Outcome, Time};
use ultima_wire::Kind;

const RANKS: u16 = 4;
const SLOT: usize = 16;

#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<Record>>>);

impl Sink for Records {
    fn record(&mut self, record: &Record) {
        self.0.lock().expect("no panic").push(*record);
    }
}

impl Records {
    fn count(&self, of: impl Fn(&Happened) -> bool) -> u64 {
        let records = self.0.lock().expect("no panic");
        records.iter().filter(|r| of(&r.happened)).count() as u64
    }

    fn of(&self, id: OperationId) -> Vec<Record> {
        let records = self.0.lock().expect("no panic");
        records.iter().filter(|r| r.id() == id).copied().collect()
    }
}

fn small_slots() -> Config {
    Config {
        slot_bytes: SLOT * 4,
        coding: Coding::Identity,
        ..config(RANKS)
    }
}

fn id(step: u32) -> OperationId {
    OperationId { step, bucket: 0 }
}

/// Packets are lost, duplicated, late and trimmed. Rank 3 starts late, and not at all in step 2.
fn adverse(traced: bool) -> (Vec<Outcome>, Network, Vec<Records>) {
    let mut network = Network::new(&small_slots());
    let records: Vec<Records> = (0..RANKS).map(|_| Records::default()).collect();
    if traced {
        for (core, records) in network.cores.iter_mut().zip(&records) {
            core.trace(Box::new(records.clone()));
        }
    }
    let mut random = Random::new(5);
    network.faults = Box::new(move |_, _| match random.below(20) {
        0 => vec![],
        1 => vec![Duration::ZERO, Duration::from_micros(30)],
        2 => vec![Duration::from_millis(18)],
        _ => vec![Duration::ZERO],
    });
    let mut random = Random::new(6);
    network.switch = Some(Box::new(move |header, _| {
        if matches!(header.kind, Kind::Scatter | Kind::Gather) {
            match random.below(30) {
                0 => header.switch_flags.trimmed = true,
                1 => header.switch_flags.late = true,
                _ => {}
            }
        }
    }));
    let mut outcomes = Vec::new();
    for step in 0..6 {
        let mut starts = at_once(RANKS);
        starts[3] = (step != 2).then_some(Duration::from_millis(u64::from(step)));
        let len = 40 * SLOT;
        let done = network.run(id(step), powers(RANKS, len), &starts);
        outcomes.extend(done.into_iter().flatten().map(|done| done.outcome));
    }
    (outcomes, network, records)
}

#[test]
fn a_trace_agrees_with_the_counters() {
    let (_, network, records) = adverse(true);
    for (core, records) in network.cores.iter().zip(&records) {
        let totals = core.totals();
        for (kind, phase) in [
            (PacketKind::Scatter, totals.phases.scatter),
            (PacketKind::Gather, totals.phases.gather),
        ] {
            let sent = records.count(|h| matches!(h, Happened::Sent { kind: k, .. } if *k == kind));
            assert_eq!(sent, phase.sent);
            let came = |fates: &[Fate]| {
                records.count(|h| {
                    matches!(h, Happened::Received { kind: k, fate, .. } if *k == kind && fates.contains(fate))
                })
            };
            assert_eq!(came(&[Fate::InTime]), phase.in_time);
            assert_eq!(came(&[Fate::Duplicate]), phase.duplicates);
            assert_eq!(came(&[Fate::Trimmed, Fate::MarkedLate]), phase.trimmed);
            assert!(phase.duplicates > 0 && phase.trimmed > 0, "{phase:?}");
            // Packets of operations that never started are not traced.
            assert!(came(&[Fate::Late]) <= phase.late);
        }
        let feedback = |h: &Happened| matches!(h, Happened::Sent { kind, .. } if *kind == PacketKind::Feedback);
        assert_eq!(records.count(feedback), totals.feedback_sent);
    }
}

#[test]
fn a_trace_has_an_operations_bounds_slots_timers_and_end() {
    let (outcomes, network, records) = adverse(true);
    // The first of each step is rank 0's.
    let outcome = outcomes.iter().find(|o| o.id == id(2)).expect("rank 0's");
    let told = records[0].of(id(2));
    let Happened::Started {
        values, t_s, t_b, ..
    } = told[0].happened
    else {
        panic!("{:?}", told[0]);
    };
    let Config {
        t_s: flush,
        t_b: end,
        ..
    } = *network.cores[0].config();
    assert_eq!((values, t_s, t_b), (40 * SLOT as u64, flush, end));
    let started = told[0].time;
    let at = |wanted: &Happened| -> Option<Time> {
        told.iter().find(|r| r.happened == *wanted).map(|r| r.time)
    };
    let timer = |timer| at(&Happened::Timer { timer });
    assert_eq!(timer(Timer::Flush), Some(started + flush));
    assert_eq!(timer(Timer::Deadline), Some(started + end));
    let mut closed: Vec<(u32, u16, ClosedBy)> = told
        .iter()
        .filter_map(|record| match record.happened {
            Happened::SlotClosed {
                slot,
                contributions,
                by,
            } => Some((slot, contributions, by)),
            _ => None,
        })
        .collect();
    closed.sort();
    let slots: Vec<u32> = closed.iter().map(|closed| closed.0).collect();
    assert_eq!(slots, (0..10).collect::<Vec<u32>>());
    for (contributions, slots) in (0..).zip(&outcome.contributions) {
        let told = closed.iter().filter(|closed| closed.1 == contributions);
        assert_eq!(told.count(), *slots as usize);
    }
    assert_eq!(
        closed.iter().map(|closed| closed.2).max(),
        Some(outcome.shard_closed_by)
    );
    let ended = Happened::Ended {
        by: ClosedBy::Deadline,
        shard: outcome.shard_closed_by,
        lost_contributions: outcome.lost.scatter.total(),
        lost_aggregates: outcome.lost.gather.total(),
    };
    assert_eq!(at(&ended), Some(started + outcome.duration));
}

#[test]
fn tracing_changes_no_result() {
    let (with, ..) = adverse(true);
    let (without, _, records) = adverse(false);
    assert_eq!(with, without);
    assert!(records.iter().all(|records| records.count(|_| true) == 0));
}
