//! The topologies in `topologies/`, and random ones.

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_testing::per_run;
use ultima_tests::needs;

use super::stage::{Lab, printed, topology};
use crate::common;

/// Checks that each host reaches the next one, and back.
pub fn all_reach_their_next(lab: &Lab) {
    let hosts = lab.hosts();
    for ((one, _), (other, _)) in hosts.iter().zip(hosts.iter().cycle().skip(1)) {
        assert!(lab.pings(one, other), "{one} reaches {other}");
        assert!(lab.pings(other, one), "{other} reaches {one}");
    }
}

#[test]
fn every_shipped_topology_comes_up_and_ends() {
    if !needs::interfaces() {
        return;
    }
    // Other tests ping through the first three: `shared`, `programs` and `ends`.
    let shipped = [
        ("star4.yaml", 4, 2),
        ("two-switches.yaml", 4, 3),
        ("dumbbell.yaml", 6, 8),
        ("star16.yaml", 16, 18),
        ("leaf-spine.yaml", 8, 15),
    ];
    for &(file, hosts, processes) in &shipped[per_run(3, 0)..] {
        let lab = Lab::of_file(&topology(file), &[]);
        let (status, code) = lab.status();
        assert_eq!(code, Some(0), "{file}: {status:#}");
        assert_eq!(
            (lab.hosts().len(), lab.processes().len()),
            (hosts, processes),
            "{file}"
        );
        all_reach_their_next(&lab);
        let said = lab.down();
        let expected = format!(
            "{processes} processes stopped, {} namespaces deleted",
            hosts + 1
        );
        assert!(said.contains(&expected), "{file}: {said}");
    }
}

/// All hosts reach each other and the controller.
pub fn all_hosts_reach_each_other_and_the_controller(lab: &Lab) {
    for (one, _) in lab.hosts() {
        for (other, _) in lab.hosts() {
            assert!(lab.pings(&one, &other), "{one} reaches {other}");
        }
    }
    // A job that is created outside of the lab is visible on a host.
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job.yaml");
    std::fs::write(&job, "name: train\nmembers: [h1, h2, h3, h4, h4]\n").expect("written");
    let controller = lab.controller();
    let job = job.to_string_lossy();
    let create = ["job", "create", "-f", &job, "--controller", &controller];
    printed(&common::output(&create));
    let listed = printed(&lab.exec("h3", &[env!("CARGO_BIN_EXE_ultima"), "job", "list"]));
    assert!(listed.contains("train"), "{listed}");
}

/// A tree of switches with hosts; addresses, names, ports and impairments are random.
fn generated(seed: u64) -> String {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let switches: usize = rng.random_range(1..=4);
    let hosts: usize = rng.random_range(2..=5);
    let mut ports = vec![0; switches];
    let mut end = |rng: &mut Xoshiro256PlusPlus, switch: usize| {
        ports[switch] += rng.random_range(1..40);
        format!("node-{seed}-{switch}/{}", ports[switch])
    };
    let impairments = [
        "",
        ", delay: 2ms",
        ", rate: 200M, queue: 64k",
        ", b_to_a: { jitter: normal:50us }",
        ", mtu: 9000",
    ];
    let mut text = String::from("switches:\n");
    for switch in 0..switches {
        text += &format!("  - {{ name: node-{seed}-{switch} }}\n");
    }
    text += "hosts:\n";
    for host in 0..hosts {
        let network = rng.random_range(1..250);
        text += &format!(
            "  - {{ name: host{host}, mac: \"02:00:00:00:{seed:02x}:{host:02x}\", ip: 10.{seed}.{network}.{host} }}\n"
        );
    }
    text += "links:\n";
    let mut link = |rng: &mut Xoshiro256PlusPlus, a: &str, b: &str| {
        let impairment = impairments[rng.random_range(0..impairments.len())];
        text += &format!("  - {{ ends: [{a}, {b}]{impairment} }}\n");
    };
    for switch in 1..switches {
        let to = rng.random_range(0..switch);
        let ends = [end(&mut rng, switch), end(&mut rng, to)];
        link(&mut rng, &ends[0], &ends[1]);
    }
    for host in 0..hosts {
        let at = rng.random_range(0..switches);
        let port = end(&mut rng, at);
        link(&mut rng, &format!("host{host}"), &port);
    }
    text
}

#[test]
fn random_topologies_come_up() {
    if !needs::interfaces() {
        return;
    }
    for seed in 1..=per_run(1, 4) {
        let text = generated(seed);
        println!("{text}");
        let lab = Lab::of_text(&text, &[]);
        all_reach_their_next(&lab);
        lab.down();
    }
}
