//! A switch's report ends the wait for a slot at once, and every missing packet counts by its cause.

use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ultima_host::{
    Cause, ClosedBy, Coding, Config, Core, Gather, OperationId, Outcome, Phase, Rejection,
    Rotation, Time, TrimmedByHops,
};
use ultima_testing::cases;
use ultima_wire::{Dtype, Header, Kind, SwitchFlags, Ticks};

const T_B: Duration = Duration::from_millis(20);
/// Slots of 64 values, so that small buckets have many.
const SLOT: usize = 64;

/// Order shows no losses here, so a rank only learns of them in time from a switch.
fn unordered(ranks: u16) -> Config {
    Config {
        slot_bytes: SLOT * 4,
        t_s: T_B * 3 / 5,
        t_b: T_B,
        coding: Coding::Identity,
        reorder: u32::MAX,
        ..config(ranks)
    }
}

fn trimmed(header: &mut Header) {
    header.switch_flags.trimmed = true;
}

#[test]
fn a_trimmed_contribution_is_not_waited_for() {
    let mut network = Network::new(&unordered(4));
    network.switch = Some(Box::new(|header, _| {
        header.switch_flags.hops += 2;
        header.path_queue = Ticks(700);
        if header.kind == Kind::Scatter && (header.source, header.owner, header.slot) == (2, 1, 4) {
            trimmed(header);
        }
    }));
    let done = network.run(ID, powers(4, 4 * 10 * SLOT), &at_once(4));
    let owner = done[1].as_ref().expect("started");
    assert_eq!(owner.outcome.shard_closed_by, ClosedBy::KnownLoss);
    assert_eq!(owner.outcome.contributions, [0, 0, 0, 1, 9]);
    assert_eq!(owner.outcome.phases.scatter.trimmed, 1);
    let expected = TrimmedByHops {
        hops: 2,
        trimmed: 1,
        late: 0,
        longest_queue: Ticks(700).into(),
    };
    assert_eq!(owner.outcome.trimmed_by_hops, [expected]);
    assert_eq!(owner.outcome.lost.scatter.of(Cause::Trimmed), 1);
    assert_eq!(owner.outcome.lost.scatter.total(), 1);
    let [reported] = &owner.reported[..] else {
        panic!("one slot: {:?}", owner.reported)
    };
    assert_eq!(
        (reported.id, reported.phase, reported.cause),
        (ID, Phase::Scatter, Cause::Trimmed)
    );
    assert_eq!((reported.source, reported.owner, reported.slot), (2, 1, 4));
    assert_eq!(
        (reported.hops, reported.path_queue),
        (2, Duration::from_nanos(700 * 1024))
    );
    assert_eq!(owner.outcome.incomplete_aggregates, 0);
    // All ranks have the mean of the other three.
    let at = 4 * 10 * SLOT / 4 + 4 * SLOT;
    for done in done.iter().flatten() {
        assert_eq!(done.encoded[at], (1.0 + 2.0 + 8.0) / 3.0);
        assert!(done.outcome.duration < Duration::from_millis(1));
    }
    let other = &done[3].as_ref().expect("started").outcome;
    assert_eq!(other.closed_by, ClosedBy::Complete);
    assert_eq!(other.incomplete_aggregates, 1);
    network.settle();
    network.check_accounts();
}

#[test]
fn a_trimmed_aggregate_is_not_waited_for() {
    for gather in GATHERS {
        let mut network = Network::new(&Config {
            gather,
            ..unordered(3)
        });
        network.switch = Some(Box::new(|header, to| {
            if header.kind == Kind::Gather && (header.source, to) == (0, 2) && header.slot >= 8 {
                trimmed(header);
            }
        }));
        let done = network.run(ID, powers(3, 3 * 10 * SLOT), &at_once(3));
        let receiver = done[2].as_ref().expect("started");
        assert_eq!(receiver.outcome.closed_by, ClosedBy::KnownLoss);
        assert!(receiver.outcome.duration < Duration::from_millis(1));
        assert_eq!(receiver.outcome.missed_aggregates, 2);
        assert_eq!(receiver.outcome.lost.gather.of(Cause::Trimmed), 2);
        assert!(
            receiver
                .reported
                .iter()
                .all(|reported| reported.phase == Phase::Gather)
        );
        assert_eq!(receiver.encoded[8 * SLOT..10 * SLOT], [0.0; 2 * SLOT]);
        let other = done[1].as_ref().expect("started");
        assert_eq!(other.outcome.closed_by, ClosedBy::Complete);
    }
}

/// A switch that holds packets for 15 ms, and knows from budgets which are useless: those for rank 2, which
/// starts 8 ms after the others and announced that they wait 12 ms more.
#[test]
fn packets_past_their_budget_are_reported_late() {
    let residence = Ticks::from(Duration::from_millis(15));
    let mut network = Network::new(&unordered(3));
    network.switch = Some(Box::new(move |header, _| {
        if header.kind == Kind::Scatter {
            header.budget.0 = header.budget.0.saturating_sub(residence.0);
            header.switch_flags.late = header.budget.0 == 0;
        }
    }));
    let mut starts = at_once(3);
    starts[2] = Some(Duration::from_millis(8));
    let done = network.run(ID, powers(3, 3 * 10 * SLOT), &starts);
    for rank in [0, 1] {
        let outcome = &done[rank].as_ref().expect("started").outcome;
        assert_eq!(outcome.lost.scatter.of(Cause::Late), 10, "{outcome:?}");
        assert_eq!(outcome.contributions, [0, 0, 10, 0]);
        assert_eq!(outcome.closed_by, ClosedBy::KnownLoss);
    }
    let outcome = &done[2].as_ref().expect("started").outcome;
    assert_eq!(outcome.contributions, [0, 0, 0, 10]);
}

/// One operation over links whose serialization dominates its duration, far below its bounds. Returns the
/// longest rank's duration, and all outcomes.
fn over_links(packets: impl FnMut() -> Loss + 'static, reorder: u32) -> (Duration, Vec<Outcome>) {
    let config = Config {
        slot_bytes: 1408,
        t_s: Duration::from_millis(300),
        t_b: Duration::from_millis(500),
        reorder,
        coding: Coding::Identity,
        ..config(4)
    };
    let mut network = Network::new(&config);
    // To each rank 600 contributions and 600 aggregates of 12 µs.
    network.link_rate = Some(1_000_000_000);
    let packets = std::rc::Rc::new(std::cell::RefCell::new(packets));
    let (queue, drop) = (packets.clone(), packets);
    let data = |header: &Header| matches!(header.kind, Kind::Scatter | Kind::Gather);
    network.switch = Some(Box::new(move |header, _| {
        header.switch_flags.trimmed = data(header) && (queue.borrow_mut())() == Loss::Trim;
    }));
    network.faults = Box::new(move |header, _| {
        let lost = data(header) && (drop.borrow_mut())() == Loss::Silent;
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    let results = network.allreduce(ID, &powers(4, 4 * 200 * 352));
    let longest = results.iter().map(|(outcome, _)| outcome.duration).max();
    let outcomes = results.into_iter().map(|(outcome, _)| outcome).collect();
    (longest.expect("four ranks"), outcomes)
}

#[derive(Clone, Copy, PartialEq)]
enum Loss {
    None,
    Trim,
    Silent,
}

#[test]
fn five_percent_lost_in_queues_cost_no_time() {
    for reorder in [0, u32::MAX] {
        let share = |loss| {
            let mut random = Random::new(5);
            move || {
                if random.chance(0.05) {
                    loss
                } else {
                    Loss::None
                }
            }
        };
        let (whole, complete) = over_links(|| Loss::None, reorder);
        assert!(complete.iter().all(|o| o.closed_by == ClosedBy::Complete));
        let (trimmed, outcomes) = over_links(share(Loss::Trim), reorder);
        assert!(trimmed <= whole * 6 / 5, "{trimmed:?} of {whole:?}");
        for outcome in &outcomes {
            assert_eq!(outcome.closed_by, ClosedBy::KnownLoss);
            let lost = outcome.lost;
            let cut = lost.scatter.of(Cause::Trimmed) + lost.gather.of(Cause::Trimmed);
            assert_eq!(cut, lost.scatter.total() + lost.gather.total());
            assert!((30..=90).contains(&cut), "{cut} of 1,200");
        }
    }
    // The same without the switch's report, in a network whose order shows no losses.
    let mut random = Random::new(5);
    let silent = move || {
        if random.chance(0.05) {
            Loss::Silent
        } else {
            Loss::None
        }
    };
    let (whole, _) = over_links(|| Loss::None, u32::MAX);
    let (silent, _) = over_links(silent, u32::MAX);
    assert!(silent > whole * 2, "{silent:?} of {whole:?}");
}

/// One operation of rank 1 of two, whose shard has three slots, with packets from rank 0.
fn notified(say: impl Fn(&mut Core)) -> (Core, Option<Outcome>) {
    let mut core = Core::new(Config {
        rank: 1,
        ..unordered(2)
    })
    .expect("a good configuration");
    core.start(Time::ZERO, ID, vec![1.0; 2 * 3 * SLOT])
        .expect("starts");
    let mut buf = vec![0; core.max_datagram()];
    while core.next_datagram(Time::ZERO, &mut buf).is_some() {}
    say(&mut core);
    while let Some(due) = core.poll_timeout() {
        core.handle_timeout(due);
    }
    let mut outcome = None;
    while let Some(event) = core.poll_event() {
        if let ultima_host::Event::Done { outcome: done, .. } = event {
            outcome = Some(*done);
        }
    }
    (core, outcome)
}

fn scatter(slot: u32) -> Header {
    Header {
        step: ID.step,
        bucket: ID.bucket,
        slot,
        slots: 3,
        contributions: 1,
        dtype: Dtype::F32,
        ..Header::new(Kind::Scatter, 7, 1, 0, 1)
    }
}

fn cut(header: Header) -> Header {
    Header {
        switch_flags: SwitchFlags {
            trimmed: true,
            hops: 1,
            ..SwitchFlags::default()
        },
        ..header
    }
}

fn say(core: &mut Core, header: &Header, payload: usize) {
    let mut datagram = vec![0; header.len() + payload];
    header.emit(&mut datagram);
    core.handle_datagram(Time::ZERO, &datagram);
}

#[test]
fn a_cut_header_is_checked_like_any_other() {
    let (core, outcome) = notified(|core| {
        let foreign = Header {
            job: 8,
            ..scatter(0)
        };
        say(core, &cut(foreign), 0);
        say(
            core,
            &cut(Header {
                epoch: 2,
                ..scatter(0)
            }),
            0,
        );
        say(
            core,
            &cut(Header {
                source: 2,
                ..scatter(0)
            }),
            0,
        );
        say(
            core,
            &cut(Header {
                slots: 4,
                ..scatter(0)
            }),
            0,
        );
        say(core, &cut(scatter(3)), 0);
        // It has a payload, so the flag is wrong.
        say(core, &cut(scatter(0)), 4 * SLOT);
        // It has no payload, and no flag explains that.
        say(core, &scatter(0), 0);
    });
    let outcome = outcome.expect("ended");
    assert_eq!(outcome.phases.scatter.trimmed, 0);
    assert_eq!(outcome.lost.scatter.of(Cause::Overdue), 3);
    let rejected = core.totals().rejected;
    assert_eq!(rejected.total(), 7);
    assert_eq!(rejected.of(Rejection::Slot), 2);
    assert_eq!(rejected.of(Rejection::Length), 2);
}

#[test]
fn a_whole_copy_counts_although_another_was_trimmed() {
    let (_, outcome) = notified(|core| {
        say(core, &cut(scatter(0)), 0);
        say(core, &cut(scatter(1)), 0);
        say(core, &cut(scatter(1)), 0);
        say(core, &scatter(1), 4 * SLOT);
        say(core, &scatter(2), 4 * SLOT);
        say(core, &cut(scatter(2)), 0);
    });
    let outcome = outcome.expect("ended");
    // Slot 0 closed at the report of its loss; so did slot 1, before its other copy arrived.
    assert_eq!(outcome.contributions, [0, 2, 1]);
    assert_eq!(outcome.lost.scatter.of(Cause::Trimmed), 2);
    let scatter = outcome.phases.scatter;
    assert_eq!((scatter.trimmed, scatter.in_time, scatter.late), (4, 1, 1));
}

#[test]
fn silence_and_bounds_have_their_own_causes() {
    let mut network = Network::new(&unordered(3));
    network.faults = Box::new(|header, _| {
        if header.source == 2 {
            vec![]
        } else {
            vec![Duration::ZERO]
        }
    });
    let causes: Vec<_> = (0..5)
        .map(|step| {
            let id = OperationId { step, bucket: 0 };
            let results = network.allreduce(id, &powers(3, 3 * 10 * SLOT));
            let lost = results[0].0.lost;
            assert_eq!(lost.scatter.total(), 10);
            assert_eq!(lost.gather.total(), 10);
            [Cause::Overdue, Cause::Silent]
                .map(|cause| (lost.scatter.of(cause), lost.gather.of(cause)))
        })
        .collect();
    assert_eq!(causes[0], [(10, 10), (0, 0)]);
    assert_eq!(causes[4], [(0, 0), (10, 10)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(80, 2560)))]

    /// With arbitrary losses, trimming, duplicates and order, every missing contribution and every missing
    /// aggregate has one cause.
    #[test]
    fn causes_add_up(
        (ranks, len) in (2u16..6, 0usize..3000),
        (seed, reorder, multicast) in (any::<u64>(), 0u32..4, any::<bool>()),
        (loss, cut, late, doubled) in (0.0..0.3, 0.0..0.3, 0.0..0.3, 0.0..0.3),
        jitter in 0u64..2000,
    ) {
        let gather = if multicast { Gather::Multicast } else { Gather::Unicast };
        let mut network = Network::new(&Config { gather, reorder, ..unordered(ranks) });
        let (mut faults, mut flags) = (Random::new(seed), Random::new(seed ^ 1));
        network.fifo = false;
        network.faults = Box::new(move |_, _| {
            let mut delay = || Duration::from_micros(faults.below(jitter + 1));
            let delays = [delay(), delay()];
            match faults.unit() {
                u if u < loss => vec![],
                u if u < loss + doubled => delays.to_vec(),
                _ => delays[..1].to_vec(),
            }
        });
        network.switch = Some(Box::new(move |header, _| {
            let u = flags.unit();
            header.switch_flags.trimmed = u < cut;
            header.switch_flags.late = (cut..cut + late).contains(&u);
        }));
        for step in 0..4 {
            let id = OperationId { step, bucket: 0 };
            for (outcome, _) in network.allreduce(id, &powers(ranks, len)) {
                let lacking: u64 = outcome
                    .contributions
                    .iter()
                    .zip(0u64..)
                    .map(|(slots, had)| u64::from(*slots) * (u64::from(ranks) - had))
                    .sum();
                prop_assert_eq!(outcome.lost.scatter.total(), lacking);
                prop_assert_eq!(outcome.lost.gather.total(), u64::from(outcome.missed_aggregates));
            }
        }
        network.settle();
        network.check_accounts();
    }
}

/// The position of a slot in its source's rotation shows earlier losses even if only its header arrived.
#[test]
fn a_header_without_payload_shows_earlier_losses() {
    let config = Config {
        reorder: 0,
        ..unordered(2)
    };
    let rotation = Rotation::new(config.seed, ID, 0);
    let mut network = Network::new(&config);
    network.faults = Box::new(move |header, to| {
        let lost = (header.source, to) == (0, 1)
            && (header.kind != Kind::Scatter || rotation.position(header.slot, 10) < 9);
        if lost { vec![] } else { vec![Duration::ZERO] }
    });
    network.switch = Some(Box::new(|header, _| {
        header.switch_flags.trimmed = header.kind == Kind::Scatter && header.source == 0;
    }));
    let done = network.run(ID, powers(2, 2 * 10 * SLOT), &at_once(2));
    let outcome = &done[1].as_ref().expect("started").outcome;
    assert_eq!(outcome.shard_closed_by, ClosedBy::KnownLoss);
    assert_eq!(outcome.lost.scatter.of(Cause::Overtaken), 9);
    assert_eq!(outcome.lost.scatter.of(Cause::Trimmed), 1);
}
