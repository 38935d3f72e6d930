//! Two ranks of one host: packets between them overtake packets to the group.

use std::time::Duration;

use crate::common::sent;
use ultima_host::{ClosedBy, Config, Core, Event, Gather, OperationId, Time};
use ultima_wire::{Header, Kind};

const VALUES: usize = 8 * 16;

fn core(rank: u16, colocated: &[u16], gather: Gather) -> Core {
    let config = Config {
        slot_bytes: 64,
        gather,
        colocated: colocated.to_vec(),
        ..Config::new(7, 1, rank, 2, 1, Duration::from_secs(1))
    };
    Core::new(config).expect("a configuration")
}

fn start(core: &mut Core, step: u32) {
    let id = OperationId { step, bucket: 0 };
    core.start(Time::ZERO, id, vec![1.0; VALUES])
        .expect("steps rise");
}

fn deliver(core: &mut Core, datagrams: &[Vec<u8>]) {
    for datagram in datagrams {
        core.handle_datagram(Time::ZERO, datagram);
    }
}

/// How rank 1's operation ends if what rank 0 sends next by the host overtakes rank 0's aggregates. `next` is how the next
/// operation's are delivered.
fn overtaken(colocated: [&[u16]; 2], gather: Gather, next: Gather) -> Option<ClosedBy> {
    let [mut zero, mut one] = [0, 1].map(|rank| core(rank, colocated[usize::from(rank)], gather));
    start(&mut zero, 1);
    start(&mut one, 1);
    deliver(&mut zero, &sent(&mut one));
    let is_scatter =
        |datagram: &Vec<u8>| Header::parse(datagram).is_ok_and(|(h, _)| h.kind == Kind::Scatter);
    let (contributions, aggregates): (Vec<_>, Vec<_>) =
        sent(&mut zero).into_iter().partition(is_scatter);
    assert!(contributions.len() == 4 && aggregates.len() >= 4);
    deliver(&mut one, &contributions);
    deliver(&mut zero, &sent(&mut one));
    assert!(matches!(zero.poll_event(), Some(Event::Done { .. })));

    zero.set_gather(next);
    one.set_gather(next);
    start(&mut zero, 2);
    let mut later = sent(&mut zero);
    assert!(!later.iter().all(is_scatter), "a notice follows");
    later.retain(|datagram| next == Gather::Unicast || is_scatter(datagram));
    deliver(&mut one, &later);
    deliver(&mut one, &aggregates);
    match one.poll_event() {
        Some(Event::Done { outcome, .. }) => Some(outcome.closed_by),
        _ => None,
    }
}

#[test]
fn aggregates_of_a_colocated_rank_are_awaited() {
    for next in [Gather::Multicast, Gather::Unicast] {
        assert_eq!(
            overtaken([&[1], &[0]], Gather::Multicast, next),
            Some(ClosedBy::Complete)
        );
    }
}

#[test]
fn on_a_single_path_overtaken_packets_are_lost() {
    for (colocated, gather) in [
        ([&[][..], &[]], Gather::Multicast),
        ([&[1], &[0]], Gather::Unicast),
    ] {
        assert_eq!(
            overtaken(colocated, gather, gather),
            Some(ClosedBy::KnownLoss)
        );
    }
}
