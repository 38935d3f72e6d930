//! The rendezvous of ranks on loopback.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use ultima_agent::meet;
use ultima_host::{Collective, Config, Gather, UdpConfig};
use ultima_wire::{UDP_PORT, group_address};

const RANKS: u16 = 3;

/// Addresses of the ranks, whose ports were free a moment ago.
fn addresses() -> Vec<SocketAddrV4> {
    // An address that only these tests use.
    let bind = || UdpSocket::bind((Ipv4Addr::new(127, 85, 4, 1), 0)).expect("binds");
    let address = |socket: &UdpSocket| match socket.local_addr() {
        Ok(SocketAddr::V4(address)) => address,
        other => panic!("an IPv4 socket: {other:?}"),
    };
    let sockets: Vec<UdpSocket> = (0..RANKS).map(|_| bind()).collect();
    sockets.iter().map(address).collect()
}

fn open(rank: u16, peers: Vec<SocketAddrV4>) -> Collective {
    let config = Config {
        gather: Gather::Unicast,
        ..Config::new(7, 1, rank, RANKS, 1, Duration::from_secs(1))
    };
    let udp = UdpConfig {
        socket: UdpSocket::bind(peers[usize::from(rank)]).expect("binds"),
        peers,
        group: SocketAddrV4::new(group_address(7), UDP_PORT),
    };
    Collective::over_udp(config, udp).expect("starts")
}

/// Runs the rendezvous of the ranks `present`. Each opens its socket `apart` after the one before. Returns
/// the ranks that each misses.
fn meetings(present: &[u16], apart: Duration, bound: Duration) -> Vec<Vec<u16>> {
    let peers = addresses();
    let meeting = |(late, rank): (u32, u16)| {
        let peers = peers.clone();
        thread::spawn(move || {
            thread::sleep(apart * late);
            let collective = open(rank, peers);
            let missed = meet(&collective.prober(), rank, RANKS, bound).expect("it runs");
            collective
                .finish(Duration::from_millis(50))
                .expect("it runs");
            missed
        })
    };
    let meetings: Vec<_> = (0..).zip(present.iter().copied()).map(meeting).collect();
    meetings
        .into_iter()
        .map(|m| m.join().expect("no panic"))
        .collect()
}

#[test]
fn all_meet_although_some_come_later() {
    let met = meetings(
        &[0, 1, 2],
        Duration::from_millis(30),
        Duration::from_secs(20),
    );
    assert!(met.iter().all(Vec::is_empty), "{met:?}");
}

#[test]
fn absent_ranks_are_named() {
    let met = meetings(&[0, 2], Duration::ZERO, Duration::from_millis(300));
    assert_eq!(met, [[1], [1]]);
}

/// Rank 0 has lost all packets of the others until they had met it, as another start of it has.
#[test]
fn a_rank_that_missed_the_others_still_meets_them() {
    let peers = addresses();
    let bound = Duration::from_secs(20);
    let others = [1, 2].map(|rank| (rank, open(rank, peers.clone())));
    let first = open(0, peers.clone());
    let met: Vec<Vec<u16>> = thread::scope(|scope| {
        let meet = |(rank, collective): (u16, &Collective)| {
            let prober = collective.prober();
            scope.spawn(move || meet(&prober, rank, RANKS, bound).expect("it runs"))
        };
        let all = [meet((0, &first))].into_iter();
        let all: Vec<_> = all
            .chain(others.iter().map(|(rank, it)| meet((*rank, it))))
            .collect();
        all.into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect()
    });
    assert!(met.iter().all(Vec::is_empty), "{met:?}");
    first.finish(Duration::ZERO).expect("it runs");
    let again = open(0, peers);
    let missed = meet(&again.prober(), 0, RANKS, bound).expect("it runs");
    assert!(missed.is_empty(), "{missed:?}");
}
