//! Packets between members of a job.

use ultima_wire::{Header, Key, Kind, Sealer, Ticks, frame};

use super::{Scenario, Scene};
use crate::generator::{Datagram, UdpChecksum};
use crate::job::Job;

pub(super) fn scenarios(scene: Scene<'_>) -> Vec<Scenario> {
    let Scene { left, right, .. } = scene;
    vec![
        scatter_between_all("SCATTER from each rank to each", scene, left),
        scatter_between_all("SCATTER in the other job", scene, right),
        gather_from_all(
            "GATHER from each rank, two of them behind one port",
            scene,
            left,
        ),
        gather_from_all("GATHER in the other job", scene, right),
        every_kind(scene, left),
        tagged(scene, left),
        payload_lengths(scene, left),
        no_checksum(scene, left),
        zero_checksum(scene, left),
        corruption_is_kept(scene, left),
        any_ttl(scene, left),
    ]
}

fn scatter_between_all(name: &str, scene: Scene<'_>, job: &Job) -> Scenario {
    let mut scenario = Scenario::new(name);
    for source in job.ranks() {
        for owner in job.ranks().filter(|owner| *owner != source) {
            let sent = job.scatter(source, owner, b"sixteen bytes...");
            scenario = scenario.unicast(scene, job, source, owner, &sent);
        }
    }
    scenario
}

fn gather_from_all(name: &str, scene: Scene<'_>, job: &Job) -> Scenario {
    job.ranks().fold(Scenario::new(name), |scenario, source| {
        scenario.multicast(scene, job, source, &job.gather(source, b"sixteen bytes..."))
    })
}

fn every_kind(scene: Scene<'_>, job: &Job) -> Scenario {
    // The first switch answers a PROBE.
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Probe);
    kinds.fold(
        Scenario::new("every kind, to the group"),
        |scenario, kind| scenario.multicast(scene, job, 2, &job.multicast(kind, 2, b"data")),
    )
}

fn tagged(scene: Scene<'_>, job: &Job) -> Scenario {
    let mut header = job.header(Kind::Gather, 3, 3);
    header.seal(&mut Sealer::new(&Key(*b"the job's secret")), b"data");
    let sent = job.gather(3, b"data").with_header(&header);
    Scenario::new("a tag is unchanged").multicast(scene, job, 3, &sent)
}

/// Payloads from no byte to a jumbo frame, with odd lengths.
fn payload_lengths(scene: Scene<'_>, job: &Job) -> Scenario {
    let lengths = [0, 1, 2, 3, 63, 64, 65, 1383, 1384, 1420, 1421, 8919, 8920];
    lengths.into_iter().fold(
        Scenario::new("payloads of all lengths"),
        |scenario, length| {
            let data: Vec<u8> = (0..length).map(|at| (at * 31) as u8).collect();
            scenario
                .unicast(scene, job, 2, 0, &job.scatter(2, 0, &data))
                .multicast(scene, job, 2, &job.gather(2, &data))
        },
    )
}

fn no_checksum(scene: Scene<'_>, job: &Job) -> Scenario {
    let without = |sent: Datagram| Datagram {
        checksum: UdpChecksum::None,
        ..sent
    };
    Scenario::new("a UDP checksum of 0 stays 0")
        .unicast(scene, job, 2, 3, &without(job.scatter(2, 3, b"odd")))
        .multicast(scene, job, 2, &without(job.gather(2, b"odd")))
}

/// A checksum that a copy's new address makes 0 is sent as 0xFFFF (RFC 768), and 0xFFFF is updated like any other.
fn zero_checksum(scene: Scene<'_>, job: &Job) -> Scenario {
    let header = Header {
        // Longer than any time in this switch's queue.
        path_queue: Ticks::MAX,
        ..job.header(Kind::Gather, 2, 2)
    };
    let with = |wanted: &dyn Fn(&Datagram) -> Datagram| {
        (0..=u16::MAX)
            .map(|filler| job.gather(2, &filler.to_be_bytes()).with_header(&header))
            .find(|sent| wanted(sent).checksum_field() == 0xffff)
            .expect("the checksum takes every value but 0")
    };
    let mut scenario = Scenario::new("a UDP checksum that becomes 0, or was 0xFFFF").multicast(
        scene,
        job,
        2,
        &with(&Datagram::clone),
    );
    for rank in [0, 1, 3] {
        scenario = scenario.multicast(scene, job, 2, &with(&|sent| job.copy_for(sent, rank)));
    }
    scenario
}

/// The switch updates the checksum (RFC 1624), so that a wrong one stays wrong by the same amount.
fn corruption_is_kept(scene: Scene<'_>, job: &Job) -> Scenario {
    let errors = [1, 0x0100, 0x8000, 0xfffe];
    errors.into_iter().fold(
        Scenario::new("a wrong checksum stays wrong"),
        |scenario, error| {
            let corrupt = |sent| Datagram {
                checksum: UdpChecksum::OffBy(error),
                ..sent
            };
            let (scatter, gather) = (
                corrupt(job.scatter(2, 3, b"data")),
                corrupt(job.gather(2, b"data")),
            );
            for copy in [scatter.clone(), job.copy_for(&gather, 0)] {
                assert!(
                    frame::parse(&copy.emit()).is_err(),
                    "the receiver would not see {error}"
                );
            }
            scenario
                .unicast(scene, job, 2, 3, &scatter)
                .multicast(scene, job, 2, &gather)
        },
    )
}

/// The sender may choose the TTL.
fn any_ttl(scene: Scene<'_>, job: &Job) -> Scenario {
    [2, 3, 64, 255]
        .into_iter()
        .fold(Scenario::new("any TTL over 1"), |scenario, ttl| {
            let with = |sent| Datagram { ttl, ..sent };
            scenario
                .unicast(scene, job, 0, 1, &with(job.scatter(0, 1, b"data")))
                .multicast(scene, job, 0, &with(job.gather(0, b"data")))
        })
}
