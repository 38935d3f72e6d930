//! What a switch admits and then cannot send is counted, once.

use ultima_tests::controller::RIGHT_BY_UNICAST;
use ultima_tests::needs;
use ultima_tests::operator::Operator;
use ultima_tests::scenario::{self, to_an_unknown_rank, without_a_group};
use ultima_tests::stage::{Stage, Target};

/// The rank whose address the switch loses; another sits on the same host.
const UNKNOWN: u16 = 1;

fn a_job_without_a_group(target: &Target) {
    target.star(|mut stage| {
        stage.controller.delete(&stage.testbed, "right");
        let right = stage.controller.create(&stage.testbed, RIGHT_BY_UNICAST);
        assert_eq!(right.group, 0);
        stage.jobs[1] = right;
        let scenario = without_a_group(stage.scene());
        scenario::run(&mut stage, &scenario);
    });
}

#[test]
fn a_job_without_a_group_on_embedded() {
    a_job_without_a_group(&Target::Sockets);
}

#[test]
fn a_job_without_a_group_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        a_job_without_a_group(&Target::Bmv2(program));
    }
}

fn an_unknown_rank(target: &Target) {
    target.star(|mut stage| {
        let operator = stage
            .testbed
            .runtime
            .block_on(Operator::at(0, stage.testbed.grpc()[0]));
        let left = stage.jobs[0].clone();
        let Stage { testbed, .. } = &stage;
        testbed.runtime.block_on(operator.forget(&left, UNKNOWN));
        let scenario = to_an_unknown_rank(stage.scene(), &left, UNKNOWN);
        scenario::run(&mut stage, &scenario);

        let Stage { testbed, .. } = &stage;
        testbed.runtime.block_on(operator.remember(&left, UNKNOWN));
        for scenario in scenario::star(stage.scene()) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

#[test]
fn an_unknown_rank_on_embedded() {
    an_unknown_rank(&Target::Sockets);
}

#[test]
fn an_unknown_rank_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        an_unknown_rank(&Target::Bmv2(program));
    }
}
