//! Links with delay, loss and an MTU.

use ultima_tests::needs;

use super::stage::{Lab, printed};
use crate::common::wait_until;

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

/// The kernel's count of bytes that a host has received.
fn received(lab: &Lab, host: &str) -> u64 {
    let count = "/sys/class/net/eth0/statistics/rx_bytes";
    let text = printed(&lab.exec(host, &["cat", count]));
    text.trim().parse().expect("a number")
}

#[test]
fn hosts_see_delay_mtu_and_loss_of_a_link() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_text(PAIR, &[]);
    // 50 ms to h2 and 30 ms back: no answer is faster.
    let ping = printed(&lab.exec("h1", &["ping", "-n", "-c", "2", "-i", "0.01", "h2"]));
    let (_, time) = ping.rsplit_once(" = ").expect("a summary");
    let least: f64 = time
        .split('/')
        .next()
        .expect("a minimum")
        .parse()
        .expect("a number");
    assert!(least >= 80.0, "{ping}");
    // A packet of the link's MTU passes, a larger one does not.
    let whole = ["ping", "-n", "-c", "1", "-M", "do", "-s", "8972", "h2"];
    printed(&lab.exec("h1", &whole));
    let larger = ["ping", "-n", "-c", "1", "-M", "do", "-s", "8973", "h2"];
    assert_eq!(lab.exec("h1", &larger).status.code(), Some(1));
    // Every packet to h3 is lost: none of ten is answered.
    let lost = ["-c", "10", "-i", "0.005", "-W", "0.1", "h3"];
    let lost = [&["ping", "-n"][..], &lost].concat();
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

/// The cross traffic of dumbbell.yaml arrives at its receivers.
pub fn cross_traffic_passes_the_bottleneck(lab: &Lab) {
    for host in ["c1", "c2"] {
        let before = received(lab, host);
        wait_until("cross traffic arrives", || {
            received(lab, host) > before + 100_000
        });
    }
}
