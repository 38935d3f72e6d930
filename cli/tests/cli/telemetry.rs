//! `ultima telemetry`: two switches, and a job with losses of every cause.

use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{output, refused_with, ultima, wait_until};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::io::ioctl_fionread;
use serde_json::{Value, json};
use ultima_testing::full;
use ultima_tests::fabric::Fabric;
use ultima_tests::job::Job;
use ultima_tests::needs;
use ultima_tests::operator::VirtualQueue;
use ultima_tests::stage::{Stage, Target};
use ultima_wire::{Header, Kind, Ticks};

const LOSSY: &str = "{ name: lossy, members: [h1, h2, h3, h4], loss_threshold: 2 }";
const QUIET: &str = "{ name: quiet, members: [h2, h4] }";
/// Bytes of a slot's values, and of a frame with them.
const VALUES: usize = 906;
const FRAME: i64 = 1000;

/// Bytes of a pipe of one page, the smallest.
const PIPE: usize = 4096;

fn pair<T: Send>(target: &Target, test: impl FnOnce(Stage) -> T + Send) -> T {
    target.run(Fabric::pair(), &[LOSSY, QUIET], test)
}

/// Rank 0 multicasts packets with these numbers in operation 7.`bucket`.
fn gather(stage: &mut Stage, job: &Job, bucket: u16, numbers: &[u32], budget: Ticks) {
    let frames: Vec<Vec<u8>> = numbers
        .iter()
        .map(|number| {
            let header = Header {
                step: 7,
                bucket,
                packet_number: *number,
                slot: *number,
                budget,
                ..job.header(Kind::Gather, 0, 0)
            };
            let sent = job.gather(0, &[7; VALUES]);
            sent.with_header(&header).emit()
        })
        .collect();
    stage.testbed.exchange(job.host_of(0), &frames);
}

/// The trunk carries three packets and trims three. One packet is late at both ports. 65 are lost before the first switch:
/// two of them are 64 numbers before one that comes, which the switch counts as lost for good.
fn lose(stage: &mut Stage) {
    let job = stage.jobs[0].clone();
    let trunk = VirtualQueue::Share(job.shares[&(0, 9)]);
    stage.operate(0, async |operator| {
        operator.limit(trunk, 3 * FRAME, 3 * FRAME).await;
    });
    gather(stage, &job, 1, &[0, 1, 67, 68, 69, 70], Ticks::MAX);
    gather(stage, &job, 2, &[71], Ticks(0));
    let quiet = stage.jobs[1].clone();
    gather(stage, &quiet, 1, &[0, 1], Ticks::MAX);
    // Waits until the controller has the reports of both ports for 7.1.
    stage.controller.telemetry(&stage.testbed, "lossy", 2);
}

fn telemetry(stage: &Stage, arguments: &[&str]) -> String {
    let address = stage.controller.address();
    let output = output(&[&["telemetry", "--controller", &address], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn document(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "one document a line");
    serde_json::from_str(text).expect("JSON")
}

fn the_table_has_every_loss(target: &Target) {
    pair(target, |mut stage| {
        lose(&mut stage);
        let mut text = telemetry(&stage, &["lossy"]);
        // The two reports may come in either order.
        let (trunk, source) = (
            "7.1        s1/9         0     2        0     0\n",
            "7.1        s1/1         0     0        0     2\n",
        );
        text = text.replace(&[trunk, source].concat(), &[source, trunk].concat());
        let expected = "\
JOB    SWITCH  RECEIVED  REJECTED  UNDELIVERABLE  UNKNOWN-RANK  DELIVERED  TRIMMED  LATE  TAIL-DROPPED  UPSTREAM-LOST
lossy  s1      7         0         0              0             14         3        2     0             65
lossy  s2      7         0         0              0             14         0        0     0             0

LINK          TRIMMED  LATE  UPSTREAM-LOST
s1/2 to h2    0        1
s1/9 to s2    3        1
rank 0 to s1                 65

OPERATION  REPORTED-BY  RANK  TRIMMED  LATE  UPSTREAM-LOST
7.1        s1/1         0     0        0     2
7.1        s1/9         0     2        0     0

";
        assert_eq!(text, expected);
        let quiet = telemetry(&stage, &["quiet"]);
        assert!(
            !quiet.contains("LINK") && !quiet.contains("OPERATION"),
            "{quiet}"
        );
        assert_eq!(
            telemetry(&stage, &[]).lines().count(),
            text.lines().count() + quiet.lines().count()
        );
    });
}

#[test]
fn the_table_has_every_loss_on_embedded() {
    the_table_has_every_loss(&Target::Sockets);
}

#[test]
fn the_table_has_every_loss_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        the_table_has_every_loss(&Target::Bmv2(program));
    }
}

#[test]
fn json_has_every_count() {
    pair(&Target::Sockets, |mut stage| {
        lose(&mut stage);
        let all = document(&telemetry(&stage, &["--output=json"]));
        assert_eq!(all["version"], 1);
        let [lossy, quiet] = &all["jobs"].as_array().expect("jobs")[..] else {
            panic!("two jobs: {all}")
        };
        assert_eq!([&lossy["job"], &quiet["job"]], ["lossy", "quiet"]);
        let one = document(&telemetry(&stage, &["lossy", "--output=json"]));
        assert_eq!(one["jobs"][0], *lossy, "alone or not");

        let count = |packets: u64, bytes: u64| json!({ "packets": packets, "bytes": bytes });
        let [near, far] = &lossy["switches"].as_array().expect("switches")[..] else {
            panic!("two switches: {lossy}")
        };
        assert_eq!(near["switch"], "s1");
        assert_eq!(near["received"], count(7, 7000));
        assert_eq!(near["replicated"], count(7, 7000));
        // To h2 and the trunk.
        assert_eq!(near["delivered"], count(14, 14_000));
        assert_eq!(near["own_copy"], count(7, 7000));
        assert_eq!(near["trimmed"], count(3, 3000));
        assert_eq!(near["late"], count(2, 2000));
        for none in [
            "rejected",
            "unicast",
            "reflected",
            "undeliverable",
            "unknown_rank",
            "trimmed_sealed",
        ] {
            assert_eq!(near[none], count(0, 0), "{none}");
        }
        assert_eq!(near["tail_dropped"], 0);
        assert_eq!(near["problem"], Value::Null);
        assert_eq!(near["digest_lists_dropped"], 0);
        assert_eq!(lossy["losses_discarded"], 0);
        let trunk = json!({
            "port": 9, "port_name": "s1/9", "peer": "s2", "sent": count(7, 7000), "late": count(1, 1000), "trimmed": count(3, 3000),
            "trimmed_sealed": count(0, 0),
        });
        let ports = near["ports"].as_array().expect("ports");
        assert!(ports.contains(&trunk), "{ports:?}");
        let source =
            json!({ "rank": 0, "lost": 65, "overtaken": 0, "renumbered": 0, "duplicated": 0 });
        assert_eq!(near["sources"][0], source);
        // Trimmed packets have 94 bytes.
        assert_eq!(far["received"], count(7, 3 * 1000 + 4 * 94));
        assert_eq!([&far["late"], &far["trimmed"]], [&count(0, 0); 2]);

        let mut losses: Vec<Value> = lossy["losses"].as_array().expect("losses").clone();
        for loss in &mut losses {
            let told = loss
                .as_object_mut()
                .expect("an object")
                .remove("reported_at_ms");
            assert!(told.and_then(|ms| ms.as_u64()).is_some_and(|ms| ms > 0));
        }
        losses.sort_by_key(|loss| loss["port"].as_u64());
        let loss = |port: u16, trimmed: u32, upstream: u32| {
            json!({
                "switch": "s1", "port": port, "port_name": format!("s1/{port}"), "epoch": 1, "step": 7, "bucket": 1, "source": 0,
                "trimmed": trimmed, "late": 0, "upstream_lost": upstream,
            })
        };
        // One report each, with the counts at that time.
        assert_eq!(losses, [loss(1, 0, 2), loss(9, 2, 0)]);

        assert_eq!(quiet["losses"], json!([]));
        for switch in quiet["switches"].as_array().expect("switches") {
            for cause in ["rejected", "late", "trimmed", "undeliverable"] {
                assert_eq!(switch[cause], count(0, 0));
            }
        }
    });
}

#[test]
fn a_new_job_of_the_same_name_starts_at_zero() {
    pair(&Target::Sockets, |mut stage| {
        lose(&mut stage);
        stage.controller.delete(&stage.testbed, "lossy");
        stage.controller.create(&stage.testbed, LOSSY);
        let text = telemetry(&stage, &["lossy", "--output=json"]);
        let job = &document(&text)["jobs"][0];
        assert_eq!(job["losses"], json!([]));
        for switch in job["switches"].as_array().expect("switches") {
            for (name, count) in switch.as_object().expect("an object") {
                if count.is_object() {
                    assert_eq!(*count, json!({ "packets": 0, "bytes": 0 }), "{name}");
                }
            }
            for source in switch["sources"].as_array().expect("sources") {
                assert_eq!(source["lost"], 0);
            }
        }
        stage.controller.delete(&stage.testbed, "lossy");
        stage.controller.delete(&stage.testbed, "quiet");
        assert_eq!(telemetry(&stage, &[]), "no jobs\n");
        let none = document(&telemetry(&stage, &["--output=json"]));
        assert_eq!(none, json!({ "version": 1, "jobs": [] }));
    });
}

fn watch(stage: &Stage, arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let address = stage.controller.address();
    let watch = ["telemetry", "--watch", "--controller", &address];
    let mut child = ultima(&[&watch, arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped"));
    (child, lines)
}

/// True if the next document does not fit into the watch's pipe.
fn is_full(pipe: &ChildStdout, document: usize) -> bool {
    let unread = ioctl_fionread(pipe).expect("a pipe counts its bytes");
    let unread = usize::try_from(unread).expect("a pipe is small");
    unread > 0 && unread + document > PIPE
}

fn next_line(lines: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).expect("text");
    assert!(!line.is_empty(), "it has ended");
    line
}

#[test]
fn a_watch_prints_events_until_it_is_interrupted() {
    pair(&Target::Sockets, |mut stage| {
        let (mut child, mut lines) = watch(&stage, &["--output=json"]);
        let first = document(&next_line(&mut lines));
        assert_eq!(first["jobs"][0]["losses"], json!([]));
        lose(&mut stage);
        let lost = |document: &Value| document["jobs"][0]["losses"].as_array().map_or(0, Vec::len);
        let mut told = 0;
        while told < 2 {
            told += lost(&document(&next_line(&mut lines)));
        }
        // A watch prints each report once; a later watch starts with the earlier ones.
        assert_eq!((told, lost(&document(&next_line(&mut lines)))), (2, 0));
        let (mut later, mut its_lines) =
            watch(&stage, &["lossy", "--output=json", "--every", "100ms"]);
        assert_eq!(lost(&document(&next_line(&mut its_lines))), 2);
        assert_eq!(lost(&document(&next_line(&mut its_lines))), 0);
        kill(Pid::from_raw(later.id() as i32), Signal::SIGINT).expect("it runs");
        assert_eq!(later.wait().expect("it ends").code(), Some(130));
        // The watch goes on when a job is deleted.
        stage.controller.delete(&stage.testbed, "lossy");
        while document(&next_line(&mut lines))["jobs"][0]["job"] != "quiet" {}
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(130));
        for line in lines.lines() {
            document(&line.expect("whole lines"));
        }
    });
}

/// The watch writes to a pager that stops reading: its pipe is full.
#[test]
fn a_watch_survives_a_slow_reader() {
    pair(&Target::Sockets, |stage| {
        let left_alone = || {
            let (child, mut lines) = watch(&stage, &["--output=json", "--every", "100ms"]);
            let document = next_line(&mut lines).len();
            let pipe = lines.get_ref().as_fd();
            fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE as i32)).expect("a small pipe");
            wait_until("the pipe is full", || is_full(lines.get_ref(), document));
            (child, lines)
        };
        let (mut child, mut lines) = left_alone();
        let (mut other, _unread) = left_alone();
        if full() {
            // Longer than the controller waits for an answer of an idle client.
            sleep(Duration::from_secs(7));
        }
        stage.controller.delete(&stage.testbed, "lossy");
        while document(&next_line(&mut lines))["jobs"][0]["job"] != "quiet" {}
        // One is interrupted while it is read, the other while it is not.
        for child in [&mut child, &mut other] {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
            assert_eq!(child.wait().expect("it ends").code(), Some(130));
        }
    });
}

#[test]
fn a_disconnected_switch_hides_no_other() {
    pair(&Target::Sockets, |stage| {
        let (mut child, mut lines) = watch(&stage, &["quiet", "--output=json"]);
        let mut s2 = || document(&next_line(&mut lines))["jobs"][0]["switches"][1].clone();
        assert_eq!(s2()["problem"], Value::Null);
        // Another controller becomes the switch's primary.
        stage.operate(1, async |_| {
            let text = telemetry(&stage, &["quiet"]);
            let [_, near, far, away, ""] = text.lines().collect::<Vec<_>>()[..] else {
                panic!("two switches: {text}")
            };
            assert!(near.starts_with("quiet  s1      0 "), "{text}");
            assert_eq!(far, "quiet  s2      unreachable");
            let problem = away.strip_prefix("s2: unreachable: ").expect("why");
            assert!(problem.contains("primary"), "{text}");
            let gone = loop {
                let gone = s2();
                if gone["problem"].is_string() {
                    break gone;
                }
            };
            // The entry has no counts; it does not have zeros.
            assert_eq!(gone.as_object().expect("an object").len(), 2, "{gone}");
        });
        while s2()["problem"] != Value::Null {}
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(130));
    });
}

#[test]
fn a_watch_ends_with_its_reader_and_with_its_job() {
    pair(&Target::Sockets, |stage| {
        let (mut child, mut lines) = watch(&stage, &["lossy"]);
        next_line(&mut lines);
        drop(lines);
        assert_eq!(child.wait().expect("it ends").code(), Some(0));

        let (mut child, mut lines) = watch(&stage, &["lossy"]);
        next_line(&mut lines);
        stage.controller.delete(&stage.testbed, "lossy");
        lines.lines().for_each(|line| drop(line.expect("text")));
        assert_eq!(child.wait().expect("it ends").code(), Some(4));
        let errors = std::io::read_to_string(child.stderr.take().expect("piped")).expect("text");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("there is no job \"lossy\""), "{errors}");
    });
}

#[test]
fn an_unknown_job_is_an_error_of_one_line() {
    pair(&Target::Sockets, |stage| {
        let address = stage.controller.address();
        let text = refused_with(4, &["telemetry", "lost", "--controller", &address]);
        assert!(text.contains("lost") && text.contains("lossy"), "{text}");
        let watch = ["telemetry", "lost", "--watch", "--output=json"];
        let text = refused_with(4, &[&watch[..], &["--controller", &address]].concat());
        assert!(text.contains("lost"), "{text}");
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let text = refused_with(3, &["telemetry", "--controller", &address]);
    assert!(text.contains(&address), "{text}");
}
