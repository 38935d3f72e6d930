//! The embedded switch, with entries of the controller, forwards and counts every packet correctly.

use ultima_p4::names::counter;
use ultima_testing::per_run;
use ultima_tests::counters::{Cell, Counts};
use ultima_tests::scenario::{Scenario, Scene};
use ultima_tests::stage::Target;
use ultima_tests::{fuzz, needs, scenario};

/// The number of mutated frames.
fn mutations() -> usize {
    per_run(500, 4000)
}

fn star(target: &Target, scenarios: fn(Scene<'_>) -> Vec<Scenario>) {
    target.star(|mut stage| {
        for scenario in scenarios(stage.scene()) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

fn pair(target: &Target) {
    target.pair(|mut stage| {
        for scenario in scenario::pair(&stage.testbed.fabric, &stage.jobs[0]) {
            scenario::run(&mut stage, &scenario);
        }
    });
}

#[test]
fn one_switch_forwards_and_counts_on_sockets() {
    star(&Target::Sockets, scenario::star);
}

#[test]
fn two_switches_forward_and_count_on_sockets() {
    pair(&Target::Sockets);
}

#[test]
fn one_switch_forwards_and_counts_on_interfaces() {
    if needs::interfaces() {
        star(&Target::Interfaces, scenario::recheck);
    }
}

#[test]
fn two_switches_forward_and_count_on_interfaces() {
    if needs::interfaces() {
        pair(&Target::Interfaces);
    }
}

/// The switch keeps forwarding, and the counters of each job add up.
#[test]
fn counters_add_up_for_mutated_frames() {
    Target::Sockets.star(|mut stage| {
        let frames = fuzz::mutations(&scenario::star(stage.scene()), 2, mutations());
        let before = stage.counts();
        for (from, frame) in frames {
            stage.testbed.exchange(from, &[frame]);
        }
        let counts = stage.counts().since(&before);
        let mut admitted_unrouted = 0;
        for job in &stage.jobs {
            let packets = |array| packets(&counts, array, job.counter);
            let received = packets(counter::RECEIVED);
            assert!(
                received > 0 && packets(counter::REJECTED) > 0,
                "some frames are admitted and some are rejected"
            );
            let [replicated, unicast, reflected] =
                [counter::REPLICATED, counter::UNICAST, counter::REFLECTED].map(packets);
            let undeliverable = packets(counter::UNDELIVERABLE);
            assert_eq!(received, replicated + unicast + reflected + undeliverable);
            admitted_unrouted += undeliverable;
            let delivered = packets(counter::DELIVERED);
            assert_eq!(
                replicated * job.members.len() as u64 + unicast + reflected,
                delivered + packets(counter::OWN_COPY)
            );
            let by_port = |array| -> u64 {
                job.shares
                    .values()
                    .map(|share| self::packets(&counts, array, *share))
                    .sum()
            };
            assert_eq!(by_port(counter::SHARE_SENT), delivered);
            assert_eq!(by_port(counter::SHARE_LATE), packets(counter::LATE));
        }
        let unrouted: u64 = (counts.0.iter())
            .filter(|(cell, _)| cell.array == counter::UNROUTED)
            .map(|(_, count)| count.packets)
            .sum();
        assert!(
            admitted_unrouted <= unrouted,
            "{admitted_unrouted} admitted packets have no route, {unrouted} are counted"
        );
        for (name, array) in [
            ("unknown job", counter::REJECTED),
            ("malformed", counter::MALFORMED),
        ] {
            let some = counts.0.keys().any(|cell| cell.array == array);
            assert!(some, "no frame counts as {name}");
        }
    });
}

/// Frames that no interface carries, down to a single byte.
#[test]
fn frames_shorter_than_an_ethernet_header_are_counted() {
    Target::Sockets.star(|mut stage| {
        let job = stage.jobs[0].clone();
        let from = job.host_of(2);
        let whole = job.gather(2, b"data").emit();
        let before = stage.counts();
        let cut: Vec<Vec<u8>> = (1..14).map(|length| whole[..length].to_vec()).collect();
        assert!(stage.testbed.exchange(from, &cut).is_empty());
        let port = stage.testbed.fabric.host(from).port.into();
        let unrouted = Cell {
            switch: 0,
            array: counter::UNROUTED,
            index: port,
        };
        let mut expected = Counts::default();
        cut.iter()
            .for_each(|frame| expected.add(unrouted, 1, frame.len()));
        assert_eq!(stage.counts().since(&before), expected);
    });
}

fn packets(counts: &Counts, array: &'static str, index: u32) -> u64 {
    counts
        .0
        .get(&Cell {
            switch: 0,
            array,
            index,
        })
        .map_or(0, |count| count.packets)
}
