//! After a change of members, switches carry the new epoch and drop the old one.

use ultima_p4::names::counter;
use ultima_tests::counters::Cell;
use ultima_tests::fabric::Fabric;
use ultima_tests::job::Job;
use ultima_tests::stage::{Stage, Target};

const TRAIN: &str = "{ name: train, members: [h1, h2, h3] }";

on_both! {
    packets_of_the_old_epoch_are_rejected;
}

fn packets_of_the_old_epoch_are_rejected(target: &Target) {
    target.run(Fabric::star(), &[TRAIN], |mut stage| {
        let old = stage.jobs[0].clone();
        assert_eq!(copies_of_a_gather(&mut stage, &old), 2);

        // The ranks are in a new order, so packets of the old epoch have wrong ranks.
        let members = ["h4", "h2", "h1", "h3"];
        let new = stage.controller.resize(&stage.testbed, "train", &members);
        assert_eq!((old.epoch, new.epoch), (1, 2));
        assert_eq!(
            copies_of_a_gather(&mut stage, &new),
            3,
            "the new epoch is carried"
        );
        let outcome = send(&mut stage, &new, new.counter);
        assert_eq!(outcome, (3, 0), "no packet of it is rejected");
        // No job has the old number.
        assert_eq!(send(&mut stage, &old, 0), (0, 1));
        // A packet with the new number and the old epoch.
        let mixed = Job {
            epoch: old.epoch,
            ..new.clone()
        };
        assert_eq!(send(&mut stage, &mixed, new.counter), (0, 1));
    });
}

/// The number of copies of one GATHER of rank 0 that arrive, and of its packets that the switch rejects.
fn send(stage: &mut Stage, job: &Job, index: u32) -> (usize, u64) {
    let cell = Cell {
        switch: 0,
        array: counter::REJECTED,
        index,
    };
    let before = stage.counts();
    let copies = copies_of_a_gather(stage, job);
    let counts = stage.counts().since(&before);
    (copies, counts.0.get(&cell).map_or(0, |count| count.packets))
}

fn copies_of_a_gather(stage: &mut Stage, job: &Job) -> usize {
    let frame = job.gather(0, b"data").emit();
    let arrivals = stage.testbed.exchange(job.host_of(0), &[frame]);
    arrivals.values().map(Vec::len).sum()
}
