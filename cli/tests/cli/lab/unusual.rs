//! Unusual fabrics: hosts reach each other, and a job runs over all hosts.

use std::fmt::Write as _;

use serde_json::Value;
use ultima_tests::needs;

use super::agents::{LARGE, OPTIONS, SMALL, all_agree, all_agree_over_several_paths};
use super::stage::Lab;

/// A fabric's text: switches, hosts with their number of ranks, and links.
pub fn fabric(switches: &[&str], hosts: &[(&str, u16)], links: &[&str]) -> String {
    let mut text = String::from("switches:\n");
    for name in switches {
        writeln!(text, "  - {{ name: {name} }}").expect("a string");
    }
    text += "hosts:\n";
    for (index, (name, ranks)) in hosts.iter().enumerate() {
        // Each host has its own network, so an address does not tell the host's position.
        let (mac, ip) = (
            format!("02:00:00:00:01:{index:02x}"),
            format!("10.{index}.7.{}", 255 - index),
        );
        writeln!(
            text,
            "  - {{ name: {name}, mac: '{mac}', ip: {ip}, ranks: {ranks} }}"
        )
        .expect("a string");
    }
    text += "links:\n";
    for link in links {
        writeln!(text, "  - {{ ends: [{link} }}").expect("a string");
    }
    text
}

/// A core switch, two aggregation switches, and two top-of-rack switches under each.
fn three_tiers() -> String {
    let hosts = [("node-1", 1), ("node-2", 2), ("node-3", 1), ("node-4", 1)];
    fabric(
        &["core", "agg-1", "agg-2", "tor-1", "tor-2", "tor-3", "tor-4"],
        &hosts,
        &[
            "core/1, agg-1/9], rate: 1G",
            "core/2, agg-2/9], rate: 1G",
            "agg-1/1, tor-1/9]",
            "agg-1/2, tor-2/9]",
            "agg-2/1, tor-3/9]",
            "agg-2/2, tor-4/9]",
            "node-1, tor-1/1]",
            "node-2, tor-2/1]",
            "node-3, tor-3/1]",
            "node-4, tor-4/1]",
        ],
    )
}

/// A cycle of three switches with a rank each; two of them have two links to each other.
pub fn cycle() -> String {
    fabric(
        &["a", "b", "c"],
        &[("h1", 1), ("h2", 1), ("h3", 1)],
        &[
            "a/1, b/1]",
            "a/4, b/4]",
            "b/2, c/2]",
            "c/3, a/3]",
            "h1, a/9]",
            "h2, b/9]",
            "h3, c/9]",
        ],
    )
}

/// Names of the maximum length with all allowed characters, the highest port, and jumbo frames.
pub fn long_names() -> String {
    let name = |end: &str| format!("{}{end}", "a-b_c.".repeat(10));
    let (s1, s2, h1, h2) = (name("one"), name("two"), name("h-1"), name("h.2"));
    fabric(
        &[&s1, &s2],
        &[(&h1, 1), (&h2, 2)],
        &[
            &format!("{h1}, {s1}/509], mtu: 9000"),
            &format!("{h2}, {s2}/1], mtu: 9000, delay: 1ms"),
            &format!("{s1}/1, {s2}/509], mtu: 9000"),
        ],
    )
}

/// Eight ranks on one host, and one on the other.
fn eight_and_one() -> String {
    fabric(
        &["s"],
        &[("big", 8), ("small", 1)],
        &["big, s/7]", "s/300, small]"],
    )
}

/// Five switches in a row.
fn chain() -> String {
    let switches = ["c1", "c2", "c3", "c4", "c5"];
    let hosts = [("x1", 1), ("x3", 1), ("x5", 1)];
    fabric(
        &switches,
        &hosts,
        &[
            "c1/2, c2/1], delay: 1ms",
            "c3/1, c2/2]",
            "c3/2, c4/1], delay: 1ms",
            "c4/2, c5/1]",
            "x1, c1/9]",
            "c3/9, x3]",
            "x5, c5/9]",
        ],
    )
}

/// Links with different directions, and with delay, jitter and loss.
fn uneven() -> String {
    fabric(
        &["s"],
        &[("fast", 1), ("slow", 1), ("far", 1)],
        &[
            "fast, s/1], a_to_b: { rate: 500M }, b_to_a: { rate: 50M }",
            "s/2, slow], a_to_b: { rate: 100M }, b_to_a: { rate: 20M, delay: 5ms }",
            "far, s/3], rate: 50M, queue: 64k, jitter: normal:1ms, delay: 3ms, loss: 0.01",
        ],
    )
}

/// Runs a job with all ranks that fit, one agent per host; returns the reports and the number of ranks.
fn run(text: &str, switch: &str, options: &[&str]) -> (Vec<Value>, u64) {
    println!("{text}");
    let lab = Lab::of_text(text, &["--switch", switch]);
    let places = lab.places();
    for (one, _) in &places {
        for (other, _) in &places {
            assert!(lab.pings(one, other), "{one} reaches {other}");
        }
    }
    let members = places
        .iter()
        .flat_map(|(host, ranks)| vec![host.as_str(); usize::from(*ranks)]);
    let members: Vec<&str> = members.collect();
    lab.create(&format!("name: train\nmembers: [{}]\n", members.join(", ")));
    let hosts = places.iter().map(|(host, ranks)| (host.as_str(), *ranks));
    let hosts: Vec<(&str, u16)> = hosts.collect();
    let reports = lab.agents(&hosts, &[&OPTIONS, options].concat());
    lab.down();
    (reports, members.len() as u64)
}

#[test]
fn a_job_runs_over_trees_chains_and_cycles() {
    // In a quick run, Mininet has the cycle.
    if !(needs::full_run() && needs::interfaces()) {
        return;
    }
    for text in [three_tiers(), cycle(), eight_and_one(), chain()] {
        let (reports, ranks) = run(&text, "embedded", &LARGE);
        match text == cycle() {
            true => all_agree_over_several_paths(&reports, ranks),
            false => all_agree(&reports, ranks),
        }
    }
}

#[test]
fn a_job_runs_over_trees_and_cycles_on_bmv2() {
    if needs::bmv2().is_none() {
        return;
    }
    for text in [three_tiers(), cycle(), long_names()] {
        let (reports, ranks) = run(&text, "bmv2", &SMALL);
        match text == cycle() {
            true => all_agree_over_several_paths(&reports, ranks),
            false => all_agree(&reports, ranks),
        }
    }
}

/// Packets have the MTU of the links.
#[test]
fn a_job_runs_in_jumbo_frames_between_hosts_with_long_names() {
    if !needs::interfaces() {
        return;
    }
    let options = [&LARGE[..], &["--slot-bytes", "8896"]].concat();
    let (reports, ranks) = run(&long_names(), "embedded", &options);
    all_agree(&reports, ranks);
}

/// Some packets are lost. The results have no wrong values, and no operation waits for a lost packet.
#[test]
fn a_job_runs_over_links_with_loss_and_delay() {
    if !needs::interfaces() {
        return;
    }
    let options = ["--allreduce", "20000", "--rate", "10M"];
    let (reports, ranks) = run(&uneven(), "embedded", &options);
    let all = reports
        .iter()
        .flat_map(|r| r["ranks"].as_array().expect("ranks"));
    let mut seen = 0;
    for rank in all {
        seen += 1;
        let summary = &rank["summary"];
        assert_eq!(summary["wrong"], 0, "{rank:#}");
        assert!(summary["packets_received"].as_u64() > Some(0), "{rank:#}");
        assert!(summary["largest_error"].as_f64() < Some(0.5), "{rank:#}");
    }
    assert_eq!(seen, ranks);
}
