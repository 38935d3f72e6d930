//! An interface between two switches goes down: trees leave it, and do not return when it is up again.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ultima_tests::fabric::Fabric;
use ultima_tests::needs;
use ultima_tests::stage::{Stage, Target};

const TRAIN: &str = "{ name: train, members: [h1, h2, h3, h4] }";
/// The deadline for the controller to use an interface again.
const TIMEOUT: Duration = Duration::from_secs(20);

fn link(interface: &str, state: &str) {
    let done = Command::new("ip")
        .args(["link", "set", interface, state])
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "ip link set {interface} {state}"
    );
}

/// The name of the spine in a job's tree.
fn spine(stage: &Stage, job: &str) -> String {
    let job = stage
        .testbed
        .runtime
        .block_on(stage.controller.client().job(job));
    let job = job.unwrap_or_else(|error| panic!("{error}"));
    let ends = job.tree.iter().flat_map(|link| [&link.from, &link.to]);
    let spines = ["s3", "s4"];
    let spine = ends.into_iter().find(|end| spines.contains(&end.as_str()));
    spine.expect("leaves meet at a spine").clone()
}

/// The elements of all switches that are not in use.
fn health(stage: &Stage) -> String {
    let switches = stage
        .testbed
        .runtime
        .block_on(stage.controller.client().switches());
    let switches = switches.unwrap_or_else(|error| panic!("{error}"));
    switches.into_iter().map(|switch| switch.health).collect()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "timed out: {what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_tree_leaves_an_interface_that_is_down() {
    if !needs::interfaces() {
        return;
    }
    Target::Interfaces.run(Fabric::spines(), &[TRAIN], |mut stage| {
        let job = stage.jobs[0].clone();
        let ends = [job.host_of(0), job.host_of(2)];
        let gather =
            |mark: &str, number: u32| job.gather(0, format!("{mark} {number}").as_bytes()).emit();
        let has =
            |frame: &[u8], mark: &str| frame.windows(mark.len()).any(|it| it == mark.as_bytes());
        stage
            .testbed
            .send_until(ends, |n| gather("whole", n), |it| has(it, "whole"));
        let (first, interface, other) = match spine(&stage, "train").as_str() {
            "s3" => ("s3", "s1-9", "s4"),
            _ => ("s4", "s1-10", "s3"),
        };
        until("no problem is reported", || health(&stage).is_empty());
        link(interface, "down");
        let interrupted =
            stage
                .testbed
                .send_until(ends, |n| gather("rerouted", n), |it| has(it, "rerouted"));
        eprintln!("GATHER arrived again {interrupted:?} after {interface} went down");
        assert_eq!(spine(&stage, "train"), other);
        // Both ends report it: one is set down, and one has no carrier.
        until("both ends are reported", || {
            let problems = health(&stage);
            problems.contains("s1/") && problems.contains(&format!("{first}/1"))
        });

        // After a while, the controller uses the interface again. The tree stays, and a new job takes the free spine.
        link(interface, "up");
        until("the interface is used again", || health(&stage).is_empty());
        assert_eq!(spine(&stage, "train"), other);
        stage
            .controller
            .create(&stage.testbed, "{ name: more, members: [h1, h3] }");
        assert_eq!(spine(&stage, "more"), first);
    });
}
