//! The same fabrics in Mininet.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use ultima_testing::{full, per_run};
use ultima_tests::needs;

use super::agents::{EIGHT_RANKS, LARGE, OPTIONS, SMALL, all_agree, all_agree_over_several_paths};
use super::programs::gloo;
use super::stage::topology;
use super::unusual::{cycle, long_names};
use crate::common::wait_until;

/// The command of the launcher with these commands for its prompt.
fn launcher(file: &Path, switch: &str, commands: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies/mininet/launch.py");
    // A background job of a shell ignores SIGINT, and so would the launcher.
    let mut launch = Command::new("env");
    launch.args(["--default-signal=INT", needs::DEBIAN_PYTHON]);
    launch.arg(script).arg(file).args(["--switch", switch]);
    launch.args(["--ultima", env!("CARGO_BIN_EXE_ultima")]);
    for command in commands {
        launch.args(["-c", command]);
    }
    launch
}

/// Runs the launcher.
fn launch(file: &Path, switch: &str, commands: &[&str]) -> Output {
    let output = launcher(file, switch, commands).output();
    output.expect("Python runs")
}

/// Runs the launcher, whose commands must succeed; returns its output.
fn done(file: &Path, switch: &str, commands: &[&str]) -> String {
    let output = launch(file, switch, commands);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {printed}{errors}",
        output.status
    );
    printed
}

/// The report of each host's agent.
fn reports(printed: &str) -> Vec<Value> {
    let hosts = printed
        .split("*** ")
        .filter_map(|part| part.split_once('\n'));
    let objects = hosts.filter(|(_, said)| said.starts_with('{'));
    objects
        .map(|(_, said)| {
            // Lines of standard error may follow.
            let mut values = serde_json::Deserializer::from_str(said).into_iter();
            let report = values.next().expect("a value");
            let rest = &said[values.byte_offset()..];
            assert!(!rest.contains(['{', '[']), "one JSON object: {said}");
            report.unwrap_or_else(|error| panic!("{error}: {said}"))
        })
        .collect()
}

/// Writes a fabric file.
fn file_of(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fabric.yaml");
    fs::write(&file, text).expect("written");
    (folder, file)
}

/// Runs the launcher's command `job`: one agent on each host, with as many ranks as the host has places.
fn jobs_over(switch: &str, work: &[&str]) {
    let options: Vec<&str> = OPTIONS[2..]
        .iter()
        .chain(work)
        .copied()
        .filter(|word| *word != "--verify")
        .collect();
    let job = format!("job {}", options.join(" "));
    // The second job finds nothing left of the first.
    let (_folder, file) = file_of(&cycle());
    let jobs = per_run(1, 2);
    let said = done(&file, switch, &["pingall", &job, &job][..=jobs]);
    let both = reports(&said);
    assert_eq!(both.len(), 3 * jobs, "{said}");
    for reports in both.chunks(3) {
        all_agree_over_several_paths(reports, 3);
    }

    if full() {
        let (_folder, file) = file_of(EIGHT_RANKS);
        let said = done(&file, switch, &[&job]);
        all_agree(&reports(&said), 8);
    }
}

#[test]
fn a_job_runs_in_mininet() {
    if needs::mininet() {
        jobs_over("embedded", &LARGE);
    }
}

#[test]
fn a_job_runs_in_mininet_on_bmv2() {
    if needs::mininet() && needs::bmv2().is_some() {
        jobs_over("bmv2", &SMALL);
    }
}

/// Without options, the launcher chooses the work that the switch can carry.
#[test]
fn a_job_runs_in_mininet_without_options() {
    if !(needs::full_run() && needs::mininet()) {
        return;
    }
    let switches = ["embedded", "bmv2"];
    let available = switches
        .iter()
        .filter(|switch| **switch == "embedded" || needs::bmv2().is_some());
    for switch in available {
        let said = done(&topology("star4.yaml"), switch, &["job"]);
        for host in ["h1", "h2", "h3", "h4"] {
            assert!(
                said.contains(&format!("on {host}: 1 operation of ")),
                "{switch}: {said}"
            );
        }
        assert_eq!(said.matches(" 0 wrong; ").count(), 5, "{switch}: {said}");
    }
}

/// Runs ping, iperf3 and Gloo.
fn ping_iperf3_and_gloo(switch: &str, bytes: &str, values: &str) {
    let mut commands = vec!["h1 ping -c 3 -i 0.2 h4".to_owned()];
    if needs::iperf3() {
        commands.push("h2 iperf3 --server --one-off --daemon".to_owned());
        commands.push(format!(
            "h1 sh -c 'until iperf3 --client 10.0.0.2 --bytes {bytes}; do sleep 0.1; done'"
        ));
    }
    if needs::torch() {
        let (python, script) = (needs::DEBIAN_PYTHON, gloo());
        let script = script.display();
        commands.push(format!("hosts {python} {script} {values} h1 h2 h3 h4"));
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let said = done(&topology("star4.yaml"), switch, &commands);
    if needs::torch() {
        for rank in 0..4 {
            assert!(
                said.contains(&format!("rank {rank} of 4 has the sum")),
                "{said}"
            );
        }
    }
}

#[test]
fn ping_iperf3_and_gloo_run_in_mininet() {
    if needs::full_run() && needs::mininet() {
        ping_iperf3_and_gloo("embedded", "4M", "100000");
    }
}

#[test]
fn ping_iperf3_and_gloo_run_in_mininet_on_bmv2() {
    if needs::mininet() && needs::bmv2().is_some() {
        ping_iperf3_and_gloo("bmv2", "256K", "4000");
    }
}

/// Names that interfaces cannot have, and that Mininet's prompt cannot parse.
#[test]
fn long_names_run_in_mininet() {
    if !(needs::full_run() && needs::mininet()) {
        return;
    }
    let (_folder, file) = file_of(&long_names());
    let [h1, h2] = ["h-1", "h.2"].map(|end| format!("{}{end}", "a-b_c.".repeat(10)));
    let ping = format!("{h1} ping -c 1 {h2}");
    let said = done(
        &file,
        "embedded",
        &["pingall", &ping, "job --output=json --rate=50M"],
    );
    assert_eq!(reports(&said).len(), 2, "{said}");
}

/// A job is created, and a host sees it, in a fabric with cross traffic, a bottleneck and impaired links.
#[test]
fn an_impaired_fabric_runs_in_mininet() {
    if !(needs::full_run() && needs::mininet()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job.yaml");
    fs::write(&job, "name: train\nmembers: [h1, h2, h3]\n").expect("written");
    let create = format!("sh ultima job create -f {}", job.display());
    // Cross traffic makes some pings fail; one answer is enough for ping's exit code.
    let commands = [
        "h1 ping -c 10 -i 0.2 h3",
        &create,
        "h2 ultima job show train",
    ];
    let said = done(&topology("dumbbell.yaml"), "embedded", &commands);
    assert!(said.contains("train"), "{said}");
}

/// A background process of a user ends with the launcher.
#[test]
fn background_processes_end_with_mininet() {
    if !(needs::full_run() && needs::mininet()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let pid = folder.path().join("pid");
    let leave = format!("h1 sh -c 'setsid sleep 600 & echo $! > {}'", pid.display());
    done(&topology("star4.yaml"), "embedded", &[&leave]);
    let pid = fs::read_to_string(pid).expect("its number");
    let command = fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert!(!command.starts_with(b"sleep"), "it still runs");
}

/// The inner launcher ends, and the outer one works on.
#[test]
fn a_launcher_runs_inside_another() {
    if !(needs::full_run() && needs::mininet()) {
        return;
    }
    let star = topology("star4.yaml");
    let inner = launcher(&star, "embedded", &["pingall"]);
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    done(
        &star,
        "embedded",
        &[&format!("sh {}", words.join(" ")), "pingall"],
    );
}

/// The launcher is interrupted or killed while a command runs.
#[test]
fn an_interrupted_launcher_leaves_nothing() {
    if !needs::mininet() {
        return;
    }
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL];
    for signal in signals.into_iter().take(per_run(1, 3)) {
        let folder = tempfile::tempdir().expect("a folder");
        let pid = folder.path().join("pid");
        let command = format!("h1 sh -c 'echo $$ > {}; exec sleep 600'", pid.display());
        let mut launcher = launcher(&topology("star4.yaml"), "embedded", &[&command])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let mut sleeping = String::new();
        wait_until("the command runs", || {
            sleeping = fs::read_to_string(&pid).unwrap_or_default();
            sleeping.ends_with('\n')
        });
        let number = Pid::from_raw(launcher.id().cast_signed());
        kill(number, signal).expect("it runs");
        let code = launcher.wait().expect("it ends").code();
        let mut said = String::new();
        let stderr = launcher.stderr.as_mut().expect("piped");
        if signal != Signal::SIGKILL {
            stderr.read_to_string(&mut said).expect("text");
        }
        let expected = match signal {
            Signal::SIGINT => (Some(130), "error: interrupted\n"),
            Signal::SIGTERM => (Some(143), ""),
            _ => (None, ""),
        };
        assert_eq!((code, said.as_str()), expected);
        wait_until("the command has ended", || {
            let line = fs::read(format!("/proc/{}/cmdline", sleeping.trim()));
            !line.unwrap_or_default().starts_with(b"sleep")
        });
    }
}

#[test]
fn the_launcher_fails_when_a_command_fails() {
    if !needs::mininet() {
        return;
    }
    let star = topology("star4.yaml");
    let code = |commands: &[&str]| launch(&star, "embedded", commands).status.code();
    assert_eq!(code(&["h1 sh -c 'exit 7'", "h1 sh -c 'exit 8'"]), Some(7));
    if full() {
        assert_eq!(code(&["hosts sh -c 'exit 9'"]), Some(9));
        // An option that the agent does not have.
        assert_eq!(code(&["job --no-such-option"]), Some(2));
    }

    let (_folder, wrong) = file_of("switches: []\nhosts: []\nlinks: []\n");
    for (file, command, expected) in [
        (
            wrong,
            "pingall",
            "fabric.yaml:1:11: switches: a fabric needs at least one switch",
        ),
        (
            star.clone(),
            "h1 echo 'one",
            "error: echo 'one: No closing quotation",
        ),
        (
            star,
            "h9 true",
            "error: h9 true: expected job, pingall, hosts COMMAND, sh COMMAND, or HOST COMMAND",
        ),
    ] {
        let output = launch(&file, "embedded", &[command]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
