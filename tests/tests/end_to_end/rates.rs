//! The controller sets virtual queues from the rates of links: of ports, and of jobs that share a port.

use std::collections::BTreeMap;

use ultima_p4::names::counter;
use ultima_tests::controller::{LEFT, RIGHT};
use ultima_tests::fabric::Fabric;
use ultima_tests::operator::VirtualQueue;
use ultima_tests::stage::{Stage, Target};
use ultima_tests::stamps::header;
use ultima_wire::Header;

use crate::slots::{Seen, at, gathers, send};

/// h4's port carries four slots at once, two of them unmarked, and then 0.95 bytes a second, rounded to 1.
const SLOW: &str = "rate: 8, queue: 4k";
/// h2's port, with a rank of each job, carries 46 slots at once.
const SHARED: &str = "rate: 8, queue: 64k";
/// A slot's frame has 1,094 bytes. The bounds are a quarter and three quarters of the queue, plus one frame of 1,514.
const SLOW_QUEUE: [i64; 4] = [1, 1024 + 1514, 1, 3072 + 1514];
const SHARED_QUEUE: [i64; 4] = [1, 16_384 + 1514, 1, 49_152 + 1514];

/// The virtual queues of the first switch.
fn queues(stage: &Stage) -> BTreeMap<VirtualQueue, [i64; 4]> {
    stage.operate(0, async |operator| operator.virtual_queues().await)
}

/// A burst is trimmed at the port of a slow link, and at no other port.
fn a_burst_is_trimmed_where_its_link_is_slow(target: &Target) {
    let fabric = Fabric::star()
        .with_port((0, 4), SLOW)
        .with_port((0, 3), "rate: 100G");
    target.run(
        fabric,
        &[LEFT, "{ name: right, members: [h3, h4] }"],
        |mut stage| {
            let [left, right] = [0, 1].map(|job: usize| stage.jobs[job].clone());
            let before = stage.counts();
            let seen = send(&mut stage, &right, 0, &gathers(&right, 0, (1, 1), 10));
            assert_eq!(seen, Seen::from([(1, [4, 8, 6])]));
            let seen = send(&mut stage, &left, 2, &gathers(&left, 2, (1, 1), 10));
            let whole = [10, 0, 0];
            assert_eq!(seen, Seen::from([(0, whole), (1, whole), (3, whole)]));
            let counts = stage.counts().since(&before);
            assert_eq!(at(&counts, counter::TRIMMED, right.counter), 6);
            assert_eq!(
                at(&counts, counter::SHARE_TRIMMED, right.shares[&(0, 4)]),
                6
            );
            assert_eq!(at(&counts, counter::TRIMMED, left.counter), 0);
        },
    );
}

/// One of two jobs floods the port that they share. The other loses nothing within its own share. A job alone at a port has
/// the port's limit only.
fn jobs_divide_a_port_by_weight(target: &Target) {
    let fabric = Fabric::star().with_port((0, 2), SHARED);
    let jobs = [
        "{ name: left, members: [h1, h1, h2, h3], weight: 3 }",
        RIGHT,
    ];
    target.run(fabric, &jobs, |mut stage| {
        let [left, right] = [0, 1].map(|job: usize| stage.jobs[job].clone());
        assert_eq!(left.host_of(2), right.host_of(0), "both are at h2's port");
        let [own, other] = [&left, &right].map(|job| VirtualQueue::Share(job.shares[&(0, 2)]));
        let port = (VirtualQueue::Port(2), SHARED_QUEUE);
        let of = |weight| {
            let [_, mark, _, trim] = SHARED_QUEUE;
            [1, mark * weight / 4, 1, trim * weight / 4]
        };
        let divided = BTreeMap::from([port, (own, of(3)), (other, of(1))]);
        assert_eq!(queues(&stage), divided);

        let before = stage.counts();
        let seen = send(&mut stage, &left, 0, &gathers(&left, 0, (1, 1), 64));
        let frame = 1094;
        let whole = u64::try_from(of(3)[3] / frame).expect("a few");
        assert_eq!([seen[&2][0], seen[&2][2]], [whole, 64 - whole]);
        assert_eq!(
            [seen[&1], seen[&3]],
            [[64, 0, 0]; 2],
            "at other ports it has no limit"
        );
        let within = u32::try_from(of(1)[3] / frame).expect("a few");
        let seen = send(&mut stage, &right, 1, &gathers(&right, 1, (1, 1), within));
        assert_eq!([seen[&0][0], seen[&0][2]], [within.into(), 0]);
        let counts = stage.counts().since(&before);
        assert_eq!(at(&counts, counter::TRIMMED, left.counter), 64 - whole);
        assert_eq!(at(&counts, counter::TRIMMED, right.counter), 0);

        stage.controller.delete(&stage.testbed, "right");
        assert_eq!(queues(&stage), BTreeMap::from([port]));
        // A new job gets the cells of the deleted one, without a meter.
        let again = stage
            .controller
            .create(&stage.testbed, "{ name: again, members: [h3, h4] }");
        assert!(
            again
                .shares
                .values()
                .any(|share| VirtualQueue::Share(*share) == other)
        );
        assert_eq!(queues(&stage), BTreeMap::from([port]));
        let seen = send(&mut stage, &again, 1, &gathers(&again, 1, (1, 1), 32));
        assert_eq!(seen, Seen::from([(0, [32, 0, 0])]));
    });
}

/// A new controller clears the meters of shares, which belong to no job of its own. It keeps those of ports: the links have
/// not changed, and their queues drain by themselves.
fn a_new_controller_keeps_the_queues_of_ports(target: &Target) {
    let fabric = Fabric::star()
        .with_port((0, 2), SHARED)
        .with_port((0, 4), SLOW);
    target.run(fabric, &[LEFT, RIGHT], |mut stage| {
        let right = stage.jobs[1].clone();
        assert_eq!(queues(&stage).len(), 4);
        let seen = send(&mut stage, &right, 0, &gathers(&right, 0, (1, 1), 10));
        assert_eq!(seen, Seen::from([(1, [4, 8, 6])]));

        stage.controller = stage.controller.replace(&stage.testbed);
        let ports = [
            (VirtualQueue::Port(2), SHARED_QUEUE),
            (VirtualQueue::Port(4), SLOW_QUEUE),
        ];
        assert_eq!(queues(&stage), BTreeMap::from(ports));
        // The slow port's queue has not drained, at one byte per second.
        let right = stage.controller.create(&stage.testbed, RIGHT);
        let seen = send(&mut stage, &right, 0, &gathers(&right, 0, (1, 1), 10));
        assert_eq!(seen, Seen::from([(1, [0, 10, 10])]));
    });
}

/// With `line_rate_queues`, a packet is trimmed if its time in the queue, which its header has, exceeds the link's limit: here
/// any time.
fn packets_are_trimmed_by_their_time_in_the_queue(target: &Target) {
    let mut fabric = Fabric::star().with_port((0, 3), "rate: 100000G");
    fabric.line_rate_queues = true;
    target.run(fabric, &[LEFT], |mut stage| {
        let left = stage.jobs[0].clone();
        let frames = gathers(&left, 2, (1, 1), 50);
        let arrivals = stage.testbed.exchange_stamped(left.host_of(2), &frames);
        let mut trimmed = 0;
        for (host, frames) in arrivals {
            for frame in frames {
                let Header {
                    path_queue,
                    switch_flags,
                    ..
                } = header(&frame);
                let over = host == left.host_of(3) && path_queue.0 > 0;
                assert_eq!(
                    (switch_flags.trimmed, switch_flags.congestion),
                    (over, over)
                );
                trimmed += u32::from(over);
            }
        }
        assert!(trimmed > 0, "no packet was queued for a microsecond");
    });
}

on_both! {
    a_burst_is_trimmed_where_its_link_is_slow;
    jobs_divide_a_port_by_weight;
    a_new_controller_keeps_the_queues_of_ports;
    packets_are_trimmed_by_their_time_in_the_queue;
}
