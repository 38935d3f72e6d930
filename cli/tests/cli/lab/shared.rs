//! Checks that share one lab, because they do not change it.

use ultima_tests::needs;

use super::stage::{Lab, topology};
use super::{bad_input, ends, hosts, shipped};

#[test]
fn a_lab_of_star4_connects_hosts_runs_commands_and_needs_root() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("star4.yaml"), &[]);
    hosts::exec_runs_a_command_on_its_host(&lab);
    shipped::all_hosts_reach_each_other_and_the_controller(&lab);
    ends::a_second_lab_of_the_same_name_is_rejected(&lab);
    bad_input::labs_need_root(&lab);
    let name = lab.name.clone();
    lab.down();
    ends::an_ended_lab_is_unknown(&name);
}
