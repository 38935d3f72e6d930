//! Admitted packets, and copies of them, that a switch has nowhere to send: dropped, each in one counter.

use super::{Scenario, Scene};
use crate::job::Job;

/// Multicast of every rank of the right job, which has no group; its unicast, and the other job's multicast,
/// are as ever.
pub fn without_a_group(scene: Scene<'_>) -> Scenario {
    let Scene { left, right, .. } = scene;
    let scenario = right.ranks().fold(
        Scenario::new("multicast of a job without a group"),
        |scenario, source| {
            let frame = right.gather(source, b"to nobody").emit();
            scenario.admitted_unrouted(scene, right, right.host_of(source), frame)
        },
    );
    scenario
        .unicast(scene, right, 0, 1, &right.scatter(0, 1, b"data"))
        .multicast(scene, left, 2, &left.gather(2, b"data"))
}

/// Multicast of every rank of a job, one of whose ranks has no address on the switch. Its own copy is still its
/// own, and its unicast arrives.
pub fn to_an_unknown_rank(scene: Scene<'_>, job: &Job, unknown: u16) -> Scenario {
    job.ranks().filter(|rank| *rank != unknown).fold(
        Scenario::new("copies for a rank that the switch doesn't know").multicast(
            scene,
            job,
            unknown,
            &job.gather(unknown, b"data"),
        ),
        |scenario, source| {
            scenario
                .multicast_but(&[unknown], scene, job, source, &job.gather(source, b"data"))
                .unicast(
                    scene,
                    job,
                    source,
                    unknown,
                    &job.scatter(source, unknown, b"data"),
                )
        },
    )
}
