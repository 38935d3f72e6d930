//! Jobs are created and deleted on switches with other jobs.

use ultima_p4::names::counter;
use ultima_tests::controller::{LEFT, RIGHT};
use ultima_tests::counters::{Cell, Count};
use ultima_tests::generator::Datagram;
use ultima_tests::job::Job;
use ultima_tests::operator::VirtualQueue;
use ultima_tests::scenario;
use ultima_tests::stage::{Stage, Target};
use ultima_wire::{Key, Kind, Sealer, Ticks};

fn a_deleted_job_can_be_created_again(target: &Target) {
    target.star(|mut stage| {
        let [left, right] = [0, 1].map(|job: usize| stage.jobs[job].clone());
        assert_eq!(copies_of_a_gather(&mut stage, &left), 3);
        assert_eq!(copies_of_a_gather(&mut stage, &right), 1);

        stage.controller.delete(&stage.testbed, "left");
        let before = stage.counts();
        assert_eq!(
            copies_of_a_gather(&mut stage, &left),
            0,
            "the switch rejects a deleted job's packets"
        );
        assert_eq!(
            copies_of_a_gather(&mut stage, &right),
            1,
            "those of the other job arrive"
        );
        let unknown = Cell {
            switch: 0,
            array: counter::REJECTED,
            index: 0,
        };
        let refused = stage.counts().since(&before);
        assert_eq!(refused.0[&unknown].packets, 1, "the job is unknown");

        let again = stage.controller.create(&stage.testbed, LEFT);
        assert_eq!(
            again.members, left.members,
            "the new job gets the indexes of the deleted job"
        );
        let counts = stage.counts();
        for array in counter::BY_JOB {
            let cell = Cell {
                switch: 0,
                array,
                index: again.counter,
            };
            assert!(
                !counts.0.contains_key(&cell),
                "a new job starts at zero: {counts:?}"
            );
        }
        // All scenarios hold for the new job.
        stage.jobs[0] = again;
        for scenario in scenario::recheck(stage.scene()) {
            scenario::run(&mut stage, &scenario);
        }

        // Without jobs, the switch carries plain traffic only, such as the sentinels.
        stage.controller.delete(&stage.testbed, "right");
        stage.controller.delete(&stage.testbed, "left");
        for job in stage.jobs.clone() {
            assert_eq!(copies_of_a_gather(&mut stage, &job), 0);
        }
        stage.jobs = [LEFT, RIGHT]
            .map(|yaml| stage.controller.create(&stage.testbed, yaml))
            .to_vec();
        for (job, others) in stage.jobs.clone().iter().zip([3, 1]) {
            assert_eq!(copies_of_a_gather(&mut stage, job), others);
        }
    });
}

/// The controller's counters of a job equal those of the switches.
fn the_controller_reads_the_counters_of_a_job(target: &Target) {
    target.pair(|mut stage| {
        let job = stage.jobs[0].clone();
        for scenario in scenario::pair(&stage.testbed.fabric, &job) {
            scenario::run(&mut stage, &scenario);
        }
        // Each switch loses the address of one of its ranks, so that no counter stays at zero.
        for (switch, rank) in [(0, 1), (1, 3)] {
            stage.operate(switch, async |operator| {
                operator.delete_address(&job, rank).await
            });
        }
        assert_eq!(copies_of_a_gather(&mut stage, &job), job.members.len() - 3);
        lose_by_every_cause(&mut stage, &job);
        let reported = stage.controller.counters(&stage.testbed, "across");
        let counts = stage.counts();
        assert_eq!(reported.len(), 2, "the job is on both switches");
        for (switch, reported) in reported.into_iter().enumerate() {
            let reported = [
                reported.received,
                reported.rejected,
                reported.replicated,
                reported.unicast,
                reported.reflected,
                reported.undeliverable,
                reported.delivered,
                reported.own_copy,
                reported.unknown_rank,
                reported.late,
                reported.trimmed,
                reported.cut_sealed,
            ];
            for (array, reported) in counter::BY_JOB.into_iter().zip(reported) {
                let cell = Cell {
                    switch,
                    array,
                    index: job.counter,
                };
                let reported = reported.map(|count| Count {
                    packets: count.packets,
                    bytes: count.bytes,
                });
                assert_eq!(reported, counts.0.get(&cell).copied(), "{cell:?}");
                assert!(reported.is_some_and(|count| count.packets > 0), "{cell:?}");
            }
        }
    });
}

/// Each switch marks a packet late, trims one, trims one behind its tag, drops one without time to live, and answers a probe.
fn lose_by_every_cause(stage: &mut Stage, job: &Job) {
    for (switch, source, owner) in [(0, 0, 2), (1, 3, 4)] {
        let to = stage.testbed.fabric.host(job.host_of(owner));
        assert_eq!(to.switch, switch);
        let queue = VirtualQueue::Port(to.port);
        stage.operate(switch, async |operator| operator.limit(queue, 1, 1).await);
        let mut late = job.header(Kind::Scatter, source, owner);
        late.budget = Ticks(0);
        late.seal(&mut Sealer::new(&Key(*b"the job's secret")), b"data");
        let trimmed = job.scatter(source, owner, b"data");
        let late = trimmed.with_header(&late);
        let nowhere = Datagram {
            ttl: 1,
            ..trimmed.clone()
        };
        let frames = [trimmed, late, nowhere, job.probe(source, 0)].map(|sent| sent.emit());
        let arrivals = stage.testbed.exchange(job.host_of(source), &frames);
        let lengths = arrivals[&job.host_of(owner)].iter().map(Vec::len);
        assert!(lengths.eq([94, 110]), "both are trimmed");
        stage.operate(switch, async |operator| operator.unlimit(queue).await);
    }
}

on_both! {
    the_controller_reads_the_counters_of_a_job;
}

/// The number of copies of one GATHER of rank 0 that arrive.
fn copies_of_a_gather(stage: &mut Stage, job: &Job) -> usize {
    let frame = job.gather(0, b"data").emit();
    stage
        .testbed
        .exchange(job.host_of(0), &[frame])
        .values()
        .map(Vec::len)
        .sum()
}

on_both! {
    a_deleted_job_can_be_created_again;
}
