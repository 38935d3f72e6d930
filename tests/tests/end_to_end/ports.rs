//! An interface between two switches goes down while members talk: its switch tells, and trees leave it; and stay away when it is
//! back.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ultima_tests::fabric::Fabric;
use ultima_tests::needs;
use ultima_tests::stage::{Stage, Target};

const TRAIN: &str = "{ name: train, members: [h1, h2, h3, h4] }";
/// How long the controller may take to trust an interface again.
const PATIENCE: Duration = Duration::from_secs(20);

fn link(interface: &str, state: &str) {
    let done = Command::new("ip")
        .args(["link", "set", interface, state])
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "ip link set {interface} {state}"
    );
}

/// The spine of a job's tree, by name.
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

/// What of each switch is not in use.
fn health(stage: &Stage) -> String {
    let switches = stage
        .testbed
        .runtime
        .block_on(stage.controller.client().switches());
    let switches = switches.unwrap_or_else(|error| panic!("{error}"));
    switches.into_iter().map(|switch| switch.health).collect()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn trees_leave_an_interface_that_is_down() {
    if !needs::interfaces() {
        return;
    }
    Target::Interfaces.run(Fabric::spines(), &[TRAIN], |mut stage| {
        let job = stage.jobs[0].clone();
        let ends = [job.host_of(0), job.host_of(2)];
        let gather =
            |mark: &str, number: u32| job.gather(0, format!("{mark} {number}").as_bytes()).emit();
        let says =
            |frame: &[u8], mark: &str| frame.windows(mark.len()).any(|it| it == mark.as_bytes());
        stage
            .testbed
            .send_until(ends, |n| gather("whole", n), |it| says(it, "whole"));
        let (first, interface, other) = match spine(&stage, "train").as_str() {
            "s3" => ("s3", "s1-9", "s4"),
            _ => ("s4", "s1-10", "s3"),
        };
        until("all is well", || health(&stage).is_empty());
        link(interface, "down");
        let gone = stage
            .testbed
            .send_until(ends, |n| gather("moved", n), |it| says(it, "moved"));
        eprintln!("GATHER came again {gone:?} after {interface} went down");
        assert_eq!(spine(&stage, "train"), other);
        // Both ends say so, the one that was set down and the one that has no carrier.
        until("both ends are told", || {
            let told = health(&stage);
            told.contains("s1/") && told.contains(&format!("{first}/1"))
        });

        // It is back, and trusted after a while. The tree stays where it is; another job takes the spine that has none.
        link(interface, "up");
        until("it is trusted again", || health(&stage).is_empty());
        assert_eq!(spine(&stage, "train"), other);
        stage
            .controller
            .create(&stage.testbed, "{ name: more, members: [h1, h3] }");
        assert_eq!(spine(&stage, "more"), first);
    });
}
