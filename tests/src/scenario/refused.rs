//! Forged packets: each differs from an admitted one in one field.

use std::net::{Ipv4Addr, SocketAddrV4};

use pnet::packet::ip::IpNextHeaderProtocols;
use pnet::packet::ipv4::Ipv4Flags;
use ultima_wire::{Header, Kind};

use super::{Scenario, Scene, UNKNOWN_JOB};
use crate::generator::{Datagram, Ipv4};
use crate::testbed::plain;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        admitted(scene),
        wrong_port(scene),
        wrong_header(scene),
        unknown_job(scene),
        wrong_source_address(scene),
        not_to_a_member(scene),
        wrong_lengths(scene),
        fragments(scene),
        fragments_that_hide_ultima(scene),
        fragments_of_others(scene),
        no_time_to_live(scene),
    ]
}

/// The admitted packets.
fn genuine(scene: Scene<'_>) -> [Datagram; 2] {
    [
        scene.left.scatter(2, 0, b"data"),
        scene.left.gather(2, b"data"),
    ]
}

fn admitted(scene: Scene<'_>) -> Scenario {
    let [scatter, gather] = genuine(scene);
    Scenario::new("the packets are admitted before they are forged")
        .unicast(scene, scene.left, 2, 0, &scatter)
        .multicast(scene, scene.left, 2, &gather)
}

fn wrong_port(scene: Scene<'_>) -> Scenario {
    let other_hosts = scene
        .fabric
        .host_ids()
        .filter(|host| *host != scene.left.host_of(2));
    other_hosts.fold(Scenario::new("wrong ingress port"), |scenario, host| {
        genuine(scene).into_iter().fold(scenario, |scenario, sent| {
            scenario.rejected(host, sent.emit(), scene.left.counter)
        })
    })
}

fn wrong_header(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let forgeries: [fn(&mut Header); 8] = [
        |header| header.epoch += 1,
        |header| header.epoch -= 1,
        |header| header.epoch = 0,
        |header| header.source = 0,
        |header| header.source = 3,
        // A rank that the job does not have, and two reserved ones: no rank, and the RID of a trunk.
        |header| header.source = 4,
        |header| header.source = 0x7fff,
        |header| header.source = 0xffff,
    ];
    forgeries
        .into_iter()
        .fold(Scenario::new("wrong epoch or rank"), |scenario, forge| {
            let [scatter, gather] = genuine(scene);
            let mut headers = [
                left.header(Kind::Scatter, 2, 0),
                left.header(Kind::Gather, 2, 2),
            ];
            headers.iter_mut().for_each(forge);
            scenario
                .rejected(
                    left.host_of(2),
                    scatter.with_header(&headers[0]).emit(),
                    left.counter,
                )
                .rejected(
                    left.host_of(2),
                    gather.with_header(&headers[1]).emit(),
                    left.counter,
                )
        })
}

/// The number of an unknown job, which is counted for no job.
fn unknown_job(scene: Scene<'_>) -> Scenario {
    let known = [scene.left.id, scene.right.id];
    let unknown = [0, 0x1234, 0xffff]
        .into_iter()
        .filter(|id| !known.contains(id));
    unknown.fold(Scenario::new("unknown job"), |scenario, job| {
        let header = Header {
            job,
            ..scene.left.header(Kind::Gather, 2, 2)
        };
        genuine(scene).into_iter().fold(scenario, |scenario, sent| {
            let frame = sent.with_header(&header).emit();
            scenario.rejected(scene.left.host_of(2), frame, UNKNOWN_JOB)
        })
    })
}

fn wrong_source_address(scene: Scene<'_>) -> Scenario {
    let others = [
        scene.fabric.hosts[0].ip,
        Ipv4Addr::new(10, 0, 0, 99),
        Ipv4Addr::UNSPECIFIED,
    ];
    others
        .into_iter()
        .fold(Scenario::new("wrong source address"), |scenario, ip| {
            genuine(scene).into_iter().fold(scenario, |scenario, sent| {
                let forged = Datagram {
                    src: SocketAddrV4::new(ip, sent.src.port()),
                    ..sent
                };
                scenario.rejected(scene.left.host_of(2), forged.emit(), scene.left.counter)
            })
        })
}

/// Unicast to a host without a rank, to no host, and to a wrong port of a member's host.
fn not_to_a_member(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let [scatter, _] = genuine(scene);
    let member = left.members[0].address;
    let destinations = [
        SocketAddrV4::new(scene.fabric.hosts[3].ip, member.port()),
        SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), member.port()),
        SocketAddrV4::new(*member.ip(), member.port() + 100),
        SocketAddrV4::new(*member.ip(), 53),
        SocketAddrV4::new(Ipv4Addr::BROADCAST, member.port()),
    ];
    destinations
        .into_iter()
        .fold(Scenario::new("unicast to no member"), |scenario, dst| {
            let forged = Datagram {
                dst,
                ..scatter.clone()
            };
            scenario.rejected(left.host_of(2), forged.emit(), left.counter)
        })
}

/// The length of UDP is larger or smaller than that of IPv4.
fn wrong_lengths(scene: Scene<'_>) -> Scenario {
    let errors = [-64, -12, -5, -1, 1, 2, 1000, i16::MAX];
    errors.into_iter().fold(
        Scenario::new("a UDP length that is not IPv4's"),
        |scenario, length_error| {
            genuine(scene).into_iter().fold(scenario, |scenario, sent| {
                let forged = Datagram {
                    length_error,
                    ..sent
                };
                scenario.rejected(scene.left.host_of(2), forged.emit(), scene.left.counter)
            })
        },
    )
}

/// The fragment of a packet that carries these bytes of its payload.
fn fragment(packet: &Ipv4, from: usize, to: usize) -> Ipv4 {
    let more = to < packet.payload.len();
    Ipv4 {
        flags: if more { Ipv4Flags::MoreFragments } else { 0 },
        fragment_offset: u16::try_from(from / 8).expect("offsets are small"),
        payload: packet.payload[from..to].to_vec(),
        ..packet.clone()
    }
}

/// The switch rejects the first fragment: later ones could change its content. It forwards a later fragment, which has no UDP
/// header and cannot be reassembled without the first.
fn fragments(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let [scatter, gather] = genuine(scene).map(|sent| sent.packet());
    let (from, to) = (left.host_of(2), left.host_of(0));
    // The first 8 bytes of the Ultima header, the header without its end, and the whole header.
    let firsts = [(16, UNKNOWN_JOB), (56, UNKNOWN_JOB), (60, left.counter)];
    let scenario = firsts
        .into_iter()
        .fold(Scenario::new("fragments"), |scenario, (end, job)| {
            scenario
                .rejected(from, fragment(&scatter, 0, end).emit(), job)
                .rejected(from, fragment(&gather, 0, end).emit(), job)
        });
    let later = [(16, scatter.payload.len()), (16, 24), (56, 60)];
    let scenario = later.into_iter().fold(scenario, |scenario, (start, end)| {
        scenario.forwarded(scene, from, to, &fragment(&scatter, start, end))
    });
    scenario.unrouted(scene, from, fragment(&gather, 16, 24).emit())
}

/// No fragment may hide Ultima's magic: neither a first one that ends before it, nor a later one that starts with it, which
/// could complete or overwrite a first one.
fn fragments_that_hide_ultima(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let from = left.host_of(2);
    let packets = genuine(scene).map(|sent| sent.packet());
    let scenario = packets.iter().fold(
        Scenario::new("fragments that hide Ultima's magic"),
        |scenario, packet| {
            let whole = packet.payload.len();
            // A fragment's length is a multiple of 8 bytes (RFC 791), but some receivers round down.
            let firsts = (0..16).map(|end| (0, end));
            let seconds = [9, 15, 16, 24, whole].map(|end| (8, end));
            firsts
                .chain(seconds)
                .fold(scenario, |scenario, (start, end)| {
                    scenario.malformed(scene, from, fragment(packet, start, end).emit())
                })
        },
    );
    // The frame's padding is not part of the fragment.
    let [scatter, _] = &packets;
    let mut filled = fragment(scatter, 0, 8).emit();
    filled.extend_from_slice(&[0; 18]);
    scenario.malformed(scene, from, filled)
}

/// Fragments of other UDP packets that show their first bytes are forwarded, as are fragments of other protocols.
fn fragments_of_others(scene: Scene<'_>) -> Scenario {
    let (from, to) = (scene.left.host_of(2), scene.left.host_of(0));
    let packet = plain(scene.fabric, from, to, 5001, vec![7; 40]).packet();
    let parts = [(0, 16), (16, 24), (24, 48)];
    let scenario = parts.into_iter().fold(
        Scenario::new("fragments of plain UDP"),
        |scenario, (start, end)| {
            scenario.forwarded(scene, from, to, &fragment(&packet, start, end))
        },
    );
    let echo = Ipv4 {
        protocol: IpNextHeaderProtocols::Icmp,
        ..packet
    };
    [(0, 8), (8, 16), (16, 48)]
        .into_iter()
        .fold(scenario, |scenario, (start, end)| {
            scenario.forwarded(scene, from, to, &fragment(&echo, start, end))
        })
}

/// An admitted packet without time to live is neither replicated nor routed.
fn no_time_to_live(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let from = left.host_of(2);
    [0, 1]
        .into_iter()
        .fold(Scenario::new("TTL 0 and 1"), |scenario, ttl| {
            let [scatter, gather] = genuine(scene).map(|sent| Datagram { ttl, ..sent }.emit());
            scenario
                .admitted_unrouted(scene, left, from, scatter)
                .admitted_unrouted(scene, left, from, gather)
        })
}
