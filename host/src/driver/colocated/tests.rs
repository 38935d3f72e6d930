//! Links of ranks on one host.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::config::ReceiveBuffer;
use crate::core::{Batch, Core, Destination};
use crate::driver::udp::{UdpConfig, UdpLink};
use crate::driver::{Link, LinkCounters};
use crate::recycling::Recycling;

/// The parts of two ranks' links. Each test opens the second link after the first.
struct Pair {
    config: Config,
    sockets: [Option<UdpSocket>; 2],
    peers: Vec<SocketAddrV4>,
    batch: Batch,
    core: Core,
}

impl Pair {
    fn new() -> Self {
        let sockets = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds"));
        let peers = sockets.iter().map(|socket| match socket.local_addr() {
            Ok(SocketAddr::V4(address)) => address,
            other => panic!("an IPv4 socket: {other:?}"),
        });
        let config = Config {
            gather: Gather::Unicast,
            receive_buffer: Some(ReceiveBuffer { packets: 4 }),
            ..Config::new(1, 1, 0, 2, 7, Duration::from_secs(1))
        };
        Self {
            config: config.clone(),
            peers: peers.collect(),
            sockets: sockets.map(Some),
            batch: Batch::new(100),
            core: Core::new(config).expect("valid"),
        }
    }

    fn open(&mut self, rank: usize) -> UdpLink {
        let udp = UdpConfig {
            socket: self.sockets[rank].take().expect("once"),
            group: self.peers[0],
            peers: self.peers.clone(),
        };
        UdpLink::new(udp, &self.config).expect("sets up")
    }

    fn send(&mut self, link: &mut UdpLink, to: u16, datagram: &[u8]) {
        self.batch.add(Destination::Rank(to), datagram);
        assert!(link.send(&mut self.batch, &self.core).expect("sends"));
    }
}

/// First bytes of the datagrams that have come.
fn arrived(link: &mut UdpLink) -> Vec<u8> {
    let mut all = Vec::new();
    while link
        .receive(&mut |_, it| all.push(it[0]))
        .expect("receives")
    {}
    all
}

/// What carries a link's own datagrams, and what carried those that have come.
fn carriers(link: &mut UdpLink) -> (Carrier, Vec<Carrier>) {
    let mut all = Vec::new();
    while link.receive(&mut |by, _| all.push(by)).expect("receives") {}
    (link.carrier(), all)
}

#[test]
fn what_carries_a_datagram_is_known() {
    use Carrier::{SharedMemory, Sockets};
    let mut pair = Pair::new();
    let (mut first, other) = (pair.open(0), UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    other
        .expect("binds")
        .send_to(&[2; 80], pair.peers[0])
        .expect("sends");
    assert_eq!(carriers(&mut first), (Sockets, vec![Sockets]));
    let mut second = pair.open(1);
    arrived(&mut first);
    arrived(&mut second);
    // Until the first has read its queue, its own packets may still take both ways.
    assert_eq!(carriers(&mut first), (Sockets, vec![]));
    pair.send(&mut second, 0, &[1; 80]);
    assert_eq!(carriers(&mut first), (SharedMemory, vec![SharedMemory]));
    drop(second);
    assert_eq!(carriers(&mut first), (Sockets, vec![]));
}

fn is_readable(link: &UdpLink) -> bool {
    let mut events = [PollFd::new(link.fd(), PollFlags::POLLIN)];
    poll(&mut events, PollTimeout::ZERO).expect("polls") == 1
}

fn shares(link: &UdpLink, rank: u16) -> bool {
    link.colocated.as_ref().is_some_and(|it| it.reaches(rank))
}

#[test]
fn colocated_ranks_change_to_shared_memory_in_order() {
    let mut pair = Pair::new();
    let mut first = pair.open(0);
    pair.send(&mut first, 1, &[1; 100]);
    assert!(!shares(&first, 1), "not there yet");
    let mut second = pair.open(1);
    assert!(arrived(&mut first).is_empty());
    assert!(shares(&first, 1));
    pair.send(&mut first, 1, &[2; 90]);
    // The datagram from before, too, which came over UDP.
    assert_eq!(arrived(&mut second), [1, 2]);
    assert!(shares(&second, 0));
    assert!(first.sleep(true) && second.sleep(false), "nothing has come");
    pair.send(&mut second, 0, &[3; 80]);
    assert!(
        !first.sleep(true) && !first.sleep(false),
        "a datagram is there"
    );
    assert_eq!(arrived(&mut first), [3]);
    let start = Instant::now();
    assert!(first.sleep(true), "nothing has come");
    assert!(start.elapsed() >= YIELD, "others could run before");

    // What a rank has sent before its end arrives.
    pair.send(&mut second, 0, &[4; 80]);
    drop(second);
    assert_eq!(arrived(&mut first), [4]);
    assert!(arrived(&mut first).is_empty());
    assert!(!shares(&first, 1));
    let again = UdpSocket::bind(pair.peers[1]).expect("binds");
    pair.send(&mut first, 1, &[5; 70]);
    let mut buf = [0; 100];
    assert_eq!(again.recv(&mut buf).expect("over UDP"), 70);
    // And another process takes its place.
    pair.sockets[1] = Some(again);
    let mut second = pair.open(1);
    assert!(arrived(&mut first).is_empty());
    pair.send(&mut first, 1, &[6; 60]);
    assert_eq!(arrived(&mut second), [6]);
    assert!(shares(&first, 1));
    assert_eq!(first.counters(), LinkCounters::default());
}

#[test]
fn a_colocated_rank_that_does_not_read_loses_packets_alone() {
    let mut pair = Pair::new();
    let (mut first, mut second) = (pair.open(0), pair.open(1));
    arrived(&mut first);
    for _ in 0..10_000 {
        pair.send(&mut first, 1, &[1; 100]);
    }
    let arrived = arrived(&mut second).len();
    assert!((101..10_000).contains(&arrived), "{arrived}");
    // Errors would make jobs fail.
    assert_eq!(first.counters(), LinkCounters::default());
}

/// The old process's end and the new one's offer come together.
#[test]
fn a_restarted_rank_shares_memory_in_both_directions() {
    let mut pair = Pair::new();
    let (mut first, mut second) = (pair.open(0), pair.open(1));
    arrived(&mut first);
    arrived(&mut second);
    pair.send(&mut second, 0, &[1; 80]);
    drop(second);
    pair.sockets[1] = Some(UdpSocket::bind(pair.peers[1]).expect("binds"));
    let mut second = pair.open(1);
    assert_eq!(arrived(&mut first), [1]);
    arrived(&mut second);
    assert!(shares(&first, 1) && shares(&second, 0));
    pair.send(&mut first, 1, &[2; 80]);
    pair.send(&mut second, 0, &[3; 80]);
    let all = (arrived(&mut first), arrived(&mut second));
    assert_eq!(all, (vec![3], vec![2]));
}

#[test]
fn packets_from_udp_do_not_wait_for_queues() {
    // A rank of another host, and a switch that sends packets to the group.
    for gather in [Gather::Unicast, Gather::Multicast] {
        let mut pair = Pair::new();
        let other = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("binds");
        pair.config.gather = gather;
        match (gather, other.local_addr()) {
            (Gather::Unicast, Ok(SocketAddr::V4(address))) => {
                pair.peers.push(address);
                pair.config.ranks = 3;
            }
            _ => pair.config.colocated = vec![0, 1],
        }
        let (mut first, mut second) = (pair.open(0), pair.open(1));
        arrived(&mut first);
        arrived(&mut second);
        for round in 0..40 {
            pair.send(&mut second, 0, &[1; 80]);
            other.send_to(&[2; 80], pair.peers[0]).expect("sends");
            let mut all = Vec::new();
            first
                .receive(&mut |_, it| all.push(it[0]))
                .expect("receives");
            assert_eq!(
                all.contains(&1),
                all.contains(&2),
                "{gather:?}, round {round}"
            );
            all.extend(arrived(&mut first));
            assert_eq!(all.len(), 2);
        }
    }
}

/// A packet to the group passes a switch, and may arrive while its receiver reads queues: a batch of one, or none if it was empty.
#[test]
fn a_packet_to_the_group_does_not_overtake_those_before_it_in_the_queue() {
    let mut pair = Pair::new();
    pair.config.gather = Gather::Multicast;
    pair.config.colocated = vec![0, 1];
    pair.config.receive_buffer = Some(ReceiveBuffer { packets: 20 });
    pair.config.slot_bytes = 65_440;
    pair.batch = Batch::new(60_000);
    let switch = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let (mut first, mut second) = (pair.open(0), pair.open(1));
    for value in 1..=2 {
        arrived(&mut first);
        arrived(&mut second);
        pair.send(&mut second, 0, &[value; 60_000]);
    }
    assert!(shares(&second, 0));
    arrived(&mut first);
    // Several batches of the queue.
    let mut expected = vec![3; 15];
    (expected.iter()).for_each(|value| pair.send(&mut second, 0, &[*value; 60_000]));
    switch.send_to(&[4; 80], pair.peers[0]).expect("sends");
    expected.push(4);
    assert_eq!(arrived(&mut first), expected);
}

/// Credit grants two packets at least, and aggregates may name the counted ranks.
#[test]
fn the_smallest_windows_have_room() {
    for packets in [0, 1] {
        let mut pair = Pair::new();
        pair.config.receive_buffer = Some(ReceiveBuffer { packets });
        pair.config.recycling = Some(Recycling::default());
        pair.config.slot_bytes = 65_440;
        pair.config.validate().expect("valid");
        let (mut first, mut second) = (pair.open(0), pair.open(1));
        arrived(&mut first);
        let longest = pair.config.header_len() + pair.config.slot_bytes + pair.config.counted_len();
        pair.batch = Batch::new(longest);
        for round in 0..50 {
            let mut sent = Vec::new();
            for _ in 0..window(&pair.config) {
                for len in [longest, 60, 100 + round * 70] {
                    sent.push(len as u8);
                    pair.send(&mut first, 1, &vec![len as u8; len]);
                }
            }
            assert_eq!(arrived(&mut second), sent, "round {round} of {packets}");
        }
    }
}

/// A forked child has a copy of each descriptor, as a duplicate is.
#[test]
fn a_connection_ends_although_a_forked_child_has_it() {
    let mut pair = Pair::new();
    let (mut first, mut second) = (pair.open(0), pair.open(1));
    arrived(&mut first);
    arrived(&mut second);
    let copy = |link: &UdpLink, rank: usize| {
        let rank = &link.colocated.as_ref().expect("shares").ranks[rank];
        let (incoming, outgoing) = (rank.incoming.as_ref(), rank.outgoing.as_ref());
        [
            &incoming.expect("is there").connection,
            &outgoing.expect("is there").connection,
        ]
        .map(|it| it.socket.try_clone().expect("copies it"))
    };
    let _copies = (copy(&first, 1), copy(&second, 0));
    drop(second);
    arrived(&mut first);
    assert!(!shares(&first, 1));
    arrived(&mut first);
    assert!(!is_readable(&first));
}

/// A socket that does not listen accepts nothing and has an event, like the listener of a process without descriptors.
#[test]
fn a_listener_that_cannot_accept_is_closed() {
    let mut pair = Pair::new();
    let mut first = pair.open(0);
    let colocated = first.colocated.as_mut().expect("is there");
    let socket = unix_socket().expect("opens");
    let faulty = Watched::new(socket, LISTENER, &colocated.ready).expect("is watched");
    colocated.listener = Some(faulty);
    assert!(is_readable(&first));
    arrived(&mut first);
    assert!(!is_readable(&first));
}

/// Without [`Config::colocated`] the core does not expect that packets to the group are overtaken.
#[test]
fn memory_is_shared_only_with_ranks_that_the_core_knows() {
    let mut pair = Pair::new();
    let ask = |gather, colocated, shared_memory| {
        let config = Config {
            gather,
            colocated,
            shared_memory,
            receive_buffer: Some(ReceiveBuffer { packets: 4 }),
            ..pair.core.config().clone()
        };
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let Ok(SocketAddr::V4(own)) = socket.local_addr() else {
            panic!("an IPv4 socket");
        };
        let inbox = Inbox::open(socket, &[own, pair.peers[1]]).expect("opens");
        Colocated::of(own, &[own, pair.peers[1]], &config, inbox.fd()).is_some()
    };
    assert!(ask(Gather::Unicast, vec![], true));
    assert!(!ask(Gather::Unicast, vec![1], false));
    assert!(!ask(Gather::Multicast, vec![], true));
    assert!(ask(Gather::Multicast, vec![1], true));
    drop(pair.sockets[0].take());
}

/// A connection without a valid offer changes nothing.
#[test]
fn offers_that_make_no_sense_are_refused() {
    let mut pair = Pair::new();
    let (mut first, mut second) = (pair.open(0), pair.open(1));
    let name = name(pair.peers[0]).expect("short");
    let connections = [&b""[..], b"?", b"ultima 2", &[b'u'; 18], &[0; 19]].map(|message| {
        let connection = unix_socket().expect("opens");
        connect(connection.as_raw_fd(), &name).expect("connects");
        send(connection.as_raw_fd(), message, MsgFlags::empty()).expect("sends");
        connection
    });
    arrived(&mut first);
    drop(connections);
    pair.send(&mut first, 1, &[1; 100]);
    pair.send(&mut second, 0, &[2; 100]);
    assert_eq!(
        (arrived(&mut first), arrived(&mut second)),
        (vec![2], vec![1])
    );
    assert!(shares(&first, 1) && shares(&second, 0));
}
