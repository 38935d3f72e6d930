//! Labs on the real BMv2.

use ultima_tests::needs;

use crate::common;
use crate::hosts::tcp_copies;
use crate::stage::{Lab, printed, topology};

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
        let controller = format!("unix:/run/ultima/labs/{}/controller.sock", lab.name);
        let folder = tempfile::tempdir().expect("a folder");
        let job = folder.path().join("job.yaml");
        std::fs::write(&job, "name: train\nmembers: [h1, h2, h3]\n").expect("written");
        let job = job.to_string_lossy();
        printed(&common::output(&[
            "job",
            "create",
            "-f",
            &job,
            "--controller",
            &controller,
        ]));
        lab.down();
    }
}
