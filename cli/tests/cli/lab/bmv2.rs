//! Labs with BMv2.

use ultima_testing::per_run;
use ultima_tests::needs;

use super::hosts::tcp_copies;
use super::stage::{Lab, topology};

#[test]
fn hosts_reach_each_other_over_bmv2() {
    // The one lab with BMv2 for every change.
    if needs::bmv2_installed().is_none() {
        return;
    }
    for file in &["star4.yaml", "two-switches.yaml"][..per_run(1, 2)] {
        let lab = Lab::of_file(&topology(file), &["--switch", "bmv2"]);
        let hosts = lab.hosts();
        for (one, _) in &hosts {
            for (other, _) in &hosts {
                assert!(lab.pings(one, other), "{file}: {one} reaches {other}");
            }
        }
        tcp_copies(&lab);
        lab.create("{ name: train, members: [h1, h2, h3] }");
        lab.down();
    }
}
