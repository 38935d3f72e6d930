//! What links do to what crosses them.

use ultima_tests::needs;

use crate::common::wait_until;
use crate::stage::{Lab, printed, topology};

const PAIR: &str = "
switches:
  - { name: s1 }
hosts:
  - { name: h1, mac: '02:00:00:00:00:01', ip: 10.0.0.1 }
  - { name: h2, mac: '02:00:00:00:00:02', ip: 10.0.0.2 }
  - { name: h3, mac: '02:00:00:00:00:03', ip: 10.0.0.3 }
links:
  - { ends: [h1, s1/1], mtu: 9000 }
  - { ends: [h2, s1/2], mtu: 9000, delay: 30ms, b_to_a: { delay: 50ms } }
  - { ends: [h3, s1/3], b_to_a: { loss: 1 } }
";

/// The kernel's count of what a host has received, in bytes.
fn received(lab: &Lab, host: &str) -> u64 {
    let count = "/sys/class/net/eth0/statistics/rx_bytes";
    let text = printed(&lab.exec(host, &["cat", count]));
    text.trim().parse().expect("a number")
}

#[test]
fn what_a_link_does_is_seen_by_hosts() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_text(PAIR, &[]);
    // There and back: 50 ms towards h2, 30 ms from it. Nothing is faster than the link.
    let ping = printed(&lab.exec("h1", &["ping", "-n", "-c", "2", "h2"]));
    let (_, time) = ping.rsplit_once(" = ").expect("a summary");
    let least: f64 = time
        .split('/')
        .next()
        .expect("a minimum")
        .parse()
        .expect("a number");
    assert!(least >= 80.0, "{ping}");
    // Whole packets of the link's size, and none that are larger.
    let whole = ["ping", "-n", "-c", "1", "-M", "do", "-s", "8972", "h2"];
    printed(&lab.exec("h1", &whole));
    let larger = ["ping", "-n", "-c", "1", "-M", "do", "-s", "8973", "h2"];
    assert_eq!(lab.exec("h1", &larger).status.code(), Some(1));
    // All that goes to h3 is lost.
    let lost = ["ping", "-n", "-c", "1", "-W", "1", "h3"];
    assert_eq!(lab.exec("h1", &lost).status.code(), Some(1));
    let (status, _) = lab.status();
    let wires = status["plan"]["links"].as_array().expect("links");
    let wires: Vec<_> = wires
        .iter()
        .filter(|link| !link["wire"].is_null())
        .collect();
    assert_eq!(wires.len(), 2, "{status:#}");
    let settings = wires[1]["wire"]["grpc"].as_str().expect("an address");
    // Settings change while the lab is up.
    let ultima = env!("CARGO_BIN_EXE_ultima");
    let set = ["switch", "tm", "set", "--grpc", settings, "--loss", "none"];
    printed(&lab.exec("s1", &[&[ultima][..], &set].concat()));
    assert!(lab.pings("h1", "h3"));
    lab.down();
}

#[test]
fn traffic_of_the_fabric_crosses_its_bottleneck() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("dumbbell.yaml"), &[]);
    for host in ["c1", "c2"] {
        let before = received(&lab, host);
        wait_until("cross traffic arrives", || {
            received(&lab, host) > before + 100_000
        });
    }
    lab.down();
}
