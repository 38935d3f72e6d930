//! Rates, incast and turns, between cores.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use ultima_host::{
    Coding, Config, Exact, GatherStart, IncastPolicy, OperationId, Pacing, RatePolicy,
};
use ultima_wire::{Header, Key, Kind, Ticks};

const RANKS: u16 = 6;
const SLOT: usize = 16;
const RATE: u64 = 1_000_000_000;
/// Slots of a shard.
const SLOTS: usize = 200;

fn paced(policy: RatePolicy) -> Config {
    Config {
        slot_bytes: SLOT * 4,
        coding: Coding::Identity,
        pacing: Some(Pacing {
            bits_per_second: RATE,
            burst: 0,
            policy,
        }),
        ..config(RANKS)
    }
}

/// Sending rates as shares of the limit, after some operations through such a switch.
fn shares(policy: RatePolicy, switch: Switch) -> Vec<f64> {
    let mut network = Network::new(&paced(policy));
    network.switch = Some(switch);
    run(&mut network, 5);
    let rates = network.cores.iter().map(|core| core.rate().expect("paced"));
    rates.map(|rate| rate as f64 / RATE as f64).collect()
}

/// Marks packets to some ranks as from a full queue.
fn full_at(ranks: &'static [u16]) -> Switch {
    Box::new(move |header, to| {
        header.switch_flags.hops = 1;
        if ranks.contains(&to) {
            header.path_queue = Ticks(1000);
        }
    })
}

#[test]
fn full_queues_at_most_receivers_lower_the_rate_and_at_fewer_do_not() {
    let in_band = |ranks| shares(RatePolicy::InBand, full_at(ranks));
    // All except 5 have three of five others with a queue, 5 has two.
    let most = in_band(&[0, 1, 2, 5]);
    assert!(most.iter().all(|share| *share < 0.5), "{most:?}");
    assert!(in_band(&[0, 5]).iter().all(|share| *share == 1.0));
    assert!(in_band(&[]).iter().all(|share| *share == 1.0));
    let fixed = shares(RatePolicy::Fixed, full_at(&[0, 1, 2, 3, 4, 5]));
    assert!(fixed.iter().all(|share| *share == 1.0));
}

/// Events that change timeouts do not change rates: late packets, and loss without a report of a queue.
#[test]
fn late_and_lost_packets_leave_the_rate_alone() {
    let mut random = Random::new(3);
    let late = shares(
        RatePolicy::InBand,
        Box::new(move |header, _| {
            header.switch_flags.hops = 1;
            header.switch_flags.late = header.kind != Kind::Feedback && random.chance(0.2);
        }),
    );
    assert!(late.iter().all(|share| *share == 1.0), "{late:?}");
    let mut random = Random::new(3);
    let trimmed = shares(
        RatePolicy::InBand,
        Box::new(move |header, _| {
            header.switch_flags.hops = 1;
            header.switch_flags.trimmed = header.kind != Kind::Feedback && random.chance(0.2);
        }),
    );
    assert!(trimmed.iter().all(|share| *share < 0.5), "{trimmed:?}");

    let mut network = Network::new(&paced(RatePolicy::InBand));
    network.switch = Some(full_at(&[]));
    network.faults = lossy(0.2, 1);
    network.allreduce(ID, &powers(RANKS, usize::from(RANKS) * SLOTS * SLOT));
    assert!(network.cores.iter().all(|core| core.rate() == Some(RATE)));
}

/// An attacker without the key sets TRIMMED, which switches write, in headers of operations that have ended. Neither the rate
/// nor the time of an operation changes.
#[test]
fn replayed_headers_of_ended_operations_leave_the_rate_alone() {
    for key in [None, Some(Key([7; 16]))] {
        let config = Config {
            key,
            ..paced(RatePolicy::InBand)
        };
        let run = |attacked: bool| {
            let mut network = Network::new(&config);
            network.switch = Some(full_at(&[]));
            let buckets = powers(RANKS, usize::from(RANKS) * SLOTS * SLOT);
            let (seen, replayed) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
            let (all, count) = (seen.clone(), replayed.clone());
            network.attacker = Some(Box::new(move |datagram, to| {
                let (mut header, _) = Header::parse(datagram).expect("a core sent it");
                let mut all = all.borrow_mut();
                if header.step == 0 {
                    header.switch_flags.trimmed = true;
                    let mut trimmed = vec![0; header.len()];
                    header.emit(&mut trimmed);
                    all.push((to, trimmed));
                    return Vec::new();
                }
                if !attacked {
                    return Vec::new();
                }
                let at = count.replace(count.get() + 1);
                let of_receiver = all.iter().filter(|(receiver, _)| *receiver == to);
                of_receiver
                    .map(|(_, old)| old.clone())
                    .cycle()
                    .skip(at % 97)
                    .take(2)
                    .collect()
            }));
            let durations: Vec<Vec<Duration>> = (0..3)
                .map(|step| {
                    let id = OperationId { step, bucket: 0 };
                    let outcomes = network.allreduce(id, &buckets);
                    outcomes
                        .iter()
                        .map(|(outcome, _)| outcome.duration)
                        .collect()
                })
                .collect();
            assert_eq!(replayed.get() > 5000, attacked);
            assert!(network.cores.iter().all(|core| core.rate() == Some(RATE)));
            durations
        };
        assert_eq!(run(true), run(false), "{key:?}");
    }
}

/// TIMELY's samples: one answer per source and interval, and none if the rate does not use them.
#[test]
fn answers_are_for_timely_and_bounded() {
    for policy in RatePolicy::ALL {
        let mut network = Network::new(&paced(policy));
        let answers = Rc::new(RefCell::new(0));
        let count = answers.clone();
        network.faults = Box::new(move |header, _| {
            *count.borrow_mut() += u64::from(header.echoed != Ticks(0));
            vec![Duration::ZERO]
        });
        // The clock starts at 0, which echoes as none.
        network.now = ultima_host::Time::from_nanos(10_000);
        let (outcome, _) =
            &network.allreduce(ID, &powers(RANKS, usize::from(RANKS) * SLOTS * SLOT))[0];
        let answers = *answers.borrow();
        assert_eq!(answers > 0, policy == RatePolicy::Timely, "{policy:?}");
        // Intervals of 50 us at the least.
        let intervals = outcome.duration.as_micros() as u64 / 50 + 1;
        assert!(answers <= u64::from(RANKS * (RANKS - 1)) * intervals);
    }
}

/// Only TIMELY follows round trips.
#[test]
fn a_queue_without_stamps_shows_in_round_trips() {
    let least = |policy| {
        let mut network = Network::new(&Config {
            t_s: Duration::from_millis(100),
            t_b: Duration::from_millis(200),
            ..paced(policy)
        });
        // Links at a fifth of the configured rate.
        network.link_rate = Some(RATE / 5);
        network.now = ultima_host::Time::from_nanos(10_000);
        run(&mut network, 1);
        let rates = network.cores.iter().map(|core| core.rate().expect("paced"));
        rates.max().expect("some ranks")
    };
    let timely = least(RatePolicy::Timely);
    assert!(timely < RATE / 2, "{timely}");
    assert_eq!(least(RatePolicy::InBand), RATE);
}

/// Packets between ranks on one host pass no switch, and are not answered.
#[test]
fn ranks_of_one_host_are_not_answered() {
    let colocated = Config {
        colocated: (0..RANKS).collect(),
        ..paced(RatePolicy::Timely)
    };
    let mut network = Network::new(&colocated);
    network.now = ultima_host::Time::from_nanos(10_000);
    network.faults = Box::new(|header, _| {
        assert_eq!(header.echoed, Ticks(0));
        vec![Duration::ZERO]
    });
    run(&mut network, 2);
}

/// Owners' first aggregates are sent one packet's time after each other, or at once.
#[test]
fn owners_take_turns() {
    for start in GatherStart::ALL {
        first_aggregates(start);
    }
}

fn first_aggregates(gather_start: GatherStart) {
    // Long enough that notices take no time in comparison.
    const SLOT: usize = 2048;
    let mut network = Network::new(&Config {
        slot_bytes: SLOT * 4,
        gather_start,
        ..paced(RatePolicy::Fixed)
    });
    let first = Rc::new(RefCell::new(vec![None; usize::from(RANKS)]));
    let seen = first.clone();
    network.faults = Box::new(move |header: &Header, _| {
        if header.kind == Kind::Gather {
            seen.borrow_mut()[usize::from(header.source)].get_or_insert(header.sent_at.0);
        }
        vec![Duration::ZERO]
    });
    network.allreduce(ID, &powers(RANKS, usize::from(RANKS) * 10 * SLOT));
    let packet = (42 + 52 + 4 * SLOT as u64) * 8_000_000_000 / RATE;
    let first: Vec<u64> = (first.borrow().iter())
        .map(|ticks| u64::from(ticks.expect("each owner sent")) * 1024)
        .collect();
    // Rank 0 waits for its first slot while it may be rank 1's turn.
    let apart: Vec<u64> = first
        .windows(2)
        .map(|two| two[1].abs_diff(two[0]))
        .collect();
    if gather_start == GatherStart::AtOnce {
        assert!(apart.iter().all(|apart| *apart < packet / 8), "{first:?}");
        return;
    }
    assert!(apart[0] <= packet + packet / 8, "{first:?}");
    assert!(
        apart[1..]
            .iter()
            .all(|apart| apart.abs_diff(packet) < packet / 8),
        "{first:?}"
    );
}

/// An overloaded receiver has at most that many senders at a time.
#[test]
fn senders_keep_to_the_smallest_incast() {
    let mut network = Network::new(&Config {
        incast: IncastPolicy::Fixed(2),
        ..paced(RatePolicy::Fixed)
    });
    let owners = Rc::new(RefCell::new(Vec::new()));
    let seen = owners.clone();
    network.faults = Box::new(move |header: &Header, to| {
        if header.kind == Kind::Scatter && header.source == 0 && header.step == 1 {
            seen.borrow_mut().push(to);
        }
        vec![Duration::ZERO]
    });
    run(&mut network, 2);
    let owners = owners.borrow();
    let rounds: Vec<Vec<u16>> = owners
        .chunks(2 * SLOTS)
        .map(|round| {
            let mut owners = round.to_vec();
            owners.sort_unstable();
            owners.dedup();
            owners
        })
        .collect();
    assert_eq!(rounds, [vec![1, 2], vec![3, 4], vec![5]]);
}

/// Runs this number of operations, all ranks at once.
fn run(network: &mut Network, steps: u32) {
    for step in 0..steps {
        let id = OperationId { step, bucket: 0 };
        network.run(
            id,
            powers(RANKS, usize::from(RANKS) * SLOTS * SLOT),
            &at_once(RANKS),
        );
    }
}

/// A full queue before one receiver lowers its incast; all senders follow.
#[test]
fn a_full_queue_lowers_the_incast() {
    let mut network = Network::new(&Config {
        incast: IncastPolicy::Dynamic,
        ..paced(RatePolicy::Fixed)
    });
    network.switch = Some(Box::new(|header, to| {
        header.switch_flags.trimmed =
            header.step < 2 && to == 3 && header.kind == Kind::Scatter && header.slot == 7;
    }));
    let sent = Rc::new(RefCell::new(vec![Vec::new(); 5]));
    let seen = sent.clone();
    network.faults = Box::new(move |header: &Header, _| {
        if header.source == 3 && header.kind == Kind::Scatter {
            seen.borrow_mut()[header.step as usize].push(header.incast);
        }
        vec![Duration::ZERO]
    });
    run(&mut network, 5);
    let sent: Vec<u8> = sent.borrow().iter().map(|step| step[0]).collect();
    assert_eq!(sent, [0, 2, 1, 2, 3]);
}

/// Runs this number of exact operations, all ranks at once.
fn run_exact(network: &mut Network, steps: u32) {
    let values = powers(RANKS, usize::from(RANKS) * SLOTS * SLOT);
    for step in 0..steps {
        let id = OperationId { step, bucket: 0 };
        let operation = (id, Exact::Sum, Duration::from_secs(10));
        for ended in network.run_exact(operation, &values, &at_once(RANKS)) {
            let (_, sum) = ended.expect("started").expect("complete");
            assert_eq!(sum[0], f32::from((1u16 << RANKS) - 1));
        }
    }
}

/// Exact operations follow the queues of their own packets, repeats included, and nothing else.
#[test]
fn exact_operations_follow_queues() {
    let share = |policy, switch| {
        let mut network = Network::new(&paced(policy));
        network.switch = Some(switch);
        run_exact(&mut network, 3);
        let rates = network.cores.iter().map(|core| core.rate().expect("paced"));
        rates
            .map(|rate| rate as f64 / RATE as f64)
            .fold(1.0, f64::min)
    };
    let all = &[0, 1, 2, 3, 4, 5];
    assert!(share(RatePolicy::InBand, full_at(all)) < 0.5);
    assert_eq!(share(RatePolicy::InBand, full_at(&[])), 1.0);
    assert_eq!(share(RatePolicy::Fixed, full_at(all)), 1.0);
}

/// They take at least the time of their packets at the rate.
#[test]
fn exact_operations_are_paced() {
    let mut network = Network::new(&paced(RatePolicy::Fixed));
    let start = network.now;
    run_exact(&mut network, 1);
    // Contributions to all others; aggregates are sent once.
    let bits = 8 * u64::from(RANKS - 1) * SLOTS as u64 * (42 + 52 + 4 * SLOT as u64);
    let least = Duration::from_nanos(bits * 1_000_000_000 / RATE);
    assert!(network.now.since(start) >= least);
}

/// Senders follow the incast of receivers in exact operations too.
#[test]
fn exact_operations_keep_to_the_smallest_incast() {
    let mut network = Network::new(&Config {
        incast: IncastPolicy::Fixed(1),
        ..paced(RatePolicy::Fixed)
    });
    let owners = Rc::new(RefCell::new(Vec::new()));
    let seen = owners.clone();
    network.faults = Box::new(move |header: &Header, to| {
        if header.kind == Kind::Scatter && header.source == 0 && header.step == 1 {
            seen.borrow_mut().push(to);
        }
        vec![Duration::ZERO]
    });
    run_exact(&mut network, 2);
    let mut owners = owners.borrow().clone();
    owners.dedup();
    assert_eq!(owners, [1, 2, 3, 4, 5]);
}
