//! The controller and two BMv2s: it creates a job, repairs drift, restores a restarted switch, and deletes the job.

use ultima_controller::p4rt::ELECTION_ID;
use ultima_p4runtime::replication::multicast_group;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{Uint128, Update, WriteRequest};
use ultima_tests::fabric::device_id;
use ultima_tests::needs;
use ultima_tests::scenario;
use ultima_tests::stage::{Stage, Target};

/// The drift of each switch, which `repair` repairs.
fn differences(stage: &Stage, repair: bool) -> [Vec<String>; 2] {
    let client = stage.controller.client();
    let request = async {
        match repair {
            true => client.sync_fabric().await,
            false => client.diff_fabric().await,
        }
    };
    let switches = stage.testbed.runtime.block_on(request);
    let of = |it: ultima_api::v1::SwitchDiff| {
        assert_eq!(it.problem, "", "{}", it.switch);
        it.differences.into_iter().map(|it| it.entity).collect()
    };
    let all = switches.unwrap_or_else(|error| panic!("{error}"));
    let all: Vec<Vec<String>> = all.into_iter().map(of).collect();
    all.try_into().expect("two switches")
}

fn assert_whole(stage: &mut Stage) {
    assert_eq!(
        differences(stage, false),
        [Vec::<String>::new(), Vec::new()]
    );
    let job = stage.jobs[0].clone();
    for scenario in scenario::pair(&stage.testbed.fabric.clone(), &job) {
        scenario::run(stage, &scenario);
    }
}

/// Deletes a job's group with the controller's own election id, which stays primary and gets no notification.
fn delete_group(stage: &Stage, switch: usize) {
    let grpc = stage.testbed.grpc()[switch];
    let entity = multicast_group(stage.jobs[0].group, []).expect("a group");
    let request = WriteRequest {
        device_id: device_id(switch),
        election_id: Some(Uint128::from(ELECTION_ID)),
        updates: vec![Update::delete(entity)],
        ..WriteRequest::default()
    };
    let written = stage.testbed.runtime.block_on(async {
        let mut rpc = P4RuntimeClient::connect(format!("http://{grpc}")).await?;
        Ok::<_, Box<dyn std::error::Error>>(rpc.write(request).await?)
    });
    written.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_job_survives_drift_and_the_restart_of_a_bmv2() {
    let Some(program) = needs::bmv2() else { return };
    Target::Bmv2(program.clone()).pair(|mut stage| {
        assert_whole(&mut stage);

        delete_group(&stage, 0);
        let [left, right] = differences(&stage, false);
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].starts_with("multicast group "), "{left:?}");
        assert_eq!(right, Vec::<String>::new());
        assert_eq!(differences(&stage, true)[0], left);
        assert_whole(&mut stage);

        stage.testbed.restart_bmv2(1, &program);
        stage
            .controller
            .wait_until_connected(&stage.testbed, 1, true);
        assert_whole(&mut stage);

        stage.controller.delete(&stage.testbed, "across");
        assert_eq!(
            differences(&stage, false),
            [Vec::<String>::new(), Vec::new()]
        );
        stage.jobs = vec![
            stage
                .controller
                .create(&stage.testbed, ultima_tests::controller::ACROSS),
        ];
        assert_whole(&mut stage);
    });
}
