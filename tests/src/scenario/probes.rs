//! PROBEs, which the first switch answers.

use std::net::SocketAddrV4;

use ultima_p4::names::counter;
use ultima_wire::{Header, Key, Kind, Report, Sealer};

use super::{Scenario, Scene};
use crate::generator::Datagram;
use crate::job::Job;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    vec![
        from_each_rank(scene),
        to_any_destination(scene),
        of_another_operation(scene),
        refused(scene),
    ]
}

/// The answer to a probe: from the probe's destination, with the report in its payload.
pub(super) fn answer(job: &Job, sent: &Datagram, source: u16, report: &Report) -> Datagram {
    let (header, room) = Header::parse(&sent.payload).expect("an Ultima packet");
    let header = Header {
        kind: Kind::Report,
        ..header
    };
    let mut payload = room.to_vec();
    report.emit(&mut payload);
    Datagram {
        src_mac: sent.dst_mac,
        src: sent.dst,
        dst: sent.src,
        payload: crate::generator::ultima(&header, &payload),
        ..sent.clone()
    }
    .forwarded(job.members[usize::from(source)].mac)
}

impl Scenario {
    /// A rank's probe comes back with a report.
    fn answered(self, scene: Scene<'_>, source: u16, sent: &Datagram, report: &Report) -> Self {
        let job = scene.left;
        let bytes = sent.emit().len();
        let answer = answer(job, sent, source, report);
        let from = job.host_of(source);
        self.step(from, sent.emit(), vec![(from, answer.emit())])
            .count(counter::RECEIVED, job.counter, 1, bytes)
            .count(counter::REFLECTED, job.counter, 1, bytes)
            .delivered_to(scene, job, source, bytes)
    }

    /// A rank sends a packet three times to another in a new operation, and then the other sends a probe.
    fn sent_and_probed(self, scene: Scene<'_>, source: u16, owner: u16, bucket: u16) -> Self {
        let job = scene.left;
        let of = |sent: Datagram| {
            let (header, _) = Header::parse(&sent.payload).expect("an Ultima packet");
            sent.with_header(&Header {
                step: 0x4000_0000,
                bucket,
                ..header
            })
        };
        let sent = of(job.scatter(source, owner, b"data"));
        let scenario = (0..3).fold(self, |scenario, _| {
            scenario.unicast(scene, job, source, owner, &sent)
        });
        let report = Report {
            port: scene.fabric.host(job.host_of(owner)).port,
            known: true,
            sent: 3,
            ..Report::default()
        };
        scenario.answered(scene, owner, &of(job.probe(owner, 0)), &report)
    }
}

/// Each rank probes its own operation, in which other packets do not count.
fn from_each_rank(scene: Scene<'_>) -> Scenario {
    let left = scene.left;
    left.ranks().fold(
        Scenario::new("each rank probes the packets sent to its port"),
        |scenario, owner| {
            let source = (owner + 2) % 4;
            // This operation is newer than all earlier ones.
            scenario.sent_and_probed(scene, source, owner, 0xff00 + owner)
        },
    )
}

/// The first switch answers, independent of the destination.
fn to_any_destination(scene: Scene<'_>) -> Scenario {
    let job = scene.left;
    let destinations = [
        SocketAddrV4::new(job.group_address, ultima_wire::UDP_PORT),
        scene.right.members[1].address,
        "192.0.2.1:9".parse().expect("an address"),
    ];
    destinations.into_iter().enumerate().fold(
        Scenario::new("PROBEs to all addresses, with more room than needed"),
        |scenario, (more, dst)| {
            let sent = Datagram {
                dst,
                ..of_an_unknown_operation(job.probe(2, more))
            };
            scenario.answered(scene, 2, &sent, &unknown(scene, 2))
        },
    )
}

fn of_another_operation(scene: Scene<'_>) -> Scenario {
    let sent = of_an_unknown_operation(scene.left.probe(3, 12));
    Scenario::new("an operation that the switch has not seen")
        .unicast(scene, scene.left, 2, 3, &scene.left.scatter(2, 3, b"data"))
        .answered(scene, 3, &sent, &unknown(scene, 3))
}

/// A probe of an operation without packets.
fn of_an_unknown_operation(probe: Datagram) -> Datagram {
    let (header, _) = Header::parse(&probe.payload).expect("an Ultima packet");
    probe.with_header(&Header {
        step: 0xdead_beef,
        ..header
    })
}

fn unknown(scene: Scene<'_>, rank: u16) -> Report {
    Report {
        port: scene.fabric.host(scene.left.host_of(rank)).port,
        ..Report::default()
    }
}

/// A probe without room for the report, one with a tag, which an answer would invalidate, and one with another rank.
fn refused(scene: Scene<'_>) -> Scenario {
    let job = scene.left;
    let genuine = job.probe(2, 0);
    let short = Datagram {
        payload: genuine.payload[..genuine.payload.len() - 1].to_vec(),
        ..genuine.clone()
    };
    let (mut header, room) = Header::parse(&genuine.payload).expect("an Ultima packet");
    header.seal(&mut Sealer::new(&Key(*b"the job's secret")), room);
    let sealed = genuine.with_header(&header);
    let (header, _) = Header::parse(&genuine.payload).expect("an Ultima packet");
    let other = genuine.with_header(&Header {
        source: 3,
        ..header
    });
    // Ethernet's padding does not count as room.
    let padded = [&short.emit()[..], &[0; 8]].concat();
    let frames = [short.emit(), sealed.emit(), other.emit(), padded];
    frames.into_iter().fold(
        Scenario::new("PROBEs that are not answered"),
        |scenario, frame| scenario.rejected(job.host_of(2), frame, job.counter),
    )
}
