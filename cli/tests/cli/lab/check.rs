//! `ultima job check` while agents run: it names what is broken, and nothing else.

use std::process::Child;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ultima_testing::per_run;
use ultima_tests::needs;

use super::stage::{Lab, printed};
use crate::common::wait_until;

/// Two switches with two hosts each, two ranks per host.
const FABRIC: &str = "
switches:
  - { name: s1 }
  - { name: s2 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1, ranks: 2 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2, ranks: 2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3, ranks: 2 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4, ranks: 2 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [h2, s1/2] }
  - { ends: [h3, s2/1] }
  - { ends: [h4, s2/2] }
  - { ends: [s1/9, s2/9] }
";

/// Eight ranks that run until they are killed.
struct Agents(Vec<Child>);

impl Agents {
    fn start(lab: &Lab) -> Self {
        let agent = [
            env!("CARGO_BIN_EXE_ultima"),
            "agent",
            "--job",
            "train",
            "--ranks",
            "2",
            "--output=json",
        ];
        let work = [
            "--allreduce",
            "2000",
            "--repeat",
            "1000000",
            "--rate",
            "5M",
            "--deadline",
            "200ms",
        ];
        let command = [&agent[..], &work].concat();
        Self(
            ["h1", "h2", "h3", "h4"]
                .map(|host| lab.start(host, &command))
                .into(),
        )
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            // The process may have ended already.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn check(lab: &Lab) -> Value {
    let output = lab
        .controlled(&["job", "check", "train", "--output=json"])
        .output();
    let output = output.expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"))
}

/// A lab whose ranks run operations and all reach each other.
fn running() -> (Lab, Agents) {
    let lab = Lab::of_text(FABRIC, &[]);
    lab.create("{ name: train, members: [h1, h1, h2, h2, h3, h3, h4, h4] }");
    let agents = Agents::start(&lab);
    wait_until("all ranks reach each other", || check(&lab)["ok"] == true);
    (lab, agents)
}

/// Changes an interface of a switch, such as `s1-1 down`.
fn set_link(lab: &Lab, setting: &str) {
    let words: Vec<&str> = setting.split(' ').collect();
    printed(&lab.exec("s1", &[&["ip", "link", "set"], &words[..]].concat()));
}

/// The hop, switch and port of each finding.
fn places(report: &Value) -> Vec<(&str, &str, u64)> {
    let findings = report["findings"].as_array().expect("findings");
    findings
        .iter()
        .map(|finding| {
            (
                finding["hop"].as_str().expect("a hop"),
                finding["switch"].as_str().unwrap_or("none"),
                finding["port"].as_u64().unwrap_or_default(),
            )
        })
        .collect()
}

#[test]
fn a_check_during_operations_names_what_is_broken() {
    if !(needs::full_run() && needs::interfaces()) {
        return;
    }
    let (lab, agents) = running();

    type Expected = fn(&(&str, &str, u64)) -> bool;
    let broken: [(&str, &str, Expected); 3] = [
        ("s1-9 down", "s1-9 up", |(hop, _, port)| {
            *hop == "link" && *port == 9
        }),
        ("s1-1 down", "s1-1 up", |(hop, switch, port)| {
            ["link", "first switch port"].contains(hop) && (*switch, *port) == ("s1", 1)
        }),
        ("s2-2 mtu 800", "s2-2 mtu 1500", |(hop, switch, port)| {
            *hop == "mtu" && (*switch, *port) == ("s2", 2)
        }),
    ];
    for (breaks, mends, expected) in broken {
        set_link(&lab, breaks);
        let report = check(&lab);
        let places = places(&report);
        assert!(
            !places.is_empty() && places.iter().all(expected),
            "{breaks}: {report:#}"
        );
        set_link(&lab, mends);
        wait_until("it is repaired", || check(&lab)["ok"] == true);
    }
    drop(agents);
    lab.down();
}

/// The port fails before, between and after the check's rounds of short and of full packets, of 0.3 s each.
#[test]
fn a_check_during_a_port_failure_names_the_link() {
    if !needs::interfaces() {
        return;
    }
    let (lab, agents) = running();
    let all = [100, 150, 200, 250, 0, 300, 350, 500];
    let mut found = 0;
    for after in &all[..per_run(2, all.len() as u32) as usize] {
        let report = thread::scope(|scope| {
            let report = scope.spawn(|| check(&lab));
            thread::sleep(Duration::from_millis(*after));
            set_link(&lab, "s1-1 down");
            report.join().expect("no panic")
        });
        let places = places(&report);
        let is_port = |(hop, switch, port): &(&str, &str, u64)| {
            ["link", "first switch port"].contains(hop) && (*switch, *port) == ("s1", 1)
        };
        assert!(places.iter().all(is_port), "after {after} ms: {report:#}");
        found += places.len();
        set_link(&lab, "s1-1 up");
        wait_until("it is repaired", || check(&lab)["ok"] == true);
    }
    assert!(found > 0, "a check sees the failure");
    drop(agents);
    lab.down();
}
