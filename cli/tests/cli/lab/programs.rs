//! Programs that do not know Ultima: ping, iperf3, and PyTorch with Gloo.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;

use serde_json::Value;
use ultima_testing::per_run;
use ultima_tests::needs;

use super::hosts::tcp_copies;
use super::stage::{Lab, printed, topology};

/// The script that runs an all_reduce with Gloo.
pub fn gloo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/lab/gloo.py")
}

fn all_ping_all(lab: &Lab) {
    let hosts = lab.hosts();
    for (one, _) in &hosts {
        for (other, _) in &hosts {
            assert!(lab.pings(one, other), "{one} reaches {other}");
        }
    }
}

/// Sends `bytes`, in iperf3's notation, to another host over TCP.
fn iperf3_runs(lab: &Lab, bytes: &str) {
    let mut server = lab.start("h2", &["iperf3", "--server", "--one-off", "--forceflush"]);
    let mut said = BufReader::new(server.stdout.take().expect("piped")).lines();
    assert!(
        said.any(|line| line.expect("text").contains("Server listening")),
        "the server says that it is there"
    );
    let client = ["iperf3", "--client", "h2", "--bytes", bytes, "--json"];
    let report: Value = serde_json::from_str(&printed(&lab.exec("h1", &client))).expect("JSON");
    // iperf3 does not count bytes that are in flight when its last write returns.
    let received = &report["end"]["sum_received"]["bytes"];
    assert!(received.as_u64() > Some(0), "{report}");
    assert!(server.wait().expect("it ends").success());
}

/// Runs one process on each host; all print that they have the sum.
fn gloo_runs(lab: &Lab, values: &str) {
    let hosts = ["h1", "h4", "h2", "h3"];
    // Each process imports PyTorch, which takes seconds.
    let hosts = &hosts[..per_run(2, 4)];
    let script = gloo();
    let script = script.to_string_lossy();
    let command = [&[needs::DEBIAN_PYTHON, &script, values][..], hosts].concat();
    let processes: Vec<Child> = hosts.iter().map(|host| lab.start(host, &command)).collect();
    let ranks = hosts.len();
    for (rank, process) in processes.into_iter().enumerate() {
        let said = printed(&process.wait_with_output().expect("it ends"));
        assert_eq!(said, format!("rank {rank} of {ranks} has the sum\n"));
    }
}

#[test]
fn ping_iperf3_and_gloo_run_in_a_lab() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("two-switches.yaml"), &[]);
    all_ping_all(&lab);
    tcp_copies(&lab);
    if needs::iperf3() {
        iperf3_runs(&lab, "4M");
    }
    if needs::torch() {
        gloo_runs(&lab, "100000");
    }
    lab.down();
}

/// BMv2 forwards a few thousand packets per second.
#[test]
fn ping_iperf3_and_gloo_run_in_a_lab_on_bmv2() {
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
