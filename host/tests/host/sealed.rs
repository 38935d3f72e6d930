//! Sealed jobs, and their rejection of packets without a valid seal.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use ultima_host::{
    CheckPacket, Config, Core, Destination, Event, Exact, OperationId, Recycling, Rejection, Time,
};
use ultima_wire::{Auth, HEADER_LEN, Header, KIND_AT, KIND_MASK, Key, Kind, Report, Sealer, Ticks};

const KEY: Key = Key(*b"a job's own key!");
const OTHER: Key = Key(*b"not the job's...");

fn config(key: Option<Key>, ranks: u16) -> Config {
    Config {
        key,
        slot_bytes: 64,
        ..crate::common::config(ranks)
    }
}

fn core(key: Option<Key>, rank: u16) -> Core {
    let config = Config {
        rank,
        ..config(key, 2)
    };
    Core::new(config).expect("a good configuration")
}

/// With arbitrary writes, trimming and losses by switches, with repairs and with unicast: a sealed job has
/// the same results at the same times, to the bit.
#[test]
fn a_sealed_job_has_the_same_results() {
    let mut random = Random::new(5);
    let buckets: Vec<Vec<f32>> = (0..4).map(|_| random.bucket(4_003)).collect();
    for gather in GATHERS {
        for recycling in [None, Some(Recycling::default())] {
            let results = [None, Some(KEY)].map(|key| {
                let mut network = Network::new(&Config {
                    gather,
                    recycling,
                    ..config(key, 4)
                });
                network.faults = lossy(0.05, 3);
                network.switch = Some(Box::new(|header, _| {
                    let is_data = matches!(header.kind, Kind::Scatter | Kind::Gather);
                    header.switch_flags.hops = 2;
                    header.switch_flags.congestion = true;
                    header.switch_flags.trimmed = is_data && header.slot % 9 == 2;
                    header.switch_flags.late = is_data && header.slot % 9 == 5;
                    header.budget = Ticks(header.budget.0 / 2);
                    header.path_queue = Ticks(7);
                }));
                let ended: Vec<_> = (1..4)
                    .map(|step| network.allreduce(OperationId { step, bucket: 0 }, &buckets))
                    .collect();
                let totals: Vec<_> = network.cores.iter().map(Core::totals).collect();
                for totals in &totals {
                    assert_eq!(totals.rejected.total(), 0);
                    assert!(totals.phases.scatter.trimmed > 0 && totals.phases.gather.trimmed > 0);
                }
                (ended, totals)
            });
            assert_eq!(results[0], results[1]);
        }
    }
}

#[test]
fn exact_operations_are_sealed_too() {
    let mut network = Network::new(&config(Some(KEY), 4));
    network.faults = lossy(0.3, 9);
    let ended = network.run_exact(
        (ID, Exact::Sum, Duration::from_secs(10)),
        &powers(4, 1_000),
        &at_once(4),
    );
    for ended in ended {
        let (_, sum) = ended.expect("it started").expect("all is repaired");
        assert!(sum.iter().all(|value| *value == 15.0));
    }
    assert!(
        network
            .cores
            .iter()
            .all(|core| core.totals().rejected.total() == 0)
    );
}

/// Each packet of an operation is first forged in every way, then delivered: forgeries are counted, and
/// change nothing.
#[test]
fn packets_that_no_member_sealed_are_rejected_and_counted() {
    let mut honest = [0, 1].map(|rank| core(Some(KEY), rank));
    let mut attacked = [0, 1].map(|rank| core(Some(KEY), rank));
    let mut kinds = Vec::new();
    let mut forged = [0; 2];
    for cores in [&mut honest, &mut attacked] {
        for (rank, core) in (0u16..).zip(cores.iter_mut()) {
            let values = vec![f32::from(rank + 1); 200];
            core.start(Time::ZERO, ID, values).expect("starts");
            core.check(CheckPacket {
                to: Destination::Rank(1 - rank),
                probe: false,
                about: OperationId::default(),
                token: 5,
                payload: 8,
            });
        }
    }
    loop {
        let mut idle = true;
        for from in 0..2 {
            let to = 1 - from;
            let datagrams = sent(&mut honest[from]);
            assert_eq!(datagrams, sent(&mut attacked[from]));
            for datagram in datagrams {
                idle = false;
                let (header, payload) = Header::parse(&datagram).expect("a packet");
                kinds.push(header.kind);
                for forgery in forgeries(&header, payload) {
                    attacked[to].handle_datagram(Time::ZERO, &forgery);
                    forged[to] += 1;
                }
                attacked[to].handle_datagram(Time::ZERO, &datagram);
                honest[to].handle_datagram(Time::ZERO, &datagram);
            }
        }
        if idle {
            break;
        }
    }
    for kind in [Kind::Scatter, Kind::Gather, Kind::Feedback, Kind::Control] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    for (rank, (honest, attacked)) in honest.iter_mut().zip(&mut attacked).enumerate() {
        let [Some(Event::Done { outcome, result }), Some(other)] =
            [attacked.poll_event(), honest.poll_event()]
        else {
            panic!("both end");
        };
        assert!(outcome.is_whole());
        let Event::Done { result: right, .. } = other else {
            panic!("an operation ends");
        };
        assert_eq!(*result, *right);
        assert_eq!(attacked.heard(5), honest.heard(5));
        let (totals, undisturbed) = (attacked.totals(), honest.totals());
        assert_eq!(totals.rejected.of(Rejection::Seal), forged[rank]);
        assert_eq!(totals.rejected.total(), forged[rank]);
        assert_eq!(totals.phases, undisturbed.phases);
        assert_eq!(totals.control_received, undisturbed.control_received);
    }
}

/// Forgeries of a packet by an observer without the key.
fn forgeries(header: &Header, payload: &[u8]) -> Vec<Vec<u8>> {
    let written = |header: &Header, payload: &[u8]| {
        let mut datagram = vec![0; header.len()];
        header.emit(&mut datagram);
        datagram.extend_from_slice(payload);
        datagram
    };
    let changed = |change: &dyn Fn(&mut Header)| {
        let mut header = header.clone();
        change(&mut header);
        written(&header, payload)
    };
    let mut other = payload.to_vec();
    other[0] ^= 1;
    let mut cut = header.clone();
    cut.switch_flags.trimmed = true;
    let mut resealed = header.clone();
    resealed.seal(&mut Sealer::new(&OTHER), &other);
    vec![
        changed(&|header| header.auth = None),
        changed(&|header| header.auth = Some(Auth::default())),
        changed(&|header| header.slot ^= 1),
        changed(&|header| header.step += 1),
        changed(&|header| header.host_flags.last = !header.host_flags.last),
        changed(&|header| header.sent_at.0 ^= 1),
        written(header, &other),
        written(header, &payload[1..]),
        written(header, &[]),
        // A switch's TRIMMED flag does not admit another payload.
        written(&cut, &other),
        written(&resealed, &other),
    ]
}

/// A late packet of the previous epoch, with another key, does not count as a forgery.
#[test]
fn another_epochs_packets_count_as_such() {
    let mut before = core(Some(OTHER), 1);
    before
        .start(Time::ZERO, ID, vec![1.0; 200])
        .expect("starts");
    let late = sent(&mut before);
    let mut after = Core::new(Config {
        epoch: 2,
        ..config(Some(KEY), 2)
    })
    .expect("a good configuration");
    for datagram in &late {
        after.handle_datagram(Time::ZERO, datagram);
    }
    let rejected = after.totals().rejected;
    assert_eq!(rejected.of(Rejection::Epoch), late.len() as u64);
    assert_eq!(rejected.total(), late.len() as u64);
}

/// Records the datagrams of a run of 20 steps under `key`, by receiver.
fn recorded(key: Key) -> Vec<VecDeque<Vec<u8>>> {
    let recorded = Rc::new(RefCell::new(vec![VecDeque::new(); 4]));
    let mut network = Network::new(&config(Some(key), 4));
    let to_record = Rc::clone(&recorded);
    network.attacker = Some(Box::new(move |datagram, to| {
        to_record.borrow_mut()[usize::from(to)].push_back(datagram.to_vec());
        Vec::new()
    }));
    for step in 0..20 {
        network.allreduce(OperationId { step, bucket: 0 }, &powers(4, 1_000));
    }
    network.drain();
    recorded.take()
}

/// An earlier run with the same job and epoch had another key. Its packets are of later steps, and of a rank that
/// stops here: none of them makes a rank count as ahead or as present.
#[test]
fn packets_of_an_earlier_run_change_nothing() {
    let buckets = powers(4, 1_000);
    let earlier = recorded(OTHER);
    let [replayed, undisturbed] = [true, false].map(|is_attacked| {
        let mut network = Network::new(&config(Some(KEY), 4));
        let forged = Rc::new(RefCell::new(vec![0; 4]));
        if is_attacked {
            let (mut earlier, forged) = (earlier.clone(), Rc::clone(&forged));
            // Three for each packet of the job, from the last on: those of the newest steps.
            network.attacker = Some(Box::new(move |_, to| {
                let earlier = &mut earlier[usize::from(to)];
                earlier.rotate_right(3);
                forged.borrow_mut()[usize::from(to)] += 3;
                earlier.iter().take(3).cloned().collect()
            }));
        }
        let mut ended = Vec::new();
        for step in 0..8 {
            let mut starts = at_once(4);
            if step >= 3 {
                starts[3] = None;
            }
            let id = OperationId { step, bucket: 0 };
            let done = network.run(id, buckets.clone(), &starts);
            for done in done.into_iter().flatten() {
                assert_eq!(done.outcome.is_whole(), step < 3, "{:?}", done.outcome);
                if step == 7 {
                    assert_eq!(done.outcome.suspected, [3]);
                }
                ended.push((done.outcome, done.encoded));
            }
        }
        network.drain();
        let forged = forged.borrow();
        for (core, forged) in network.cores.iter().zip(&*forged) {
            let rejected = core.totals().rejected;
            assert_eq!(rejected.of(Rejection::Seal), *forged);
            assert_eq!(rejected.total(), *forged);
            assert_eq!(forged > &0, is_attacked);
        }
        let newest: Vec<_> = network.cores.iter().map(Core::newest_step).collect();
        (ended, newest)
    });
    assert_eq!(replayed, undisturbed);
    // Without another key they would have been accepted.
    let mut open = Network::new(&config(Some(OTHER), 4));
    for datagram in &earlier[0] {
        open.inject(0, datagram);
    }
    assert_eq!(open.cores[0].totals().rejected.total(), 0);
    assert_eq!(open.cores[0].newest_step(), Some(19));
}

#[test]
fn a_job_without_a_key_rejects_packets_with_a_tag() {
    let (mut sealed, mut open) = (core(Some(KEY), 1), core(None, 0));
    sealed
        .start(Time::ZERO, ID, vec![1.0; 200])
        .expect("starts");
    let datagrams = sent(&mut sealed);
    for datagram in &datagrams {
        open.handle_datagram(Time::ZERO, datagram);
    }
    let rejected = open.totals().rejected;
    assert_eq!(rejected.of(Rejection::Seal), datagrams.len() as u64);
}

/// Switches have no key, and reject a PROBE with a tag.
#[test]
fn probes_and_reports_have_no_tag() {
    let mut asks = core(Some(KEY), 0);
    asks.check(CheckPacket {
        to: Destination::Rank(1),
        probe: true,
        about: ID,
        token: 77,
        payload: 0,
    });
    let probe = sent(&mut asks).pop().expect("a PROBE");
    let (header, payload) = Header::parse(&probe).expect("a packet");
    assert_eq!((header.kind, header.auth), (Kind::Probe, None));
    let mut report = probe.clone();
    report[KIND_AT] = report[KIND_AT] & !KIND_MASK | Kind::Report as u8;
    Report::default().emit(&mut report[HEADER_LEN..]);
    asks.handle_datagram(Time::ZERO, &report);
    assert_eq!(asks.heard(77).reports, 1);
    assert_eq!(asks.totals().rejected.total(), 0);

    // With a tag it is not a switch's.
    let mut sealed = Header {
        kind: Kind::Report,
        ..header.clone()
    };
    sealed.seal(&mut Sealer::new(&KEY), payload);
    let mut datagram = vec![0; sealed.len()];
    sealed.emit(&mut datagram);
    datagram.extend_from_slice(payload);
    asks.handle_datagram(Time::ZERO, &datagram);
    assert_eq!(asks.heard(77).reports, 1);
    assert_eq!(asks.totals().rejected.of(Rejection::Seal), 1);
}

#[test]
fn the_largest_slot_leaves_room_for_the_tag() {
    let largest = |key| {
        let fits = |slot_bytes: &usize| {
            let slot_bytes = *slot_bytes;
            let config = config(key, 2);
            Core::new(Config {
                slot_bytes,
                ..config
            })
            .is_ok()
        };
        (60_000..65_536).rev().find(fits).expect("one fits")
    };
    assert_eq!((largest(None), largest(Some(KEY))), (65_452, 65_436));
    let longest = |key, slot_bytes| {
        let config = Config {
            slot_bytes,
            ..config(key, 2)
        };
        let mut core = Core::new(config).expect("a good configuration");
        core.start(Time::ZERO, ID, vec![1.0; 40_000])
            .expect("starts");
        sent(&mut core).iter().map(Vec::len).max()
    };
    assert_eq!(longest(Some(KEY), 65_436), Some(65_436 + 68));
    assert_eq!(longest(None, 65_452), Some(65_452 + 52));
}
