//! Packets that are not Ultima's: forwarded, answered, or dropped.

use std::net::Ipv4Addr;

use pnet::packet::arp::ArpOperations;
use pnet::packet::icmp::echo_request::MutableEchoRequestPacket;
use pnet::packet::icmp::{self, IcmpPacket, IcmpTypes};
use pnet::packet::ip::{IpNextHeaderProtocol, IpNextHeaderProtocols};
use pnet::packet::tcp::{self, MutableTcpPacket, TcpFlags};
use pnet::util::MacAddr;

use super::{Scenario, Scene};
use crate::fabric::HostId;
use crate::generator::{Arp, Datagram, Ipv4, UdpChecksum};
use crate::testbed::plain;

const FROM: HostId = HostId(1);
const TO: HostId = HostId(3);

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        between_all_hosts(scene),
        udp(scene),
        tcp_and_icmp(scene),
        almost_ultima(scene),
        jumbo(scene),
        no_route(scene),
        not_ipv4(scene),
        options(scene),
        bad_header(scene),
        arp(scene),
    ]
}

fn datagram(scene: Scene<'_>, payload: &[u8]) -> Datagram {
    plain(scene.fabric, FROM, TO, 53, payload.to_vec())
}

fn between_all_hosts(scene: Scene<'_>) -> Scenario {
    let fabric = scene.fabric;
    let pairs = fabric
        .host_ids()
        .flat_map(|from| fabric.host_ids().map(move |to| (from, to)));
    pairs.fold(
        Scenario::new("plain UDP between all hosts"),
        |scenario, (from, to)| {
            let sent = plain(fabric, from, to, 5001, b"ping".to_vec());
            scenario.forwarded(scene, from, to, &sent.packet())
        },
    )
}

/// A switch ignores a wrong UDP checksum and a wrong UDP length.
fn udp(scene: Scene<'_>) -> Scenario {
    let sent = datagram(scene, b"question");
    let variants = [
        Datagram {
            checksum: UdpChecksum::None,
            ..sent.clone()
        },
        Datagram {
            checksum: UdpChecksum::OffBy(1),
            ..sent.clone()
        },
        Datagram {
            length_error: 3,
            ..sent.clone()
        },
        Datagram {
            ttl: 2,
            ..sent.clone()
        },
        Datagram {
            payload: vec![],
            ..sent
        },
    ];
    variants
        .into_iter()
        .fold(Scenario::new("plain UDP"), |scenario, sent| {
            scenario.forwarded(scene, FROM, TO, &sent.packet())
        })
}

fn tcp_and_icmp(scene: Scene<'_>) -> Scenario {
    let carrier = datagram(scene, b"").packet();
    let carry = |protocol: IpNextHeaderProtocol, payload: Vec<u8>| Ipv4 {
        protocol,
        payload,
        ..carrier.clone()
    };

    let mut segment = vec![0; MutableTcpPacket::minimum_packet_size()];
    let mut syn = MutableTcpPacket::new(&mut segment).expect("room is made above");
    syn.set_source(40_000);
    syn.set_destination(80);
    syn.set_sequence(0x554c_1234);
    syn.set_data_offset(5);
    syn.set_flags(TcpFlags::SYN);
    syn.set_window(65_535);
    let checksum = tcp::ipv4_checksum(&syn.to_immutable(), &carrier.src, &carrier.dst);
    syn.set_checksum(checksum);

    let mut message = vec![0; MutableEchoRequestPacket::minimum_packet_size() + 5];
    let mut echo = MutableEchoRequestPacket::new(&mut message).expect("room is made above");
    echo.set_icmp_type(IcmpTypes::EchoRequest);
    echo.set_identifier(7);
    echo.set_payload(b"hello");
    let checksum = icmp::checksum(&IcmpPacket::new(&message).expect("room is made above"));
    MutableEchoRequestPacket::new(&mut message)
        .expect("room is made above")
        .set_checksum(checksum);

    Scenario::new("TCP, ICMP and unknown protocols")
        .forwarded(scene, FROM, TO, &carry(IpNextHeaderProtocols::Tcp, segment))
        .forwarded(
            scene,
            FROM,
            TO,
            &carry(IpNextHeaderProtocols::Icmp, message),
        )
        .forwarded(
            scene,
            FROM,
            TO,
            &carry(IpNextHeaderProtocols::Test1, b"anything".to_vec()),
        )
        .forwarded(
            scene,
            FROM,
            TO,
            &carry(IpNextHeaderProtocols::Test2, vec![]),
        )
}

/// A packet with another version or magic, or not over UDP, is plain traffic.
fn almost_ultima(scene: Scene<'_>) -> Scenario {
    let sent = scene.left.scatter(2, 0, b"data");
    let with_byte = |at: usize, value: u8| {
        let mut changed = sent.clone();
        changed.payload[at] = value;
        changed
    };
    let (from, to) = (scene.left.host_of(2), scene.left.host_of(0));
    let over_tcp = Ipv4 {
        protocol: IpNextHeaderProtocols::Tcp,
        ..sent.packet()
    };
    Scenario::new("another version, another magic, another protocol")
        .forwarded(scene, from, to, &with_byte(2, 0x21).packet())
        .forwarded(scene, from, to, &with_byte(2, 0x01).packet())
        .forwarded(scene, from, to, &with_byte(2, 0xf1).packet())
        .forwarded(scene, from, to, &with_byte(0, 0x54).packet())
        .forwarded(scene, from, to, &with_byte(1, 0x4d).packet())
        .forwarded(scene, from, to, &over_tcp)
}

fn jumbo(scene: Scene<'_>) -> Scenario {
    let longest = crate::netns::MTU - 20 - 8;
    [1472, 1473, 4096, longest].into_iter().fold(
        Scenario::new("jumbo frames"),
        |scenario, length| {
            scenario.forwarded(
                scene,
                FROM,
                TO,
                &datagram(scene, &vec![0x5a; length]).packet(),
            )
        },
    )
}

/// Packets without a route or without time to live.
fn no_route(scene: Scene<'_>) -> Scenario {
    let sent = datagram(scene, b"question").packet();
    let destinations = [
        Ipv4Addr::new(10, 0, 0, 99),
        Ipv4Addr::new(192, 0, 2, 1),
        Ipv4Addr::new(224, 0, 0, 251),
        Ipv4Addr::BROADCAST,
        Ipv4Addr::UNSPECIFIED,
    ];
    let scenario = destinations.into_iter().fold(
        Scenario::new("no route, no time to live"),
        |scenario, dst| {
            scenario.unrouted(
                scene,
                FROM,
                Ipv4 {
                    dst,
                    ..sent.clone()
                }
                .emit(),
            )
        },
    );
    [0, 1].into_iter().fold(scenario, |scenario, ttl| {
        scenario.unrouted(
            scene,
            FROM,
            Ipv4 {
                ttl,
                ..sent.clone()
            }
            .emit(),
        )
    })
}

/// Frames of other protocols, and tagged frames, which an IPv4 router drops.
fn not_ipv4(scene: Scene<'_>) -> Scenario {
    let frame = datagram(scene, b"question").emit();
    let with_type = |ether_type: u16| {
        let mut other = frame.clone();
        other[12..14].copy_from_slice(&ether_type.to_be_bytes());
        other
    };
    let tagged = [&frame[..12], &[0x81, 0x00, 0x00, 0x05], &frame[12..]].concat();
    let ipv6 = [
        &frame[..12],
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 59, 64],
        &[0xfe; 32][..],
    ]
    .concat();
    [
        with_type(0x88cc),
        with_type(0x8847),
        with_type(0x0000),
        with_type(60),
        tagged,
        ipv6,
    ]
    .into_iter()
    .fold(Scenario::new("IPv6, VLANs, LLDP"), |scenario, frame| {
        scenario.unrouted(scene, FROM, frame)
    })
}

/// IPv4 options would hide the UDP header from admission, so the switch drops packets with options.
fn options(scene: Scene<'_>) -> Scenario {
    // No-operation and end of list; record route with room for one address.
    let lists: [&[u8]; 3] = [&[1, 1, 1, 0], &[7, 7, 4, 0, 0, 0, 0, 0], &[1; 40]];
    lists
        .into_iter()
        .fold(Scenario::new("IPv4 options"), |scenario, options| {
            let with = |packet: Ipv4| Ipv4 {
                options: options.to_vec(),
                ..packet
            };
            let left = scene.left;
            scenario
                .malformed(
                    scene,
                    FROM,
                    with(datagram(scene, b"question").packet()).emit(),
                )
                .malformed(
                    scene,
                    left.host_of(2),
                    with(left.gather(2, b"data").packet()).emit(),
                )
        })
}

/// Every bit of the IPv4 header flipped with the old checksum; then a wrong header length and a wrong version with a correct
/// checksum.
fn bad_header(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let frame = left.gather(2, b"data").emit();
    let from = left.host_of(2);
    let scenario = Scenario::new("a corrupted IPv4 header");
    let scenario = (0..20 * 8).fold(scenario, |scenario, bit| {
        let mut corrupt = frame.clone();
        corrupt[14 + bit / 8] ^= 0x80 >> (bit % 8);
        scenario.malformed(scene, from, corrupt)
    });
    [0x46, 0x44, 0x40, 0x55, 0x65]
        .into_iter()
        .fold(scenario, |scenario, first| {
            let mut forged = frame.clone();
            let change = u16::from(first) << 8;
            let was = u16::from(forged[14]) << 8;
            forged[14] = first;
            let checksum = u16::from_be_bytes([forged[24], forged[25]]);
            // Corrects the checksum for the changed word (RFC 1624).
            let sum = u32::from(checksum) + u32::from(was) + u32::from(!change);
            let folded = (sum & 0xffff) + (sum >> 16);
            let right = ((folded & 0xffff) + (folded >> 16)) as u16;
            forged[24..26].copy_from_slice(&right.to_be_bytes());
            scenario.malformed(scene, from, forged)
        })
}

/// The switch answers requests for every host of the fabric, and never floods.
fn arp(scene: Scene<'_>) -> Scenario {
    let fabric = scene.fabric;
    let requester = fabric.host(FROM);
    let mut scenario = Scenario::new("ARP");
    for host in fabric.hosts.iter().filter(|host| host.ip != requester.ip) {
        let request = Arp::request(requester.mac, requester.ip, host.ip);
        scenario = scenario.step(
            FROM,
            request.emit(),
            vec![(FROM, request.reply(host.mac).emit())],
        );
    }
    let known = Arp::request(requester.mac, requester.ip, fabric.host(TO).ip);
    let unicast = Arp {
        dst_mac: fabric.host(TO).mac,
        ..known.clone()
    };
    scenario = scenario.step(
        FROM,
        unicast.emit(),
        vec![(FROM, known.reply(fabric.host(TO).mac).emit())],
    );

    let silent = [
        Arp {
            target_ip: Ipv4Addr::new(10, 0, 0, 99),
            ..known.clone()
        },
        // A gratuitous request, a probe for a free address, and an answer.
        Arp {
            target_ip: requester.ip,
            ..known.clone()
        },
        Arp {
            sender_ip: Ipv4Addr::UNSPECIFIED,
            ..known.clone()
        },
        Arp {
            operation: ArpOperations::Reply,
            target_mac: MacAddr(2, 0, 0, 0, 0, 1),
            ..known.clone()
        },
    ];
    scenario = silent.iter().fold(scenario, |scenario, arp| {
        scenario.unrouted(scene, FROM, arp.emit())
    });
    let whole = known.emit();
    (14..whole.len()).fold(scenario, |scenario, length| {
        scenario.unrouted(scene, FROM, whole[..length].to_vec())
    })
}
