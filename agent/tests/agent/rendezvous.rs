//! The rendezvous of ranks on loopback.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use ultima_agent::meet;
use ultima_host::{Collective, Config, Gather, UdpConfig};
use ultima_wire::{UDP_PORT, group_address};

const RANKS: u16 = 3;

/// Runs the rendezvous of the ranks `present`. Each opens its socket `apart` after the one before. Returns
/// the ranks that each misses.
fn meetings(present: &[u16], apart: Duration, bound: Duration) -> Vec<Vec<u16>> {
    // An address that only these tests use.
    let bind = || UdpSocket::bind((Ipv4Addr::new(127, 85, 4, 1), 0)).expect("binds");
    let address = |socket: &UdpSocket| match socket.local_addr() {
        Ok(SocketAddr::V4(address)) => address,
        other => panic!("an IPv4 socket: {other:?}"),
    };
    // Ports that were free a moment ago.
    let peers: Vec<SocketAddrV4> = {
        let sockets: Vec<UdpSocket> = (0..RANKS).map(|_| bind()).collect();
        sockets.iter().map(address).collect()
    };
    let meeting = |(late, rank): (u32, u16)| {
        let peers = peers.clone();
        thread::spawn(move || {
            thread::sleep(apart * late);
            let config = Config {
                gather: Gather::Unicast,
                ..Config::new(7, 1, rank, RANKS, 1, Duration::from_secs(1))
            };
            let udp = UdpConfig {
                socket: UdpSocket::bind(peers[usize::from(rank)]).expect("binds"),
                peers,
                group: SocketAddrV4::new(group_address(7), UDP_PORT),
            };
            let collective = Collective::over_udp(config, udp).expect("starts");
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
