//! Every topology that ships, and some that nobody has seen.

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_tests::needs;

use crate::common;
use crate::stage::{Lab, printed, topology};

/// From every host to the next one, and back: each host sends and receives.
fn all_reach_their_next(lab: &Lab) {
    let hosts = lab.hosts();
    for ((one, _), (other, _)) in hosts.iter().zip(hosts.iter().cycle().skip(1)) {
        assert!(lab.pings(one, other), "{one} reaches {other}");
        assert!(lab.pings(other, one), "{other} reaches {one}");
    }
}

#[test]
fn every_topology_that_ships_comes_up_and_goes() {
    if !needs::interfaces() {
        return;
    }
    for (file, hosts, processes) in [
        ("star4.yaml", 4, 2),
        ("two-switches.yaml", 4, 3),
        ("star16.yaml", 16, 18),
        ("dumbbell.yaml", 6, 8),
        ("leaf-spine.yaml", 8, 15),
    ] {
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

#[test]
fn the_first_of_all_topologies_is_a_full_mesh_of_hosts_with_a_controller() {
    if !needs::interfaces() {
        return;
    }
    let lab = Lab::of_file(&topology("star4.yaml"), &[]);
    for (one, _) in lab.hosts() {
        for (other, _) in lab.hosts() {
            assert!(lab.pings(&one, &other), "{one} reaches {other}");
        }
    }
    // A job from outside, seen from within.
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job.yaml");
    std::fs::write(&job, "name: train\nmembers: [h1, h2, h3, h4, h4]\n").expect("written");
    let controller = format!("unix:/run/ultima/labs/{}/controller.sock", lab.name);
    let job = job.to_string_lossy();
    let create = ["job", "create", "-f", &job, "--controller", &controller];
    printed(&common::output(&create));
    let listed = printed(&lab.exec("h3", &[env!("CARGO_BIN_EXE_ultima"), "job", "list"]));
    assert!(listed.contains("train"), "{listed}");
    lab.down();
}

/// A tree of switches with hosts anywhere on it; addresses, names, ports and impairments are drawn.
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
fn topologies_that_nobody_has_seen_come_up() {
    if !needs::interfaces() {
        return;
    }
    for seed in 1..=4 {
        let text = generated(seed);
        println!("{text}");
        let lab = Lab::of_text(&text, &[]);
        all_reach_their_next(&lab);
        lab.down();
    }
}
