//! A packet that a switch admits and cannot send is counted once.

use ultima_tests::controller::RIGHT_BY_UNICAST;
use ultima_tests::operator::Operator;
use ultima_tests::scenario::{self, to_an_unknown_rank, without_a_group};
use ultima_tests::stage::{Stage, Target};

/// The rank whose address the switch loses. Another rank is on the same host.
const UNKNOWN: u16 = 1;

fn packets_to_a_missing_group_are_counted(target: &Target) {
    target.star(|mut stage| {
        stage.controller.delete(&stage.testbed, "right");
        let right = stage.controller.create(&stage.testbed, RIGHT_BY_UNICAST);
        assert_eq!(right.group, 0);
        stage.jobs[1] = right;
        let scenario = without_a_group(stage.scene());
        scenario::run(&mut stage, &scenario);
    });
}

on_both! {
    packets_to_a_missing_group_are_counted;
}

fn packets_to_an_unknown_rank_are_counted(target: &Target) {
    target.star(|mut stage| {
        let operator = stage
            .testbed
            .runtime
            .block_on(Operator::at(0, stage.testbed.grpc()[0]));
        let left = stage.jobs[0].clone();
        let Stage { testbed, .. } = &stage;
        testbed
            .runtime
            .block_on(operator.delete_address(&left, UNKNOWN));
        let scenario = to_an_unknown_rank(stage.scene(), &left, UNKNOWN);
        scenario::run(&mut stage, &scenario);

        let Stage { testbed, .. } = &stage;
        testbed
            .runtime
            .block_on(operator.insert_address(&left, UNKNOWN));
        for scenario in scenario::recheck(stage.scene()) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

on_both! {
    packets_to_an_unknown_rank_are_counted;
}
