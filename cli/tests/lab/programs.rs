//! Programs that know nothing of Ultima: ping, iperf3, and PyTorch with Gloo.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;
use ultima_tests::needs;

use crate::stage::{Lab, printed, topology};

/// An all_reduce by Gloo.
pub fn gloo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/gloo.py")
}

fn all_ping_all(lab: &Lab) {
    let hosts = lab.hosts();
    for (one, _) in &hosts {
        for (other, _) in &hosts {
            assert!(lab.pings(one, other), "{one} reaches {other}");
        }
    }
}

/// TCP to another host with `bytes`, as iperf3 writes numbers.
fn iperf3_runs(lab: &Lab, bytes: &str) {
    let mut server = lab.start("h2", &["iperf3", "--server", "--one-off", "--forceflush"]);
    let mut said = BufReader::new(server.stdout.take().expect("piped")).lines();
    assert!(
        said.any(|line| line.expect("text").contains("Server listening")),
        "the server says that it is there"
    );
    let client = ["iperf3", "--client", "h2", "--bytes", bytes, "--json"];
    let report: Value = serde_json::from_str(&printed(&lab.exec("h1", &client))).expect("JSON");
    // What is on its way when the last of it has been handed to the kernel does not count.
    let received = &report["end"]["sum_received"]["bytes"];
    assert!(received.as_u64() > Some(0), "{report}");
    assert!(server.wait().expect("it ends").success());
}

/// One process on each host; all of them have the sum.
fn gloo_runs(lab: &Lab, values: &str) {
    let hosts = ["h1", "h2", "h3", "h4"];
    let script = gloo();
    let script = script.to_string_lossy();
    let command = [&[needs::DEBIAN_PYTHON, &script, values][..], &hosts].concat();
    let processes = hosts.map(|host| lab.start(host, &command));
    for (rank, process) in processes.into_iter().enumerate() {
        let said = printed(&process.wait_with_output().expect("it ends"));
        assert_eq!(said, format!("rank {rank} of 4 has the sum\n"));
    }
}

#[test]
fn programs_of_others_run_between_hosts() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("two-switches.yaml"), &[]);
    all_ping_all(&lab);
    if needs::iperf3() {
        iperf3_runs(&lab, "4M");
    }
    if needs::torch() {
        gloo_runs(&lab, "100000");
    }
    lab.down();
}

/// What is slow there: a few thousand packets per second.
#[test]
fn programs_of_others_run_between_hosts_on_bmv2() {
    if needs::bmv2().is_none() {
        return;
    }
    let lab = Lab::of_file(&topology("two-switches.yaml"), &["--switch", "bmv2"]);
    all_ping_all(&lab);
    if needs::iperf3() {
        iperf3_runs(&lab, "256K");
    }
    if needs::torch() {
        gloo_runs(&lab, "4000");
    }
    lab.down();
}
