//! How labs end, and how they do not get in each other's way.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ultima_tests::needs;

use crate::common::{self, wait_until};
use crate::stage::{Lab, name, namespaces, printed, topology};

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

#[test]
fn a_second_lab_of_the_name_says_what_runs() {
    if !needs::interfaces() {
        return;
    }
    let file = topology("star4.yaml");
    let lab = Lab::of_file(&file, &[]);
    let again = common::output(&["lab", "up", &file.to_string_lossy(), "--name", &lab.name]);
    assert_eq!(again.status.code(), Some(5));
    let said = String::from_utf8_lossy(&again.stderr);
    let start = format!(
        "error: lab {} is up already: {} on embedded, 2 of 2 processes run; ",
        lab.name,
        file.display()
    );
    let end = format!("end it with `ultima lab down {}`\n", lab.name);
    assert!(said.starts_with(&start) && said.ends_with(&end), "{said}");
    assert!(lab.pings("h1", "h2"), "the lab is as it was");
    let gone = lab.name.clone();
    lab.down();
    let again = common::output(&["lab", "down", &gone]);
    assert_eq!(again.status.code(), Some(4));
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        said.starts_with(&format!("error: there is no lab {gone}; ")),
        "{said}"
    );
}

#[test]
fn a_lab_ends_whole_whatever_was_killed() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("dumbbell.yaml"), &[]);
    // Somebody's own process on a host, which does not want to end.
    let mut user = common::ultima(&["lab", "exec", "--name", &lab.name, "h1", "--"])
        .args([
            "sh",
            "-c",
            "trap '' TERM; echo ready; while :; do sleep 1; done",
        ])
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

/// Somebody else deletes a host.
#[test]
fn a_lab_says_what_of_it_is_gone() {
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

/// A command that makes a lab is killed at whatever it was doing.
#[test]
fn what_a_killed_command_has_left_is_cleared_away() {
    if !needs::interfaces() {
        return;
    }
    let file = topology("star16.yaml");
    for stage in ["a folder", "namespaces", "processes"] {
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
            said.contains(&format!("lab {name} was left half-way")),
            "{stage}: {said}"
        );
        printed(&common::output(&["lab", "down", &name]));
        assert_eq!(namespaces(&name), Vec::<String>::new());
        assert!(!folder.exists());
    }
}

/// A switch that does not start, and one that is interrupted while it is waited for.
#[test]
fn what_fails_half_way_is_undone() {
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
