//! The controller handles switches with unexpected entries.

use ultima_api::v1 as api;
use ultima_p4::names::job;
use ultima_tests::controller::{ACROSS, LEFT, RIGHT};
use ultima_tests::scenario;
use ultima_tests::stage::{Stage, Target};

/// A controller without a store replaces another: it removes the old jobs, and installs new ones as on an empty switch.
fn a_controller_without_a_store_removes_old_jobs(target: &Target) {
    target.star(|stage| {
        let Stage {
            jobs,
            counters,
            controller,
            mut testbed,
        } = stage;
        let controller = controller.replace(&testbed);
        for job in &jobs {
            let frame = job.gather(0, b"data").emit();
            assert!(testbed.exchange(job.host_of(0), &[frame]).is_empty());
        }
        let jobs = [LEFT, RIGHT]
            .map(|yaml| controller.create(&testbed, yaml))
            .to_vec();
        let mut stage = Stage {
            jobs,
            counters,
            controller,
            testbed,
        };
        for scenario in scenario::recheck(stage.scene()) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

on_both! {
    a_controller_without_a_store_removes_old_jobs;
}

/// The second of two switches has no room for a job: the job reports this, and is ready as soon as there is room.
fn a_job_that_a_switch_rejects_waits_for_room(target: &Target) {
    target.pair(|mut stage| {
        stage.controller.delete(&stage.testbed, "across");
        stage.operate(1, async |operator| operator.occupy_jobs(1..=100).await);
        let is_rejected = |job: &api::Job| {
            let of_s2 = job.conditions.iter().find(|it| it.element == "s2");
            !job.ready && of_s2.is_some_and(|it| it.reason.contains(job::TABLE))
        };
        let job = (stage.controller).create_until(&stage.testbed, ACROSS, is_rejected);

        stage.operate(1, async |operator| operator.release_jobs(1..=100).await);
        let ready = (stage.controller).job_when(&stage.testbed, "across", |job| job.ready);
        assert_eq!(ready, job);
        stage.jobs = vec![ready];
        for scenario in scenario::pair(&stage.testbed.fabric, &stage.jobs[0]) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

on_both! {
    a_job_that_a_switch_rejects_waits_for_room;
}
