//! Packets that end too early.

use super::{Scenario, Scene, UNKNOWN_JOB};
use crate::generator::Datagram;
use crate::testbed::plain;

/// Shortest frame that an interface sends: a whole Ethernet header.
const SHORTEST: usize = 14;
/// Through the IPv4 header.
const IPV4_END: usize = 14 + 20;
/// What tells an Ultima packet: magic and version.
const MARK: usize = 3;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        cut_frames(scene),
        short_datagrams(scene),
        header_behind_the_datagram(scene),
        padding(scene),
    ]
}

/// The frame ends anywhere, the headers say what they said: counted, and nothing else.
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

/// The datagram is whole, the Ultima header in it is not. Without the mark it is another protocol's.
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

/// IPv4 and UDP end before the Ultima header does; the frame goes on with it, as if it were padding.
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

/// What stands behind the IPv4 packet is the link's; it goes along.
fn padding(scene: Scene<'_>) -> Scenario {
    let (from, to) = (scene.left.host_of(2), scene.left.host_of(3));
    let sent = plain(scene.fabric, from, to, 53, b"short".to_vec());
    let arrives = sent.forwarded(scene.fabric.host(to).mac);
    let padded = |datagram: &Datagram| [&datagram.emit(), &[0xa5; 13][..]].concat();
    Scenario::new("padding stays").step(from, padded(&sent), vec![(to, padded(&arrives))])
}
