//! The whole switch: frames in and out of virtual ports, entries over P4Runtime, port statistics.

use std::time::Duration;

use crate::served::common::{
    Controller, Peer, Testbed, accounted, base_config, group, number, packets, pipeline_config,
    probe, program,
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use pcap_file::pcap::PcapReader;
use ultima_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use ultima_switch::stats::StatsKey;
use ultima_switch::{Attach, Loss, PortConfig, ProgramFiles, Switch, SwitchConfig, WireConfig};

const A: u64 = 0x0200_0000_0001;
const B: u64 = 0x0200_0000_0002;
const ALL: u64 = 0x0300_0000_0001;

#[tokio::test]
async fn a_frame_leaves_at_the_port_of_its_entry() {
    let testbed = Testbed::new(3).await;
    let mut controller = testbed.controller().await;
    controller
        .insert(vec![
            testbed.unicast(A, 2).into(),
            testbed.unicast(B, 3).into(),
        ])
        .await;
    let unknown = probe(ALL, 0, 1, 100);
    testbed.peers[&1].send(&unknown);
    let to_a = probe(A, 0, 2, 1400);
    testbed.peers[&1].send(&to_a);
    let to_b = probe(B, 0, 3, 19);
    testbed.peers[&2].send(&to_b);
    assert_eq!(
        testbed.peers[&2].receive(),
        to_a,
        "the frame to an unknown address was dropped, not delayed"
    );
    assert_eq!(testbed.peers[&3].receive(), to_b);
    let port = testbed.port(1).await;
    assert_eq!(accounted(&port), (2, 0));
    assert_eq!(
        (packets(&port.forwarded), packets(&port.ingress_program)),
        (1, 1)
    );
    assert_eq!(accounted(&testbed.port(2).await), (1, 1));
    let received = testbed
        .names
        .counter("IngressPipe.received")
        .expect("counter")
        .cells();
    assert_eq!(
        controller.counter(received).await,
        [(1, 2, 1500), (2, 1, 19)]
    );
    testbed.switch.stop().await.expect("stops");
}

#[tokio::test]
async fn each_replica_gets_one_copy_and_egress_sees_its_rid() {
    let testbed = Testbed::new(4).await;
    let mut controller = testbed.controller().await;
    let copies = [(1, 1), (2, 2), (3, 3), (3, 4), (4, 5), (200, 9)];
    controller
        .insert(vec![
            group(5, &copies),
            testbed.flood(ALL, 5).into(),
            testbed.replica(1, "EgressPipe.discard", &[]).into(),
            testbed
                .replica(2, "EgressPipe.readdress", &[("dst", A.into())])
                .into(),
            testbed
                .replica(5, "EgressPipe.cut", &[("length", 64u32.into())])
                .into(),
        ])
        .await;
    let frame = probe(ALL, 0, 77, 1000);
    testbed.peers[&1].send(&frame);
    assert_eq!(testbed.peers[&2].receive(), probe(A, 0, 77, 1000));
    assert_eq!(
        (testbed.peers[&3].receive(), testbed.peers[&3].receive()),
        (frame.clone(), frame.clone())
    );
    assert_eq!(testbed.peers[&4].receive(), frame[..64]);
    let statistics = testbed.statistics().await;
    let ordered: u64 = statistics.ports.iter().map(|port| accounted(port).1).sum();
    assert_eq!(ordered, 5);
    assert_eq!(packets(&statistics.unattached), 1, "there is no port 200");
    let own = &statistics.ports[0];
    assert_eq!(
        packets(&own.drops.as_ref().expect("drops").egress_program),
        1
    );
    let truncated = statistics.ports[3].clone();
    assert_eq!(truncated.ordered.expect("ordered").bytes, 1000);
    assert_eq!(truncated.left.expect("left").bytes, 64);
}

#[tokio::test]
async fn copies_beyond_the_limits_are_counted_across_programs() {
    let copies = ProgramFiles {
        json: include_bytes!("../programs/copies.json").to_vec(),
        p4info: Some(include_str!("../programs/copies.p4info.txtpb").to_owned()),
    };
    let testbed =
        Testbed::with_program(base_config(), copies, vec![WireConfig::default(); 2]).await;
    // To port 2, with more passes than the limit.
    let orders = |order| [order, 255, 0, 2, 0, 0, 0, 5];
    let (resubmit, recirculate) = (orders(4), orders(21));
    testbed.peers[&1].send(&resubmit);
    let port = testbed.until_entered(1, 1).await;
    assert_eq!(packets(&port.ingress_program), 1);
    assert_eq!(testbed.statistics().await.over_limit, 1);
    testbed.peers[&1].send(&recirculate);
    // The first pass and sixteen more.
    let port = testbed.until_drained(2, 17).await;
    let drops = port.drops.expect("drops");
    assert_eq!(packets(&drops.recirculated), 17);
    assert_eq!(testbed.statistics().await.over_limit, 2);
    let mut controller = testbed.controller().await;
    controller
        .set_pipeline(Action::VerifyAndCommit, Some(pipeline_config()))
        .await
        .expect("another program");
    assert_eq!(testbed.statistics().await.over_limit, 2);
}

#[tokio::test]
async fn no_frame_for_a_slow_peer_is_dropped_until_the_queue_is_full() {
    let wires = vec![
        WireConfig::default(),
        WireConfig {
            queue_bytes: 1_000_000,
            ..WireConfig::default()
        },
    ];
    let testbed = Testbed::with_wires(base_config(), wires).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    // Enough to fill the queue, the wire and the socket buffers, whose size depends on the kernel.
    let sent: u32 = 8000;
    for n in 0..sent {
        testbed.peers[&1].send(&probe(A, 0, n, 1400));
    }
    // Port 2's peer has not received yet.
    let port = loop {
        let port = testbed.port(2).await;
        if accounted(&port).1 == u64::from(sent) {
            break port;
        }
    };
    let dropped = packets(&port.drops.as_ref().expect("drops").queue);
    assert!(
        dropped > 0 && packets(&port.queued) > 0 && packets(&port.in_flight) > 0,
        "{port:?}"
    );
    assert_eq!(packets(&port.queued), 1_000_000 / 1400, "the queue is full");
    let expected = u64::from(sent) - dropped;
    let mut last = None;
    for _ in 0..expected {
        let n = number(&testbed.peers[&2].receive());
        assert!(last.is_none_or(|last| last < n), "order is kept");
        last = Some(n);
    }
    // The peer may receive a frame before the switch counts it. The next frame comes after the count.
    testbed.peers[&1].send(&probe(A, 0, sent, 19));
    assert_eq!(number(&testbed.peers[&2].receive()), sent);
    let port = testbed.until_drained(2, u64::from(sent) + 1).await;
    assert_eq!(packets(&port.left), expected + 1);
}

/// Sends numbered frames over a lossy wire. Returns the numbers that arrive, and the losses of each kind.
async fn losses(seed: u64, loss: Vec<Loss>) -> (Vec<u32>, Vec<(u32, u64)>) {
    let config = SwitchConfig {
        seed,
        stats_key: Some(StatsKey {
            offset: 14,
            mask: 0x0f,
        }),
        ..base_config()
    };
    let wires = vec![
        WireConfig::default(),
        WireConfig {
            loss,
            ..WireConfig::default()
        },
    ];
    let testbed = Testbed::with_wires(config, wires).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    for n in 0..400u32 {
        testbed.peers[&1].send(&probe(A, 0x10 | (n % 2) as u8, n, 100));
    }
    let port = testbed.until_drained(2, 400).await;
    let arrived = (0..packets(&port.left))
        .map(|_| number(&testbed.peers[&2].receive()))
        .collect();
    let wire = port.drops.expect("drops").wire.expect("wire");
    let by_kind: Vec<_> = wire
        .by_key
        .iter()
        .map(|key| (key.key, key.packets))
        .collect();
    assert_eq!(by_kind.iter().map(|(_, n)| n).sum::<u64>(), wire.packets);
    (arrived, by_kind)
}

#[tokio::test]
async fn two_switches_with_one_seed_lose_the_same_frames() {
    let bursts: Vec<Loss> = vec!["0.2:4".parse().expect("valid")];
    let first = losses(11, bursts.clone()).await;
    assert!(first.0.len() < 400 && !first.0.is_empty());
    assert_eq!(first, losses(11, bursts.clone()).await);
    assert_ne!(first.0, losses(12, bursts).await.0);
}

#[tokio::test]
async fn a_field_selects_the_lost_frames_and_losses_are_counted_by_key() {
    let field = Loss::Field {
        offset: 15,
        bytes: 4,
        range: 100..200,
    };
    let (arrived, by_kind) = losses(1, vec![field]).await;
    assert_eq!(arrived, (0..100).chain(200..400).collect::<Vec<_>>());
    assert_eq!(by_kind, [(0, 50), (1, 50)]);
}

#[tokio::test]
async fn delay_and_rate_keep_all_frames_in_order() {
    let wire = WireConfig {
        rate: Some(100_000_000),
        delay: Duration::from_millis(2),
        ..WireConfig::default()
    };
    let testbed = Testbed::with_wires(base_config(), vec![WireConfig::default(), wire]).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    let start = std::time::Instant::now();
    for n in 0..100 {
        testbed.peers[&1].send(&probe(A, 0, n, 1250));
    }
    for n in 0..100 {
        assert_eq!(number(&testbed.peers[&2].receive()), n);
    }
    // 100 × 1250 bytes at 100 Mbit/s take 10 ms, and the delay is 2 ms. A slow machine only adds to it.
    assert!(
        start.elapsed() >= Duration::from_millis(12),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn an_ingress_clone_goes_to_its_session() {
    let testbed = Testbed::new(3).await;
    let mut controller = testbed.controller().await;
    let session = ultima_p4runtime::v1::CloneSessionEntry {
        packet_length_bytes: 30,
        ..ultima_p4runtime::replication::clone_session(
            3,
            [ultima_p4runtime::replication::Replica {
                port: 3,
                instance: 0,
            }],
        )
        .expect("a session")
    };
    let acl = testbed.names.table("IngressPipe.acl").expect("table");
    let mirror = acl
        .entry()
        .range("hdr.ethernet.type", 0x88b5u16, 0x88b5u16)
        .expect("key")
        .priority(1)
        .action("IngressPipe.mirror", &[("session", 3u32.into())])
        .expect("action")
        .build()
        .expect("entry");
    controller
        .insert(vec![
            session.into(),
            mirror.into(),
            testbed.unicast(A, 2).into(),
        ])
        .await;
    let frame = probe(A, 0, 5, 200);
    testbed.peers[&1].send(&frame);
    assert_eq!(testbed.peers[&2].receive(), frame);
    assert_eq!(testbed.peers[&3].receive(), frame[..30]);
}

#[tokio::test]
async fn a_listening_port_serves_one_peer_after_the_other() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("p2.sock");
    let (ours, one) = Peer::pair();
    let port = |number, attach| PortConfig {
        number,
        attach,
        wire: WireConfig::default(),
    };
    let config = SwitchConfig {
        program: Some(program()),
        ports: vec![
            port(1, Attach::Socket(ours.into())),
            port(2, Attach::Unix(path.clone())),
        ],
        ..base_config()
    };
    let switch = Switch::start(config).await.expect("starts");
    let testbed = Testbed {
        switch,
        peers: [(1, one)].into(),
        names: crate::served::common::names(),
    };
    testbed
        .controller()
        .await
        .insert(vec![
            testbed.unicast(A, 2).into(),
            testbed.unicast(B, 1).into(),
        ])
        .await;
    let dial = || {
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .expect("socket");
        let address = UnixAddr::new(&path).expect("address");
        connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).expect("connects");
        Peer::new(socket)
    };
    // A frame for a port without a peer is dropped and counted.
    testbed.peers[&1].send(&probe(A, 0, 1, 60));
    let port = testbed.until_drained(2, 1).await;
    assert!(!port.connected);
    assert_eq!(packets(&port.drops.expect("drops").no_peer), 1);
    assert_eq!(port.attachment, format!("unix:{}", path.display()));
    let first = dial();
    let second = dial();
    // The second peer waits. Its frames arrive after the first peer leaves.
    second.send(&probe(B, 0, 3, 60));
    first.send(&probe(B, 0, 2, 60));
    assert_eq!(number(&testbed.peers[&1].receive()), 2);
    testbed.peers[&1].send(&probe(A, 0, 4, 60));
    assert_eq!(number(&first.receive()), 4);
    drop(first);
    assert_eq!(number(&testbed.peers[&1].receive()), 3);
    testbed.peers[&1].send(&probe(A, 0, 5, 60));
    assert_eq!(number(&second.receive()), 5);
    testbed.switch.stop().await.expect("stops");
    assert!(!path.exists(), "the switch removes its socket file");
}

#[tokio::test]
async fn oversized_and_empty_messages_are_counted() {
    let testbed = Testbed::new(2).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    let long = probe(A, 0, 1, 65_536);
    testbed.peers[&1].send(&long);
    testbed.peers[&1].send(&[]);
    testbed.peers[&1].send(&[2]);
    testbed.peers[&1].send(&long[..65_535]);
    assert_eq!(
        testbed.peers[&2].receive(),
        long[..65_535],
        "the longest frame passes"
    );
    let port = testbed.port(1).await;
    assert_eq!(accounted(&port).0, 4);
    assert_eq!(
        (packets(&port.too_long), packets(&port.ingress_program)),
        (1, 2)
    );
    assert!(
        port.connected,
        "an empty message does not end the connection"
    );
}

#[tokio::test]
async fn messages_of_a_peer_that_has_left_are_received_despite_empty_ones() {
    let (ours, peer) = Peer::pair();
    // More than the switch reads at once.
    for _ in 0..100 {
        peer.send(&[]);
    }
    peer.send(&probe(A, 0, 1, 60));
    peer.send(&[]);
    drop(peer);
    let config = SwitchConfig {
        ports: vec![PortConfig {
            number: 1,
            attach: Attach::Socket(ours.into()),
            wire: WireConfig::default(),
        }],
        ..base_config()
    };
    let testbed = Testbed {
        switch: Switch::start(config).await.expect("starts"),
        peers: [].into(),
        names: crate::served::common::names(),
    };
    while testbed.port(1).await.connected {}
    let entered = testbed.port(1).await.entered.expect("counted");
    assert_eq!((entered.packets, entered.bytes), (102, 60));
}

#[tokio::test]
async fn random_numbers_of_a_program_follow_the_seed() {
    let drawn = async |seed| {
        let program = ProgramFiles {
            json: include_bytes!("../programs/copies.json").to_vec(),
            p4info: Some(include_str!("../programs/copies.p4info.txtpb").to_owned()),
        };
        let config = SwitchConfig {
            seed,
            ..base_config()
        };
        let testbed = Testbed::with_program(config, program, vec![WireConfig::default(); 2]).await;
        let draw = || {
            // Order 9: a random number from 10 to 19, sent to port 2.
            testbed.peers[&1].send(&[9, 0, 0, 2, 0, 0, 0, 0, 1, 2, 3]);
            testbed.peers[&2].receive()[7]
        };
        (0..30).map(|_| draw()).collect::<Vec<u8>>()
    };
    let first = drawn(1).await;
    assert_eq!(first, drawn(1).await);
    assert_ne!(first, drawn(2).await);
}

#[tokio::test]
async fn captures_hold_the_frames_of_each_port() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let pcaps = dir.path().join("new");
    let config = SwitchConfig {
        pcap_dir: Some(pcaps.clone()),
        ..base_config()
    };
    let testbed = Testbed::with_wires(config, vec![WireConfig::default(); 2]).await;
    testbed
        .controller()
        .await
        .insert(vec![testbed.unicast(A, 2).into()])
        .await;
    let frames: Vec<_> = (0..5).map(|n| probe(A, 0, n, 60)).collect();
    for frame in &frames {
        testbed.peers[&1].send(frame);
        assert_eq!(testbed.peers[&2].receive(), *frame);
    }
    testbed.switch.stop().await.expect("stops");
    let read = |name: &str| {
        let file = std::fs::File::open(pcaps.join(name)).expect("a capture");
        let mut reader = PcapReader::new(file).expect("pcap");
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            frames.push(packet.expect("a packet").data.into_owned());
        }
        frames
    };
    assert_eq!(read("1_in.pcap"), frames);
    assert_eq!(read("2_out.pcap"), frames);
    assert!(read("1_out.pcap").is_empty() && read("2_in.pcap").is_empty());
}

#[tokio::test]
async fn without_a_program_frames_are_counted_and_dropped() {
    let (ours, peer) = Peer::pair();
    let port = PortConfig {
        number: 1,
        attach: Attach::Socket(ours.into()),
        wire: WireConfig::default(),
    };
    let config = SwitchConfig {
        ports: vec![port],
        ..base_config()
    };
    let switch = Switch::start(config).await.expect("starts");
    let testbed = Testbed {
        switch,
        peers: [(1, peer)].into(),
        names: crate::served::common::names(),
    };
    testbed.peers[&1].send(&probe(A, 0, 1, 60));
    let port = testbed.until_entered(1, 1).await;
    assert_eq!(packets(&port.no_program), 1);
    let mut controller = Controller::primary(testbed.switch.grpc_addr(), 1).await;
    let error = controller.write(Vec::new()).await.expect_err("no program");
    assert_eq!(error.code(), tonic::Code::FailedPrecondition);
}
