//! The controller handles switches with unexpected entries.

use std::collections::BTreeSet;

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

/// The second of two switches rejects a job's entry after both have its groups: neither switch keeps anything of the job.
fn a_half_installed_job_is_removed(target: &Target) {
    target.pair(|mut stage| {
        stage.controller.delete(&stage.testbed, "across");
        stage.operate(1, async |operator| operator.occupy_jobs(1..=100).await);
        let before = holdings(&stage);

        let refused = stage.controller.try_create(&stage.testbed, ACROSS);
        let message = refused.expect_err("every number is taken").to_string();
        assert!(
            message.contains("s2") && message.contains(job::TABLE),
            "{message}"
        );
        assert!(!message.contains('\n'), "{message}");
        assert_eq!(holdings(&stage), before);

        stage.operate(1, async |operator| operator.release_jobs(1..=100).await);
        stage.jobs = vec![stage.controller.create(&stage.testbed, ACROSS)];
        for scenario in scenario::pair(&stage.testbed.fabric, &stage.jobs[0]) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

/// The entries of each switch.
fn holdings(stage: &Stage) -> [BTreeSet<String>; 2] {
    [0, 1].map(|switch| stage.operate(switch, async |operator| operator.holdings().await))
}

on_both! {
    a_half_installed_job_is_removed;
}
