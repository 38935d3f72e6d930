//! A link that drops every packet while both of its ends are up.

use std::time::Instant;

use serde_json::Value;
use ultima_tests::needs;

use super::stage::{Lab, printed};
use crate::common::wait_until;

/// Two leaves with two hosts each, and two spines. A link with a rate has a wire, whose loss the test sets.
const FABRIC: &str = "
switches:
  - { name: leaf1 }
  - { name: leaf2 }
  - { name: spine1 }
  - { name: spine2 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4 }
links:
  - { ends: [h1, leaf1/1] }
  - { ends: [h2, leaf1/2] }
  - { ends: [h3, leaf2/1] }
  - { ends: [h4, leaf2/2] }
  - { ends: [leaf1/11, spine1/1], rate: 1G }
  - { ends: [leaf1/12, spine2/1], rate: 1G }
  - { ends: [leaf2/11, spine1/2], rate: 1G }
  - { ends: [leaf2/12, spine2/2], rate: 1G }
";

fn tree(lab: &Lab) -> Vec<String> {
    let job = lab.job("train");
    let links = job["status"]["tree"].as_array().expect("links").iter();
    links
        .map(|link| link.as_str().expect("a name").to_owned())
        .collect()
}

/// The fabric with its elements that are not in use.
fn health(lab: &Lab) -> String {
    printed(
        &lab.controlled(&["fabric", "show"])
            .output()
            .expect("it runs"),
    )
}

#[test]
fn a_job_leaves_a_link_that_drops_every_packet() {
    if !(needs::full_run() && needs::interfaces()) {
        return;
    }
    let lab = Lab::of_text(FABRIC, &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let before = tree(&lab);
    let (status, _) = lab.status();
    // The wire of the first leaf's link in the tree.
    let links = status["plan"]["links"].as_array().expect("links");
    let wire = links.iter().find(|link| {
        let has = |end: &Value| {
            let end = end.as_str().expect("a name");
            before
                .iter()
                .any(|link| link.split('-').any(|it| it == end))
        };
        let ends = link["ends"].as_array().expect("two");
        ends.iter().all(has)
            && ends[0]
                .as_str()
                .is_some_and(|end| end.starts_with("leaf1/"))
    });
    let wire = wire.unwrap_or_else(|| panic!("{before:?} in {status:#}"));
    let agent = [
        env!("CARGO_BIN_EXE_ultima"),
        "agent",
        "--job",
        "train",
        "--output=json",
        "--allreduce",
        "20000",
        "--repeat",
        "60",
        "--rate",
        "5M",
        "--deadline",
        "2s",
    ];
    let agents = ["h1", "h2", "h3", "h4"].map(|host| lab.start(host, &agent));
    wait_until("they have joined", || {
        let job = lab.job("train");
        let mut members = job["status"]["members"].as_array().expect("members").iter();
        members.all(|member| member["state"] == "joined")
    });

    assert!(!health(&lab).contains("loses"), "{}", health(&lab));
    let settings = wire["wire"]["grpc"].as_str().expect("an address");
    let ultima = env!("CARGO_BIN_EXE_ultima");
    let set = ["switch", "tm", "set", "--grpc", settings, "--loss", "1"];
    printed(&lab.exec("leaf1", &[&[ultima][..], &set].concat()));
    let began = Instant::now();

    wait_until("the tree is elsewhere", || {
        let links = tree(&lab);
        !links.is_empty() && !links.iter().any(|link| before.contains(link))
    });
    eprintln!(
        "the tree is elsewhere {:?} after its link began to lose all",
        began.elapsed()
    );
    let said = health(&lab);
    assert!(said.contains("loses packets"), "{said}");
    let events = lab.controlled(&["events", "links"]).output();
    let events = printed(&events.expect("it runs"));
    assert!(events.contains("LosesPackets"), "{events}");
    for agent in agents {
        let output = agent.wait_with_output().expect("it ends");
        let report: Value = serde_json::from_str(&printed(&output)).expect("one JSON object");
        let operations = report["ranks"][0]["operations"].as_array().expect("some");
        assert_eq!(operations.len(), 60);
        let whole = |operation: &Value| operation["whole"] == true;
        let lossy = operations.iter().filter(|it| !whole(it)).count();
        assert!(
            lossy < 30 && whole(&operations[59]),
            "nothing is lost in the end: {report:#}"
        );
    }
    lab.down();
}
