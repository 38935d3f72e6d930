//! Admitted packets, and copies, that a switch cannot send: it drops each and counts it once.

use super::{Scenario, Scene};
use crate::job::Job;

/// Every rank of the right job, which has no group, multicasts. Its unicast and the other job's multicast arrive.
pub fn without_a_group(scene: Scene<'_>) -> Scenario {
    let Scene { left, right, .. } = scene;
    let scenario = right.ranks().fold(
        Scenario::new("multicast of a job without a group"),
        |scenario, source| {
            let frame = right.gather(source, b"to no rank").emit();
            scenario.admitted_unrouted(scene, right, right.host_of(source), frame)
        },
    );
    scenario
        .unicast(scene, right, 0, 1, &right.scatter(0, 1, b"data"))
        .multicast(scene, left, 2, &left.gather(2, b"data"))
}

/// Every rank of a job multicasts, and one rank has no address on the switch. The switch still drops this rank's own copy as
/// such, and delivers unicast to it.
pub fn to_an_unknown_rank(scene: Scene<'_>, job: &Job, unknown: u16) -> Scenario {
    job.ranks().filter(|rank| *rank != unknown).fold(
        Scenario::new("copies for a rank that the switch does not know").multicast(
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
