//! Packets that end too early.

use super::{Scenario, Scene, UNKNOWN_JOB};
use crate::generator::Datagram;

/// Shortest frame that an interface sends: a whole Ethernet header.
const SHORTEST: usize = 14;
/// Through the IPv4 header.
const IPV4_END: usize = 14 + 20;
/// What tells an Ultima packet: magic and version.
const MARK: usize = 3;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![cut_frames(scene), short_datagrams(scene)]
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
