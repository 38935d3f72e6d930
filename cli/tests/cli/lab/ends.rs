//! Labs end completely, and do not affect each other.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ultima_testing::{full, per_run};
use ultima_tests::needs;

use super::links::cross_traffic_passes_the_bottleneck;
use super::shipped::all_reach_their_next;
use super::stage::{Lab, name, namespaces, printed, topology};
use crate::common::{self, wait_until};

#[test]
fn two_labs_of_one_fabric_run_side_by_side() {
    if !needs::interfaces() {
        return;
    }
    let file = topology("star4.yaml");
    let (one, other) = (Lab::of_file(&file, &[]), Lab::of_file(&file, &[]));
    assert!(one.pings("h1", "h4") && other.pings("h1", "h4"));
    let listed = String::from_utf8(common::output(&["lab", "status"]).stdout).expect("text");
    assert!(
        listed.contains(&one.name) && listed.contains(&other.name),
        "{listed}"
    );
    one.down();
    assert!(other.pings("h4", "h1"));
    other.down();
}

/// `lab up` rejects the name of a lab of star4.
pub fn a_second_lab_of_the_same_name_is_rejected(lab: &Lab) {
    let file = topology("star4.yaml");
    let again = common::output(&["lab", "up", &file.to_string_lossy(), "--name", &lab.name]);
    assert_eq!(again.status.code(), Some(5));
    let said = String::from_utf8_lossy(&again.stderr);
    let start = format!(
        "error: lab {} is up already: {} on embedded, 2 of 2 processes run; ",
        lab.name,
        file.display()
    );
    let end = format!("stop it with `ultima lab down {}`\n", lab.name);
    assert!(said.starts_with(&start) && said.ends_with(&end), "{said}");
    assert!(lab.pings("h1", "h2"), "the lab is as it was");
}

/// `lab down` rejects the name of a lab that has ended.
pub fn an_ended_lab_is_unknown(gone: &str) {
    let again = common::output(&["lab", "down", gone]);
    assert_eq!(again.status.code(), Some(4));
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        said.starts_with(&format!("error: there is no lab {gone}; ")),
        "{said}"
    );
}

#[test]
fn a_lab_ends_completely_after_its_processes_were_killed() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("dumbbell.yaml"), &[]);
    cross_traffic_passes_the_bottleneck(&lab);
    all_reach_their_next(&lab);
    // A user's process on a host. In a full run it ignores SIGTERM, and `lab down` kills it after 5 s.
    let script = match full() {
        true => "trap '' TERM; echo ready; while :; do sleep 1; done",
        false => "echo ready; exec sleep 600",
    };
    let mut user = common::ultima(&["lab", "exec", "--name", &lab.name, "h1", "--"])
        .args(["sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut ready = [0; 5];
    let stdout = user.stdout.as_mut().expect("piped");
    std::io::Read::read_exact(stdout, &mut ready).expect("its word");

    for killed in ["switch-left", "controller", "wire6a-wire6b"] {
        let processes = lab.processes();
        let (_, pid) = processes
            .iter()
            .find(|(role, _)| role == killed)
            .expect(killed);
        kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("it runs");
        wait_until("the process is seen to have ended", || {
            let (status, code) = lab.status();
            let processes = status["processes"].as_array().expect("processes");
            let ended = |process: &Value| process["runs"] == false && process["role"] == killed;
            code == Some(1) && processes.iter().any(ended)
        });
    }
    lab.down();
    assert!(!user.wait().expect("it was ours").success());
}

/// The namespace of a host is deleted.
#[test]
fn status_names_a_missing_host() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("star4.yaml"), &[]);
    let gone = format!("ultima:{}:h2", lab.name);
    let deleted = Command::new("ip").args(["netns", "delete", &gone]).status();
    assert!(deleted.expect("iproute2").success());
    let (status, code) = lab.status();
    assert_eq!(
        (code, &status["missing"][0]),
        (Some(1), &gone.as_str().into())
    );
    let output = lab.exec("h2", &["true"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("error: the namespace of h2 is gone; "),
        "{said}"
    );
    assert!(lab.pings("h1", "h3"), "the others are as they were");
    lab.down();
}

/// `lab up` is killed at several stages.
#[test]
fn lab_down_removes_what_a_killed_lab_up_left() {
    if !needs::interfaces() {
        return;
    }
    let file = topology("star16.yaml");
    let stages = ["namespaces", "a folder", "processes"];
    for &stage in &stages[..per_run(1, 3)] {
        let name = name("killed");
        let folder = Path::new("/run/ultima/labs").join(&name);
        let up = ["lab", "up", &file.to_string_lossy(), "--name", &name];
        let mut child = common::ultima(&up)
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        wait_until(stage, || match stage {
            "a folder" => folder.exists(),
            "namespaces" => namespaces(&name).len() > 3,
            _ => folder.join("logs/switch-s1.log").exists(),
        });
        child.kill().expect("it runs");
        child.wait().expect("it was ours");
        let again = common::output(&up);
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(
            said.contains(&format!("lab {name} is incomplete")),
            "{stage}: {said}"
        );
        printed(&common::output(&["lab", "down", &name]));
        assert_eq!(namespaces(&name), Vec::<String>::new());
        assert!(!folder.exists());
    }
}

/// The lab is the only one of its mount namespace.
#[test]
fn the_last_lab_down_removes_the_folder_of_all_labs() {
    if !needs::interfaces() {
        return;
    }
    let script = "set -e; mount -t tmpfs tmpfs /run; ip link set lo up\n\
        \"$0\" lab up \"$1\" --name one\n\
        \"$0\" lab up \"$1\" --name other\n\
        \"$0\" lab down one; test -d /run/ultima/labs/other\n\
        \"$0\" lab down other; test ! -e /run/ultima\n\
        \"$0\" lab down other || test $? = 4; test ! -e /run/ultima";
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
    unshare.args(["--mount-proc", "sh", "-c", script]);
    unshare.args([env!("CARGO_BIN_EXE_ultima")]);
    let output = unshare.arg(topology("star4.yaml")).output();
    printed(&output.expect("unshare"));
}

/// A switch that does not start, and an interrupt while `lab up` waits for a switch.
#[test]
fn a_failed_lab_up_leaves_nothing() {
    if !needs::interfaces() {
        return;
    }
    let programs = tempfile::tempdir().expect("a folder");
    let switch = programs.path().join("simple_switch_grpc");
    let path = format!(
        "{}:{}",
        programs.path().display(),
        std::env::var("PATH").expect("a PATH")
    );
    let write = |script: &str| {
        fs::write(&switch, script).expect("written");
        fs::set_permissions(&switch, fs::Permissions::from_mode(0o755)).expect("ours");
    };
    let file = topology("star4.yaml");
    let name = name("undone");
    let up = || {
        let mut up = common::ultima(&[
            "lab",
            "up",
            &file.to_string_lossy(),
            "--switch",
            "bmv2",
            "--name",
            &name,
        ]);
        up.env("PATH", &path).stderr(Stdio::piped());
        up
    };

    write("#!/bin/sh\necho 'no such device' >&2\nexit 1\n");
    let output = up().output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: switch-s1: no such device\n"
    );
    assert_eq!(namespaces(&name), Vec::<String>::new());

    write("#!/bin/sh\nexec sleep 600\n");
    let mut child = up().spawn().expect("it runs");
    let log = format!("/run/ultima/labs/{name}/logs/switch-s1.log");
    wait_until("the switch is started", || Path::new(&log).exists());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(namespaces(&name), Vec::<String>::new());
    assert!(!Path::new(&log).exists());
}
