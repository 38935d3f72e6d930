//! Labs on the real BMv2.

use ultima_tests::needs;

use crate::hosts::tcp_copies;
use crate::stage::{Lab, topology};

#[test]
fn hosts_reach_each_other_over_bmv2() {
    if needs::bmv2().is_none() {
        return;
    }
    for file in ["star4.yaml", "two-switches.yaml"] {
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
