//! `ultima agent` on hosts of its own around the embedded switch, over kernel sockets; needs root.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Output;

use common::hosts::{ended, with_hosts};
use common::{output, ultima, wait_until};
use serde_json::Value;

const AGENT: [&str; 6] = [
    "agent",
    "--controller",
    "CONTROLLER",
    "--job",
    "train",
    "--output=json",
];
/// A bound long enough for a machine that does other things too.
const PATIENT: [&str; 2] = ["--deadline", "5s"];

/// With two ranks, shards of seven full packets each, so that no last one is short.
const FULL_PACKETS_ONLY: [&str; 5] = [
    "--no-hadamard",
    "--allreduce",
    "4928",
    "--deadline",
    "300ms",
];

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn ranks_on_hosts_of_their_own_agree_on_the_mean() {
    with_hosts(3, |hosts| {
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
            // The machine may lose packets; nearly all operations are whole.
            assert!(summary["whole"].as_u64() >= Some(3), "{summary}");
            assert_eq!(summary["rejected"], 0, "{summary}");
        }
        // Ranks are handed out once.
        let again = ended(hosts.start(1, &options));
        let errors = String::from_utf8_lossy(&again.stderr);
        assert_eq!(again.status.code(), Some(5), "{errors}");
        assert!(
            errors.contains("delete job train and create it again"),
            "{errors}"
        );
    });
}

#[test]
fn a_grid_of_jobs_is_averaged_within_groups_and_across() {
    with_hosts(4, |hosts| {
        // The first group has two ranks on a host.
        hosts.create("{ name: train, members: [h1, h1, h2, h3, h3, h4], groups: 2 }");
        for refused in [&["--trace", "/dev/null"][..], &["--recycle"]] {
            let refused = ended(hosts.start(1, &[&AGENT[..], refused].concat()));
            let errors = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{errors}");
            assert!(errors.contains("train is a grid of jobs"), "{errors}");
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
            assert_eq!(summary["rejected"], 0, "{summary}");
            // The machine may lose packets; nearly all operations are whole.
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

/// One rank waits for the other meanwhile.
#[test]
fn metrics_are_served_while_an_agent_runs_and_a_trace_is_written() {
    with_hosts(2, |hosts| {
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
fn agents_of_a_job_that_is_deleted_end_and_say_so() {
    with_hosts(2, |hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let work = ["--allreduce", "20000", "--repeat", "10000000"];
        let work = [&AGENT[..], &PATIENT, &work].concat();
        let agents = [hosts.start(1, &work), hosts.start(2, &work)];
        let job = |command: &[&str]| {
            output(&[&["job", "--controller", &hosts.controller], command].concat())
        };
        wait_until("both are in touch with the controller", || {
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

/// Linux drops packets that come from a host's own address, as those of another rank of the same host do.
#[test]
fn ranks_of_one_host_that_could_not_hear_each_other_say_so() {
    with_hosts(2, |hosts| {
        hosts.create("{ name: train, members: [h1, h2, h2] }");
        let accept_local = "/proc/sys/net/ipv4/conf/eth0/accept_local";
        hosts.on(2, || fs::write(accept_local, "0").expect("root sets it"));
        let output = ended(hosts.start(2, &AGENT));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("sysctl -w net.ipv4.conf.eth0.accept_local=1"),
            "{errors}"
        );
    });
}

#[test]
fn one_who_waits_in_vain_says_for_whom() {
    with_hosts(2, |hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        let options = [&AGENT[..], &["--join-timeout", "300ms"]].concat();
        let alone = ended(hosts.start(2, &options));
        let errors = String::from_utf8_lossy(&alone.stderr);
        assert_eq!(alone.status.code(), Some(6), "{errors}");
        assert!(
            errors.contains("rank 0 on h1") && !errors.contains("on h2"),
            "{errors}"
        );
        // The rank is free again.
        let options = [&AGENT[..], &PATIENT, &["--allreduce", "5000"]].concat();
        let agents = [hosts.start(1, &options), hosts.start(2, &options)];
        for agent in agents {
            json(&ended(agent));
        }
    });
}

/// h2's interface takes no full packets, and its peer neither sends nor hands them over.
#[test]
fn a_check_finds_an_mtu_that_is_too_small() {
    with_hosts(2, |hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        hosts.ip(2, "link set eth0 mtu 1400");
        // Slow enough to leave the machine to the check.
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
        wait_until("both attend", || {
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
                .is_some_and(|w| w.starts_with("h2's interface"))
        };
        assert!(findings.iter().any(|finding| own(&finding)), "{findings:?}");
        for agent in &mut agents {
            agent.kill().expect("it runs");
            agent.wait().expect("it ends");
        }
    });
}

#[test]
fn an_agent_that_hears_nothing_says_why() {
    with_hosts(2, |hosts| {
        hosts.create("{ name: train, members: [h1, h2] }");
        hosts.ip(2, "link set eth0 mtu 1400");
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

#[test]
fn what_cannot_work_is_refused_before_anybody_is_asked() {
    let refused_with = |code, options: &[&str], part: &str| {
        let errors = common::refused_with(code, &[&["agent", "--job", "train"], options].concat());
        assert!(errors.contains(part), "{errors}");
    };
    let refused = |options: &[&str], part: &str| refused_with(2, options, part);
    refused(&["--slot-bytes", "1401"], "multiple of 4");
    refused(&["--flush", "2s"], "under t_B");
    refused(&["--allreduce", "0"], "--allreduce");
    refused(&["--ranks", "0"], "--ranks");
    refused(&["--metrics", "here"], "such as 9464");
    refused(&["--trace", "/nowhere/at/all"], "/nowhere/at/all");
    let nobody = ["--controller", "127.0.0.1:1"];
    refused_with(3, &nobody, "ultima controller serve");
}
