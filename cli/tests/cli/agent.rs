//! `ultima agent` on the hosts of a lab; needs root.

use std::borrow::Cow;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Output};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use ultima_agent::job::{Controller, Job};
use ultima_testing::signals;
use ultima_tests::needs;

use crate::common::{self, output, ultima, wait_until};
use crate::lab::agents::EIGHT_RANKS;
use crate::lab::stage::{Lab, printed};

const AGENT: [&str; 5] = [
    env!("CARGO_BIN_EXE_ultima"),
    "agent",
    "--job",
    "train",
    "--output=json",
];
/// A bound that a busy machine meets. An agent serves repairs for as long after its last operation.
const PATIENT: [&str; 2] = ["--deadline", "2s"];

/// With two ranks, shards of seven packets each, all of full size.
const FULL_PACKETS_ONLY: [&str; 5] = [
    "--no-hadamard",
    "--allreduce",
    "4872",
    "--deadline",
    "300ms",
];

/// A lab of four hosts at one switch.
struct Hosts {
    lab: Lab,
    /// The address of the lab's controller.
    controller: String,
}

/// Runs `test` in a lab, or says why there is none.
fn with_hosts(test: impl FnOnce(&Hosts)) {
    if needs::interfaces() {
        let lab = Lab::of_text(EIGHT_RANKS, &[]);
        let controller = lab.controller();
        test(&Hosts { lab, controller });
    }
}

impl Hosts {
    /// Creates a job, written in YAML.
    fn create(&self, yaml: &str) {
        self.lab.create(yaml);
    }

    /// Starts a command on host `h1`, `h2` ….
    fn start(&self, host: u8, command: &[&str]) -> Child {
        self.lab.start(&format!("h{host}"), command)
    }

    /// Runs `ip link set eth0` with this setting on a host.
    fn set_interface(&self, host: u8, setting: &[&str]) {
        let set = [&["ip", "link", "set", "eth0"], setting].concat();
        printed(&self.lab.exec(&format!("h{host}"), &set));
    }

    /// Runs `work` in a host's network namespace.
    fn on<T: Send + 'static>(&self, host: u8, work: impl FnOnce() -> T + Send + 'static) -> T {
        let worked = self.lab.within(&format!("h{host}"), work).join();
        worked.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    }
}

/// Waits until a process has ended; returns its output.
fn ended(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

fn signal(agent: &Child, signal: Signal) {
    signals::signal(agent.id(), signal);
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn ranks_on_several_hosts_agree_on_the_mean() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3, h3] }");
        let work = ["--allreduce", "20000", "--repeat", "5", "--verify"];
        let options = [&AGENT[..], &PATIENT, &work].concat();
        let two = [&options[..], &["--ranks", "2", "--host", "h3"]].concat();
        let agents = [
            hosts.start(1, &options),
            hosts.start(2, &options),
            hosts.start(3, &two),
        ];
        let reports = agents.map(|agent| json(&ended(agent)));
        let ranks: Vec<&Value> = reports
            .iter()
            .flat_map(|report| report["ranks"].as_array().expect("ranks"))
            .collect();
        let mut numbers: Vec<u64> = ranks.iter().map(|r| r["rank"].as_u64().unwrap()).collect();
        numbers.sort();
        assert_eq!(numbers, [0, 1, 2, 3]);
        for step in 0..5 {
            let of = |rank: &Value| rank["operations"][step].clone();
            let whole = ranks.iter().filter(|rank| of(rank)["whole"] == true);
            let whole: Vec<Value> = whole.map(|rank| of(rank)["sha256"].clone()).collect();
            assert!(
                whole.windows(2).all(|pair| pair[0] == pair[1]),
                "step {step}"
            );
        }
        for rank in ranks {
            let summary = &rank["summary"];
            assert_eq!(summary["operations"], 5);
            assert_eq!(summary["wrong"], 0);
            // A busy machine may lose packets; most operations are complete.
            assert!(summary["whole"].as_u64() >= Some(3), "{summary}");
            assert_eq!(summary["rejected"], json!({}), "{summary}");
        }
        // The job runs again.
        let again = [1, 2, 3].map(|host| match host {
            3 => hosts.start(3, &two),
            host => hosts.start(host, &options),
        });
        for agent in again {
            let report = json(&ended(agent));
            assert_eq!(report["ranks"][0]["summary"]["operations"], 5, "{report}");
        }
    });
}

#[test]
fn a_grid_of_jobs_is_averaged_within_groups_and_across() {
    with_hosts(|hosts| {
        // The first group has two ranks on a host.
        hosts.create("{ name: train, members: [h1, h1, h2, h3, h3, h4], groups: 2 }");
        for refused in [&["--trace", "/dev/null"][..], &["--recycle"]] {
            let refused = ended(hosts.start(1, &[&AGENT[..], refused].concat()));
            let errors = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{errors}");
            assert!(errors.contains("train is a grid"), "{errors}");
        }

        let work = ["--allreduce", "20000", "--repeat", "5", "--verify"];
        let options = [&AGENT[..], &PATIENT, &work].concat();
        let two = [&options[..], &["--ranks", "2"]].concat();
        let agents = [
            hosts.start(1, &two),
            hosts.start(2, &options),
            hosts.start(3, &two),
            hosts.start(4, &options),
        ];
        let reports = agents.map(|agent| json(&ended(agent)));
        let ranks: Vec<&Value> = reports
            .iter()
            .flat_map(|report| report["ranks"].as_array().expect("ranks"))
            .collect();
        let mut numbers: Vec<u64> = ranks.iter().map(|r| r["rank"].as_u64().unwrap()).collect();
        numbers.sort();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        for rank in &ranks {
            let summary = &rank["summary"];
            assert_eq!(summary["operations"], 5);
            assert_eq!(summary["wrong"], 0, "{summary}");
            assert_eq!(summary["rejected"], json!({}), "{summary}");
            // A busy machine may lose packets; most operations are complete.
            assert!(summary["whole"].as_u64() >= Some(3), "{summary}");
            let phases = rank["operations"][0]["phases_ms"].as_array();
            assert_eq!(phases.map(Vec::len), Some(3));
        }
        for step in 0..5 {
            let of = |rank: &Value| rank["operations"][step].clone();
            if ranks.iter().all(|rank| of(rank)["whole"] == true) {
                let first = of(ranks[0])["sha256"].clone();
                assert!(ranks.iter().all(|rank| of(rank)["sha256"] == first));
            }
        }
    });
}

/// The first rank serves its metrics while it waits for the second.
#[test]
fn an_agent_serves_metrics_while_it_runs_and_writes_a_trace() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rank0.jsonl");
        let trace = path.to_str().expect("a plain path");
        let work = [
            &AGENT[..],
            &PATIENT,
            &["--allreduce", "20000", "--repeat", "4"],
        ]
        .concat();
        let told = [&work[..], &["--metrics", "9464", "--trace", trace]].concat();
        let first = hosts.start(1, &told);
        let scrape = || -> Option<String> {
            let mut connection = TcpStream::connect("127.0.0.1:9464").ok()?;
            let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
            connection.write_all(request).ok()?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer).ok()?;
            Some(answer)
        };
        let series = "ultima_operation_duration_seconds_count{job=\"train\",rank=\"0\",closed_by=\"complete\"} 0";
        wait_until("the rank's metrics are served", || {
            hosts
                .on(1, scrape)
                .is_some_and(|answer| answer.contains(series))
        });
        let second = hosts.start(2, &work);
        let reports = [first, second].map(|agent| json(&ended(agent)));
        let summary = &reports[0]["ranks"][0]["summary"];
        assert_eq!(summary["operations"], 4);
        let by_end = summary["closed_by"].as_object().expect("counts");
        assert_eq!(by_end.values().filter_map(Value::as_u64).sum::<u64>(), 4);
        assert!(summary["ms"]["p999"].as_f64() >= summary["ms"]["p50"].as_f64());

        let list = output(&["trace", trace, "--list"]);
        let list = String::from_utf8(list.stdout).expect("text");
        assert_eq!(list.lines().count(), 5, "{list}");
        let shown = output(&["trace", trace, "--operation", "3"]);
        let shown = String::from_utf8(shown.stdout).expect("text");
        assert!(
            shown.starts_with("Real: job train: step 3 bucket 0 at rank 0 of 2"),
            "{shown}"
        );
    });
}

#[test]
fn agents_of_a_deleted_job_end_with_an_error() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let work = ["--allreduce", "20000", "--repeat", "10000000"];
        let work = [&AGENT[..], &["--deadline", "200ms"], &work].concat();
        let agents = [hosts.start(1, &work), hosts.start(2, &work)];
        let job = |command: &[&str]| {
            output(&[&["job", "--controller", &hosts.controller], command].concat())
        };
        wait_until("both have a session with the controller", || {
            job(&["check", "train"]).status.success()
        });
        assert!(job(&["delete", "train"]).status.success());
        for agent in agents.map(ended) {
            let errors = String::from_utf8_lossy(&agent.stderr);
            assert_eq!(agent.status.code(), Some(1), "{errors}");
            assert!(errors.contains("stops: job train was deleted"), "{errors}");
        }
    });
}

/// Linux drops packets from the host's own address, which another rank of the same host sends.
#[test]
fn ranks_of_one_host_need_accept_local() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h2] }");
        let accept_local = "/proc/sys/net/ipv4/conf/eth0/accept_local";
        hosts.on(2, move || {
            fs::write(accept_local, "0").expect("root sets it")
        });
        let output = ended(hosts.start(2, &AGENT));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("sysctl -w net.ipv4.conf.eth0.accept_local=1"),
            "{errors}"
        );
    });
}

#[test]
fn a_join_timeout_names_the_missing_ranks() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let options = [&AGENT[..], &["--join-timeout", "300ms"]].concat();
        let alone = ended(hosts.start(2, &options));
        let errors = String::from_utf8_lossy(&alone.stderr);
        assert_eq!(alone.status.code(), Some(6), "{errors}");
        assert!(
            errors.contains("rank 0 on h1") && !errors.contains("on h2"),
            "{errors}"
        );
        // The rank is free again after the timeout.
        let options = [&AGENT[..], &PATIENT, &["--allreduce", "5000"]].concat();
        let agents = [hosts.start(1, &options), hosts.start(2, &options)];
        for agent in agents {
            json(&ended(agent));
        }
    });
}

#[test]
fn a_join_timeout_tells_ranks_that_gave_up_from_missing_ones() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3] }");
        let agents = [(1, "300ms"), (2, "3s")].map(|(host, limit)| {
            let options = [&AGENT[..], &["--join-timeout", limit]].concat();
            hosts.start(host, &options)
        });
        let [_, last] = agents.map(ended);
        let errors = String::from_utf8_lossy(&last.stderr);
        assert_eq!(last.status.code(), Some(6), "{errors}");
        let missing = "rank 0 on h1 (it joined, and gave up waiting), rank 2 on h3\n";
        assert!(errors.ends_with(missing), "{errors}");
    });
}

/// h2's interface neither sends nor receives packets of full size.
#[test]
fn a_check_finds_an_mtu_that_is_too_small() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        hosts.set_interface(2, &["mtu", "1400"]);
        // Slow enough to leave CPU time for the check.
        let slowly = ["--rate", "2M", "--repeat", "10000"];
        let options = [&AGENT[..], &FULL_PACKETS_ONLY, &slowly].concat();
        let mut agents = [hosts.start(1, &options), hosts.start(2, &options)];
        let check = || {
            let arguments = [
                "job",
                "--controller",
                &hosts.controller,
                "check",
                "train",
                "--output=json",
            ];
            let output = ultima(&arguments).output().expect("it runs");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            (
                output.status.code(),
                serde_json::from_slice::<Value>(&output.stdout).ok(),
                errors,
            )
        };
        wait_until("both have a session", || {
            check()
                .1
                .is_some_and(|report| report["responding"].as_array().map(Vec::len) == Some(2))
        });
        let (code, report, errors) = check();
        assert_eq!(code, Some(1), "{errors}");
        let report = report.expect("one JSON object");
        let findings = report["findings"].as_array().expect("findings");
        assert!(!findings.is_empty());
        for finding in findings {
            assert_eq!(finding["hop"], "mtu", "{finding}");
        }
        let own = |finding: &&Value| {
            finding["problem"]
                .as_str()
                .is_some_and(|w| w.starts_with("the interface of h2 "))
        };
        assert!(findings.iter().any(|finding| own(&finding)), "{findings:?}");
        for agent in &mut agents {
            agent.kill().expect("it runs");
            agent.wait().expect("it ends");
        }
    });
}

#[test]
fn an_agent_that_receives_nothing_names_the_cause() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        hosts.set_interface(2, &["mtu", "1400"]);
        let options = [&AGENT[..], &FULL_PACKETS_ONLY].concat();
        let agents = [hosts.start(1, &options), hosts.start(2, &options)];
        for agent in agents {
            let output = ended(agent);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{errors}");
            assert!(
                errors.contains("received nothing") && errors.contains("mtu: "),
                "{errors}"
            );
            let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
            assert_eq!(report["check"]["ok"], false);
        }
    });
}

/// h3 cannot send packets of full size: no operation is complete anywhere.
#[test]
fn an_agent_without_a_complete_operation_verified_nothing() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3] }");
        hosts.set_interface(3, &["mtu", "1400"]);
        let work = ["--allreduce", "7308", "--repeat", "5", "--verify"];
        let options = [&AGENT[..], &["--no-hadamard", "--deadline", "300ms"], &work].concat();
        let agents = [1, 2, 3].map(|host| hosts.start(host, &options));
        for (host, agent) in (1..).zip(agents) {
            let output = ended(agent);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "h{host}: {errors}");
            assert!(
                errors.contains("error: --verify checked nothing"),
                "h{host}: {errors}"
            );
            let deaf = "packets of rank 2 arrive, but no gradients in 5 operations";
            assert_eq!(errors.contains(deaf), host != 3, "h{host}: {errors}");
            let unsent = "packets could not be sent: Message too long";
            assert_eq!(errors.contains(unsent), host == 3, "h{host}: {errors}");
        }
    });
}

#[test]
fn agents_with_different_work_do_not_start() {
    with_hosts(|hosts| {
        for (different, named) in [
            (&["--allreduce", "20001"][..], "--allreduce"),
            (&["--repeat", "3"], "--repeat"),
            (&["--seed", "4"], "--seed"),
            (&["--slot-bytes", "1000"], "slot size"),
            (&["--no-hadamard"], "coding"),
            (&["--element", "bf16"], "element"),
            (&["--recycle"], "recycling"),
        ] {
            hosts.create("{ name: train, members: [h1, h2] }");
            let options = [&AGENT[..], &["--join-timeout", "1h"]].concat();
            let agents = [
                hosts.start(1, &options),
                hosts.start(2, &[&options[..], different].concat()),
            ];
            let outputs = agents.map(ended);
            let errors = outputs
                .each_ref()
                .map(|output| String::from_utf8_lossy(&output.stderr));
            // Which one is refused depends on which attends first. The other one does not wait for it.
            let is_refused = |errors: &Cow<'_, str>| errors.contains("its other members have");
            let cannot_begin = |errors: &Cow<'_, str>| {
                errors.contains("job train cannot begin: rank ")
                    && errors.contains(" was refused: it has ")
            };
            for (output, errors) in outputs.iter().zip(&errors) {
                assert_eq!(output.status.code(), Some(5), "{errors}");
                assert!(is_refused(errors) != cannot_begin(errors), "{errors}");
                assert!(errors.contains(named), "{named}: {errors}");
                assert_eq!(errors.lines().count(), 1, "{errors}");
            }
            assert!(errors.iter().any(is_refused), "{errors:?}");
            let mut delete = hosts.lab.controlled(&["job", "delete", "train"]);
            printed(&delete.output().expect("it runs"));
        }
    });
}

/// Two ranks of a row differ; the columns lack no one that was refused.
#[test]
fn a_grid_that_cannot_begin_names_the_row() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3, h4], groups: 2 }");
        let agents = [
            hosts.start(1, &[&AGENT[..], &["--repeat", "2"]].concat()),
            hosts.start(2, &[&AGENT[..], &["--repeat", "3"]].concat()),
        ];
        let outputs = agents.map(ended);
        let errors = outputs
            .each_ref()
            .map(|output| String::from_utf8_lossy(&output.stderr));
        for (output, errors) in outputs.iter().zip(&errors) {
            assert_eq!(output.status.code(), Some(5), "{errors}");
            assert!(!errors.contains("train.column"), "{errors}");
        }
        // Which one is refused depends on which attends first.
        for expected in [
            "job train.row0 cannot begin: rank ",
            " of job train.row0 was removed: ",
        ] {
            assert!(
                errors.iter().any(|errors| errors.contains(expected)),
                "{errors:?}"
            );
        }
    });
}

/// A member that is killed leaves the others with an error, although their operations end.
#[test]
fn a_silent_member_is_an_error() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3] }");
        let work = ["--allreduce", "20000", "--repeat", "10", "--rate", "10M"];
        let options = [&AGENT[..], &["--deadline", "300ms"], &work].concat();
        let folder = tempfile::tempdir().expect("a folder");
        let traces = [1, 2].map(|host| folder.path().join(format!("trace{host}")));
        let others: Vec<Child> = (1..)
            .zip(&traces)
            .map(|(host, trace)| {
                let trace = trace.display().to_string();
                hosts.start(host, &[&options[..], &["--trace", &trace]].concat())
            })
            .collect();
        let mut third = hosts.start(3, &options);
        wait_until("both have sent packets", || {
            let has_sent = |trace| fs::metadata(trace).is_ok_and(|trace| trace.len() > 10_000);
            traces.iter().all(has_sent)
        });
        third.kill().expect("it runs");
        third.wait().expect("it ends");
        for agent in others {
            let output = ended(agent);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{errors}");
            // Once when it begins, and at the end.
            assert!(
                errors.matches("nothing came from rank 2 in ").count() == 2,
                "{errors}"
            );
            let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
            let problems = &report["ranks"][0]["summary"]["problems"];
            let problem = problems[0].as_str().expect("a problem");
            assert!(errors.contains(&format!("error: {problem}\n")), "{errors}");
        }
    });
}

/// A member that leaves costs the others at most the operation in progress.
#[test]
fn a_member_that_has_left_is_not_waited_for() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3] }");
        let work = ["--allreduce", "20000", "--repeat", "20", "--rate", "10M"];
        let bounds = ["--deadline", "10s", "--timeouts", "fixed"];
        let options = [&AGENT[..], &work, &bounds].concat();
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("trace").display().to_string();
        let traced = [&options[..], &["--trace", &trace]].concat();
        let others = [hosts.start(1, &traced), hosts.start(2, &options)];
        let third = hosts.start(3, &options);
        wait_until("they have sent packets", || {
            fs::metadata(&trace).is_ok_and(|trace| trace.len() > 10_000)
        });
        signal(&third, Signal::SIGINT);
        assert_eq!(ended(third).status.code(), Some(130));
        let left = &hosts.lab.job("train")["status"]["members"][2]["state"];
        assert_eq!(left, "left");
        for agent in others {
            let output = ended(agent);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{errors}");
            let left = "rank 2 has left the job before the last operation";
            assert!(errors.contains(left), "{errors}");
            let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
            let operations = report["ranks"][0]["operations"].as_array();
            let operations = operations.expect("operations");
            assert_eq!(operations.len(), 20);
            // Those that wait for a silent rank are three, and each lasts for the deadline.
            let ms = operations.iter().filter_map(|it| it["ms"].as_f64());
            let whole: f64 = ms.sum();
            assert!(whole < 20_000.0, "{whole} ms");
        }
    });
}

#[test]
fn a_member_that_all_others_have_left_stops() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let work = ["--allreduce", "20000", "--repeat", "1000000"];
        let options = [&AGENT[..], &work, &PATIENT].concat();
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("trace").display().to_string();
        let stays = hosts.start(1, &[&options[..], &["--trace", &trace]].concat());
        let leaves = hosts.start(2, &options);
        wait_until("they have sent packets", || {
            fs::metadata(&trace).is_ok_and(|trace| trace.len() > 10_000)
        });
        signal(&leaves, Signal::SIGINT);
        assert_eq!(ended(leaves).status.code(), Some(130));
        let output = ended(stays);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("all other ranks have left the job"),
            "{errors}"
        );
    });
}

/// Two ranks of one host share memory. One stops for a second, in which the others lose its contributions and aggregates only.
#[test]
fn a_stopped_rank_in_shared_memory_costs_only_its_own_part() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h1, h2] }");
        let work = ["--allreduce", "20000", "--repeat", "80", "--rate", "10M"];
        let options = [&AGENT[..], &["--deadline", "300ms"], &work].concat();
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("trace").display().to_string();
        let traced = [&options[..], &["--trace", &trace]].concat();
        let stopped = hosts.start(1, &traced);
        let others = [1, 2].map(|host| hosts.start(host, &options));
        wait_until("they have sent packets", || {
            fs::metadata(&trace).is_ok_and(|trace| trace.len() > 100_000)
        });
        let maps = fs::read_to_string(format!("/proc/{}/maps", stopped.id()));
        assert!(
            maps.expect("it runs").contains("ultima-receive"),
            "they share memory"
        );
        signal(&stopped, Signal::SIGSTOP);
        sleep(Duration::from_secs(1));
        signal(&stopped, Signal::SIGCONT);

        let reports = std::iter::once(stopped).chain(others).map(ended);
        let mut ranks = reports.map(|output| {
            let mut report: Value =
                serde_json::from_slice(&output.stdout).expect("one JSON object");
            report["ranks"][0].take()
        });
        let stopped = ranks.next().expect("a rank");
        let others: Vec<Value> = ranks.collect();
        let operations = |rank: &Value| rank["operations"].as_array().expect("operations").clone();
        let mut missed = 0;
        for operation in others.iter().flat_map(operations) {
            for missing in operation["missing_from"].as_array().into_iter().flatten() {
                assert_eq!(missing["rank"], stopped["rank"], "{operation}");
                missed += 1;
            }
        }
        assert!(missed > 0, "it was stopped");
        for rank in others.iter().chain([&stopped]) {
            let operations = operations(rank);
            assert_eq!(operations.len(), 80);
            assert!(
                operations[60..].iter().all(|it| it["whole"] == true),
                "{rank}"
            );
        }
    });
}

/// Each rank has the field's name as soon as all have joined.
#[test]
fn a_seed_other_than_the_controllers_is_named_on_every_rank() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let ranks = [("h1", None), ("h2", Some(7))].map(|(host, seed)| {
            let rendezvous = Controller::new(&hosts.controller, "train", host);
            hosts.lab.within(host, move || {
                let job = Job::builder().rendezvous(rendezvous);
                let job = job.timeout(Duration::from_secs(300));
                let job = match seed {
                    Some(seed) => job.seed(seed),
                    None => job,
                };
                job.start().err().expect("a refusal").to_string()
            })
        });
        for rank in ranks {
            let error = rank.join().expect("no panic");
            assert!(
                error.contains("has seed ") && error.contains('7'),
                "{error}"
            );
        }
    });
}

/// Interrupted while it waits for others, and while it runs.
#[test]
fn an_interrupted_agent_leaves_the_job() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let work = ["--allreduce", "20000", "--repeat", "1000000"];
        let options = [&AGENT[..], &work].concat();
        let states = || {
            let job = hosts.lab.job("train");
            let members = job["status"]["members"].as_array().expect("members").iter();
            let states: Vec<String> = members.map(|it| it["state"].to_string()).collect();
            states.join(" ")
        };
        let interrupt = |agent: Child| {
            signal(&agent, Signal::SIGINT);
            let output = ended(agent);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(130), "{errors}");
            assert!(errors.ends_with("error: interrupted\n"), "{errors}");
        };
        let first = hosts.start(1, &options);
        wait_until("h1 has joined", || states() == r#""joined" "free""#);
        interrupt(first);
        assert_eq!(states(), r#""free" "free""#);
        let agents = [1, 2].map(|host| hosts.start(host, &options));
        wait_until("both have joined", || states() == r#""joined" "joined""#);
        agents.into_iter().for_each(interrupt);
        assert_eq!(states(), r#""left" "left""#);
    });
}

/// A host whose link goes down reports what it could not send, and why; the others miss it.
#[test]
fn a_link_that_goes_down_is_an_error() {
    with_hosts(|hosts| {
        hosts.create("{ name: train, members: [h1, h2, h3] }");
        let work = ["--allreduce", "20000", "--repeat", "20", "--rate", "10M"];
        let options = [&AGENT[..], &["--deadline", "300ms"], &work].concat();
        let agents = [1, 2, 3].map(|host| hosts.start(host, &options));
        wait_until("all have joined", || {
            let job = hosts.lab.job("train");
            let members = job["status"]["members"].as_array().expect("members");
            members.iter().all(|member| member["state"] == "joined")
        });
        hosts.set_interface(3, &["down"]);
        for (host, agent) in (1..).zip(agents) {
            let output = ended(agent);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "h{host}: {errors}");
            let expected = match host {
                3 => "packets could not be sent: Network is unreachable",
                _ => "nothing came from rank 2 in ",
            };
            assert!(errors.contains(expected), "h{host}: {errors}");
            let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
            let error = &report["ranks"][0]["summary"]["last_send_error"];
            assert_eq!(error.is_string(), host == 3, "h{host}: {error}");
        }
    });
}

#[test]
fn bad_options_are_rejected_before_the_agent_connects() {
    let refused_with = |code, options: &[&str], part: &str| {
        let errors = common::refused_with(code, &[&["agent", "--job", "train"], options].concat());
        assert!(errors.contains(part), "{errors}");
    };
    let refused = |options: &[&str], part: &str| refused_with(2, options, part);
    refused(&["--slot-bytes", "1401"], "multiple of 4");
    refused(&["--flush", "6s"], "less than t_B");
    refused(&["--allreduce", "0"], "--allreduce");
    refused(&["--ranks", "0"], "--ranks");
    refused(&["--metrics", "here"], "such as 9464");
    refused(&["--trace", "/nowhere/at/all"], "/nowhere/at/all");
    let unreachable = ["--controller", "127.0.0.1:1"];
    refused_with(3, &unreachable, "ultima controller serve");
}
