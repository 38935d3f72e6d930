//! What the controller makes of switches that are not as it expects them.

use std::collections::BTreeSet;

use ultima_p4::names::job;
use ultima_tests::controller::{ACROSS, LEFT, RIGHT};
use ultima_tests::needs;
use ultima_tests::scenario;
use ultima_tests::stage::{Stage, Target};

/// A controller is replaced: the new one knows of no job, and none of the old one's is left. What it then
/// installs works as on a new switch; each copy is sent once.
fn starts_from_nothing(target: &Target) {
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
        for scenario in scenario::star(stage.scene()) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

#[test]
fn starts_from_nothing_on_embedded() {
    starts_from_nothing(&Target::Sockets);
}

#[test]
fn starts_from_nothing_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        starts_from_nothing(&Target::Bmv2(program));
    }
}

/// The second of two switches refuses the job's announcement, when groups and replicas are already
/// on both: nothing of the job stays on either.
fn undoes_half_a_job(target: &Target) {
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

/// What each switch holds.
fn holdings(stage: &Stage) -> [BTreeSet<String>; 2] {
    [0, 1].map(|switch| stage.operate(switch, async |operator| operator.holdings().await))
}

#[test]
fn undoes_half_a_job_on_embedded() {
    undoes_half_a_job(&Target::Sockets);
}

#[test]
fn undoes_half_a_job_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        undoes_half_a_job(&Target::Bmv2(program));
    }
}
