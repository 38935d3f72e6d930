//! Agents that send more than links carry: operations end by trimmed packets, before any deadline.

use serde_json::Value;
use ultima_tests::needs;

use super::stage::Lab;

/// Four hosts behind links of 50 Mbit/s.
const SLOW_HOSTS: &str = "
switches:
  - { name: s1 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4 }
links:
  - { ends: [h1, s1/1], b_to_a: { rate: 50M, queue: 64k } }
  - { ends: [h2, s1/2], b_to_a: { rate: 50M, queue: 64k } }
  - { ends: [h3, s1/3], b_to_a: { rate: 50M, queue: 64k } }
  - { ends: [h4, s1/4], b_to_a: { rate: 50M, queue: 64k } }
";
/// Two hosts at each end of a trunk of 60 Mbit/s.
const SLOW_TRUNK: &str = "
switches:
  - { name: s1 }
  - { name: s2 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3 }
  - { name: h4, mac: '02:00:00:00:00:04', ip: 10.0.0.4 }
links:
  - { ends: [h1, s1/1] }
  - { ends: [h2, s1/2] }
  - { ends: [h3, s2/1] }
  - { ends: [h4, s2/2] }
  - { ends: [s1/9, s2/9], rate: 60M, queue: 64k }
";
/// Each rank sends at this rate. So a host's link gets an eighth more than it carries, and a trunk gets two thirds of what
/// two ranks scatter, a quarter more than it carries.
const RATE: &str = "56M";
const REPEAT: usize = 5;

fn is_zero(count: &Value) -> bool {
    count.as_u64() == Some(0)
}

/// Runs a rank on each of the four hosts. At least a twentieth of the packets are trimmed, after `hops` switches, and all
/// operations end by that.
fn operations_end_by_trimmed_packets(fabric: &str, hops: u64) {
    let lab = Lab::of_text(fabric, &[]);
    lab.create("{ name: train, members: [h1, h2, h3, h4] }");
    let hosts = ["h1", "h2", "h3", "h4"].map(|host| (host, 1));
    let repeat = REPEAT.to_string();
    // Rate and incast control would prevent most losses.
    let rate = ["--rate", RATE, "--rate-control", "fixed", "--incast", "all"];
    let options = [&["--job", "train", "--output=json"][..], &rate].concat();
    // The bound is wide enough for a busy machine: no operation may end by it.
    let work = [
        "--allreduce",
        "400000",
        "--repeat",
        &repeat,
        "--deadline",
        "10s",
    ];
    let reports = lab.agents(&hosts, &[&options[..], &work].concat());
    let ranks = (reports.iter()).flat_map(|report| report["ranks"].as_array().expect("ranks"));
    let ranks: Vec<&Value> = ranks.collect();
    assert_eq!(ranks.len(), hosts.len());
    let (mut cut, mut came, mut asked) = (0, 0, 0);
    for rank in ranks {
        let operations = rank["operations"].as_array().expect("operations");
        assert_eq!(operations.len(), REPEAT);
        for operation in operations {
            let by = operation["closed_by"].as_str().expect("a word");
            assert!(by == "known-loss" || by == "complete", "{operation}");
            for way in operation["trimmed"].as_array().into_iter().flatten() {
                assert_eq!(way["hops"], hops, "{operation}");
                assert!(
                    !is_zero(&way["trimmed"]) && is_zero(&way["late"]),
                    "{operation}"
                );
            }
            // The host's switch has counted at least what it sent to this rank.
            let switch = &operation["switch"];
            if switch["known"] == true {
                assert!(!is_zero(&switch["sent"]), "{operation}");
                assert!(is_zero(&switch["upstream_lost"]), "{operation}");
                asked += 1;
            }
        }
        let summary = &rank["summary"];
        for phase in ["lost_contributions", "lost_aggregates"] {
            assert!(is_zero(&summary[phase]["overdue"]), "{summary}");
        }
        let count = |field: &str| summary[field].as_u64().expect("a number");
        cut += count("packets_trimmed");
        came += count("packets_received") + count("packets_trimmed");
    }
    assert!(cut * 20 >= came, "{cut} of {came} packets were cut");
    assert!(asked > 0, "no switch told what it counted");
    lab.down();
}

#[test]
fn operations_end_by_packets_trimmed_at_host_links() {
    if needs::full_run() && needs::interfaces() {
        operations_end_by_trimmed_packets(SLOW_HOSTS, 1);
    }
}

#[test]
fn operations_end_by_packets_trimmed_at_a_trunk() {
    if needs::full_run() && needs::interfaces() {
        operations_end_by_trimmed_packets(SLOW_TRUNK, 2);
    }
}
