//! Truncated packets.

use super::{Scenario, Scene, UNKNOWN_JOB};
use crate::generator::Datagram;
use crate::testbed::plain;

/// The length of the shortest frame that an interface sends: an Ethernet header.
const SHORTEST: usize = 14;
/// The length of Ethernet and IPv4 headers.
const IPV4_END: usize = 14 + 20;
/// The length of Ultima's magic and version.
const MARK: usize = 3;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        cut_frames(scene),
        short_datagrams(scene),
        header_behind_the_datagram(scene),
        padding(scene),
    ]
}

/// Frames cut at any length, with unchanged headers, which the switch counts and drops.
fn cut_frames(scene: Scene<'_>) -> Scenario {
    let from = scene.left.host_of(2);
    let packets = [
        scene.left.scatter(2, 0, b"data"),
        scene.left.gather(2, b"data"),
    ];
    packets.iter().fold(
        Scenario::new("frames cut at every length"),
        |scenario, sent| {
            let frame = sent.emit();
            (SHORTEST..frame.len()).fold(scenario, |scenario, length| {
                let cut = frame[..length].to_vec();
                if length < IPV4_END {
                    scenario.unrouted(scene, from, cut)
                } else {
                    scenario.malformed(scene, from, cut)
                }
            })
        },
    )
}

/// Whole datagrams with a truncated Ultima header. Without the magic they are plain traffic.
fn short_datagrams(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let (from, to) = (left.host_of(2), left.host_of(0));
    let (scatter, gather) = (left.scatter(2, 0, b""), left.gather(2, b""));
    let scenario = Scenario::new("datagrams with every part of the Ultima header");
    (0..scatter.payload.len()).fold(scenario, |scenario, length| {
        let [scatter, gather] = [&scatter, &gather].map(|sent| Datagram {
            payload: sent.payload[..length].to_vec(),
            ..sent.clone()
        });
        if length < MARK {
            scenario
                .forwarded(scene, from, to, &scatter.packet())
                .unrouted(scene, from, gather.emit())
        } else {
            scenario
                .rejected(from, scatter.emit(), UNKNOWN_JOB)
                .rejected(from, gather.emit(), UNKNOWN_JOB)
        }
    })
}

/// IPv4 and UDP end before the Ultima header, whose rest is in the frame's padding.
fn header_behind_the_datagram(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    let from = left.host_of(2);
    let genuine = [left.scatter(2, 0, b""), left.gather(2, b"")];
    let scenario = Scenario::new("an Ultima header behind the datagram's end");
    genuine.iter().fold(scenario, |scenario, sent| {
        (0..sent.payload.len()).fold(scenario, |scenario, length| {
            let (datagram, rest) = sent.payload.split_at(length);
            let short = Datagram {
                payload: datagram.to_vec(),
                ..sent.clone()
            };
            let frame = [&short.emit(), rest].concat();
            scenario.rejected(from, frame, left.counter)
        })
    })
}

/// The switch forwards the padding after the IPv4 packet.
fn padding(scene: Scene<'_>) -> Scenario {
    let (from, to) = (scene.left.host_of(2), scene.left.host_of(3));
    let sent = plain(scene.fabric, from, to, 53, b"short".to_vec());
    let arrives = sent.forwarded(scene.fabric.host(to).mac);
    let padded = |datagram: &Datagram| [&datagram.emit(), &[0xa5; 13][..]].concat();
    Scenario::new("padding is kept").step(from, padded(&sent), vec![(to, padded(&arrives))])
}
