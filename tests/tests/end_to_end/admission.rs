//! A switch drops every packet of a rank without an admission entry.

use ultima_p4::names::counter;
use ultima_tests::counters::{Cell, Count};
use ultima_tests::operator::Operator;
use ultima_tests::stage::{Stage, Target};
use ultima_tests::testbed::Arrivals;

/// The rank that loses its entry. Another rank is on the same host.
const REJECTED: u16 = 1;

fn packets_of_a_rank_without_admission_are_rejected(target: &Target) {
    target.star(|mut stage| {
        let operator = stage
            .testbed
            .runtime
            .block_on(Operator::at(0, stage.testbed.grpc()[0]));
        let [left, right] = [0, 1].map(|job: usize| stage.jobs[job].clone());
        let before = frames_that_arrive(&mut stage, 0);
        assert!(
            before.iter().all(|hosts| *hosts > 0),
            "frames of all ranks arrive: {before:?}"
        );

        let Stage { testbed, .. } = &stage;
        testbed
            .runtime
            .block_on(operator.delete_admission(&testbed.fabric, &left, REJECTED));
        let counted = stage.counts();
        let arrived = frames_that_arrive(&mut stage, 0);
        for (rank, (now, before)) in arrived.iter().zip(&before).enumerate() {
            let expected = if rank == usize::from(REJECTED) {
                0
            } else {
                *before
            };
            assert_eq!(*now, expected, "frames of rank {rank}");
        }
        let refused = stage.counts().since(&counted);
        let rejected = Cell {
            switch: 0,
            array: counter::REJECTED,
            index: left.counter,
        };
        let frames = left.members.len() as u64;
        assert_eq!(
            refused.0[&rejected].packets, frames,
            "a SCATTER to each other rank and a GATHER"
        );
        assert!(!refused.0.contains_key(&Cell {
            index: right.counter,
            ..rejected
        }));

        let Stage { testbed, .. } = &stage;
        testbed
            .runtime
            .block_on(operator.insert_admission(&testbed.fabric, &left, REJECTED));
        assert_eq!(
            frames_that_arrive(&mut stage, 0),
            before,
            "the rank is admitted again"
        );
        let rejected_in_all = stage.counts().since(&counted).0[&rejected];
        assert_eq!(
            Count {
                packets: frames,
                ..rejected_in_all
            },
            rejected_in_all
        );
    });
}

/// Each rank of a job sends to every other and to the group. Returns the number of frames that arrive from each.
fn frames_that_arrive(stage: &mut Stage, job: usize) -> Vec<usize> {
    let job = stage.jobs[job].clone();
    let count = |arrivals: Arrivals| arrivals.values().map(Vec::len).sum::<usize>();
    job.ranks()
        .map(|source| {
            let others = job.ranks().filter(|rank| *rank != source);
            let mut frames: Vec<Vec<u8>> = others
                .map(|owner| job.scatter(source, owner, b"data").emit())
                .collect();
            frames.push(job.gather(source, b"data").emit());
            count(stage.testbed.exchange(job.host_of(source), &frames))
        })
        .collect()
}

on_both! {
    packets_of_a_rank_without_admission_are_rejected;
}
