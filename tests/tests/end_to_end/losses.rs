//! A job's losses by cause: trimmed at a full port, or lost before the switch. Counted, reported once, and readable by probes.

use ultima_api::v1 as api;
use ultima_p4::names::counter;
use ultima_planner::job::{Epoch, JobId, Rank};
use ultima_planner::target::PortNumber;
use ultima_planner::telemetry::OperationLoss;
use ultima_tests::generator::Datagram;
use ultima_tests::job::Job;
use ultima_tests::operator::{Operator, VirtualQueue};
use ultima_tests::stage::{Stage, Target};
use ultima_wire::{Header, Kind, Report};

use crate::slots::{FRAME_CUT, Seen, VALUES, at, gathers, send};

/// The number of losses of one operation at one port after which the switch reports it.
const THRESHOLD: u32 = 3;
/// [`ultima_tests::controller::LEFT`] with that threshold.
const LEFT: &str = "{ name: left, members: [h1, h1, h2, h3], loss_threshold: 3 }";
const RIGHT: &str = "{ name: right, members: [h2, h4] }";
fn star<T: Send>(target: &Target, test: impl FnOnce(Stage, Operator) -> T + Send) -> T {
    let fabric = ultima_tests::fabric::Fabric::star();
    target.run(fabric, &[LEFT, RIGHT], |stage| {
        let operator = Operator::at(0, stage.testbed.grpc()[0]);
        let operator = stage.testbed.runtime.block_on(operator);
        test(stage, operator)
    })
}

/// Rank 3's port carries four packets, two of them unmarked. Other ports lose nothing, and the switch reports once.
fn only_the_slow_port_is_trimmed(target: &Target) {
    star(target, |mut stage, mut operator| {
        let left = stage.jobs[0].clone();
        let port = stage.testbed.fabric.host(left.host_of(3)).port;
        let frame = (FRAME_CUT + VALUES) as i64;
        let limit = operator.limit(VirtualQueue::Port(port), 2 * frame, 4 * frame);
        stage.testbed.runtime.block_on(limit);

        let before = stage.counts();
        let frames = gathers(&left, 2, (7, 1), 10);
        let seen = send(&mut stage, &left, 2, &frames);
        assert_eq!(
            seen,
            Seen::from([(0, [10, 0, 0]), (1, [10, 0, 0]), (3, [4, 8, 6])])
        );
        let counts = stage.counts().since(&before);
        let share = left.shares[&(0, port)];
        assert_eq!(at(&counts, counter::TRIMMED, left.counter), 6);
        assert_eq!(at(&counts, counter::SHARE_TRIMMED, share), 6);
        assert_eq!(at(&counts, counter::SHARE_SENT, share), 10);
        assert_eq!(at(&counts, counter::DELIVERED, left.counter), 30);
        assert_eq!(at(&counts, counter::LATE, left.counter), 0);

        let reported = stage.testbed.runtime.block_on(operator.losses());
        let expected = OperationLoss {
            job: JobId(left.id),
            epoch: Epoch(left.epoch),
            step: 7,
            bucket: 1,
            source: Rank(2),
            port: PortNumber(port),
            trimmed: THRESHOLD,
            late: 0,
            upstream_lost: 0,
        };
        assert_eq!(reported, [expected]);
        // The port loses more packets of this operation, which the switch does not report again: its next report is of
        // another operation.
        send(&mut stage, &left, 2, &gathers(&left, 2, (7, 1), 10));
        send(&mut stage, &left, 2, &gathers(&left, 2, (7, 2), 10));
        let reported = stage.testbed.runtime.block_on(operator.losses());
        assert_eq!(
            reported,
            [OperationLoss {
                bucket: 2,
                ..expected
            }]
        );

        // The slow host probes the losses of the first operation.
        let header = Header {
            step: 7,
            bucket: 1,
            ..left.header(Kind::Probe, 3, 3)
        };
        let report = send_probe(&mut stage, &left, 3, &left.probe(3, 0).with_header(&header));
        let lost = Report {
            port,
            known: true,
            sent: 20,
            trimmed: 16,
            late: 0,
            upstream_lost: 0,
        };
        assert_eq!(report, lost);

        stage
            .testbed
            .runtime
            .block_on(operator.unlimit(VirtualQueue::Port(port)));
        let seen = send(&mut stage, &left, 2, &gathers(&left, 2, (8, 1), 10));
        assert_eq!(seen[&3], [10, 0, 0]);
    });
}

/// Sends a probe and returns the report of the answer.
pub fn send_probe(stage: &mut Stage, job: &Job, rank: u16, probe: &Datagram) -> Report {
    let from = job.host_of(rank);
    let mut arrivals = stage.testbed.exchange(from, &[probe.emit()]);
    let answers = arrivals.remove(&from).expect("an answer");
    assert!(arrivals.is_empty() && answers.len() == 1);
    let (_, datagram) =
        ultima_wire::frame::parse(&answers[0]).expect("lengths and checksums are right");
    let (header, payload) = Header::parse(datagram).expect("an Ultima packet");
    assert_eq!(header.kind, Kind::Report);
    Report::parse(payload).expect("a report")
}

/// One job has used up its share of a port of two jobs. The other job loses nothing.
fn a_job_keeps_to_its_share(target: &Target) {
    star(target, |mut stage, operator| {
        let [left, right] = [0, 1].map(|job: usize| stage.jobs[job].clone());
        assert_eq!(left.host_of(2), right.host_of(0), "both are at one port");
        let port = stage.testbed.fabric.host(left.host_of(2)).port;
        let frame = (FRAME_CUT + VALUES) as i64;
        let share = left.shares[&(0, port)];
        let testbed = &stage.testbed;
        testbed.runtime.block_on(async {
            operator
                .limit(VirtualQueue::Share(share), frame, frame)
                .await;
            // The port has room for eight packets. Trimmed packets of the share must not use it.
            operator
                .limit(VirtualQueue::Port(port), 8 * frame, 8 * frame)
                .await;
        });
        let before = stage.counts();
        let seen = send(&mut stage, &left, 0, &gathers(&left, 0, (1, 1), 16));
        assert_eq!(seen[&2], [1, 15, 15]);
        assert_eq!(
            seen[&3],
            [16, 0, 0],
            "at another port the job has another share"
        );
        let seen = send(&mut stage, &right, 1, &gathers(&right, 1, (1, 1), 6));
        assert_eq!(seen, Seen::from([(0, [6, 0, 0])]));
        let counts = stage.counts().since(&before);
        assert_eq!(at(&counts, counter::TRIMMED, left.counter), 15);
        assert_eq!(at(&counts, counter::TRIMMED, right.counter), 0);
    });
}

/// Packet numbers that a source skips are lost before the switch, unless they come late.
fn gaps_are_upstream_losses(target: &Target) {
    star(target, |mut stage, mut operator| {
        let left = stage.jobs[0].clone();
        let source = 2;
        let numbered = |number: u32, bucket: u16| {
            let header = Header {
                packet_number: number,
                bucket,
                ..left.header(Kind::Scatter, source, 0)
            };
            left.scatter(source, 0, b"data").with_header(&header).emit()
        };
        let before = stage.counts();
        // Packet numbers, which wrap around, and the operation.
        let sent: [(&[u32], u16); 5] = [
            (&[u32::MAX - 2, u32::MAX - 1, u32::MAX, 0, 1], 1),
            // 2 is lost; 1,000 are lost but two come late.
            (&[3, 1004, 500, 501, 1005], 2),
            // A jump too far forward, and back: the numbering restarts, from 0 if that is near.
            (&[1005 + (1 << 12) + 1, 7, 8], 3),
            // Earlier numbers have left the window.
            (&[8 + 64], 4),
            (&[72 + (1 << 12)], 5),
        ];
        for (numbers, bucket) in sent {
            let frames: Vec<Vec<u8>> = numbers
                .iter()
                .map(|number| numbered(*number, bucket))
                .collect();
            stage.testbed.exchange(left.host_of(source), &frames);
        }
        let index = left.members[usize::from(source)].source;
        let counts = stage.counts().since(&before);
        let gaps: u64 = counter::gap_cells(index)
            .map(|(array, index, missing)| at(&counts, array, index) * missing)
            .sum();
        assert_eq!(gaps, 1 + 1000 + 7 + 63 + 4095);
        assert_eq!(at(&counts, counter::OVERTAKEN, index), 2);
        assert_eq!(at(&counts, counter::RENUMBERED, index), 2);

        let reported = |operator: &mut Operator| stage.testbed.runtime.block_on(operator.losses());
        let mut all = reported(&mut operator);
        while all.len() < 2 {
            all.extend(reported(&mut operator));
        }
        let port = stage.testbed.fabric.host(left.host_of(source)).port;
        let expected = |bucket, upstream_lost| OperationLoss {
            job: JobId(left.id),
            epoch: Epoch(left.epoch),
            step: 0x0506_0708,
            bucket,
            source: Rank(source),
            port: PortNumber(port),
            trimmed: 0,
            late: 0,
            upstream_lost,
        };
        // The numbers of 1004's and 4168's remainder modulo 64 are lost for good.
        let reported = [expected(2, 1004 / 64), expected(5, 4096 / 64 - 1)];
        assert_eq!(all, reported);

        let header = Header {
            packet_number: 72 + (1 << 12) + 1,
            ..left.header(Kind::Probe, source, source)
        };
        let probe = left.probe(source, 0).with_header(&header);
        let report = send_probe(&mut stage, &left, source, &probe);
        assert_eq!(report.upstream_lost, 1 + 1000 - 2 + 7 + 63 + 4095);
    });
}

/// A full port marks the ECN field of any IP packet that supports it, and trims data only.
fn a_full_port_marks_ecn(target: &Target) {
    star(target, |mut stage, operator| {
        let left = stage.jobs[0].clone();
        let (from, to) = (left.host_of(2), left.host_of(3));
        let port = stage.testbed.fabric.host(to).port;
        let limited = operator.limit(VirtualQueue::Port(port), 1, 1);
        stage.testbed.runtime.block_on(limited);
        let plain = stage.testbed.plain(from, to, 5001, vec![7; 1000]);
        let scatter = left.scatter(2, 3, &[7; VALUES]);
        let feedback = left.multicast(Kind::Feedback, 2, &[7; 4]);
        for sent in [plain, scatter, feedback] {
            // RFC 3168: Not-ECT, ECT(1), ECT(0), CE. The upper bits are the DSCP.
            for (tos, marked) in [(0xb8, 0xb8), (0xb9, 0xbb), (0x02, 0x03), (0x03, 0x03)] {
                let mut packet = sent.packet();
                packet.tos = tos;
                let arrivals = stage.testbed.exchange(from, &[packet.emit()]);
                let [frame] = &arrivals[&to][..] else {
                    panic!("one packet: {arrivals:?}")
                };
                ultima_wire::frame::parse(frame).expect("lengths and checksums are right");
                assert_eq!(frame[15], marked, "{tos:#x}");
                let others = arrivals.iter().filter(|(host, _)| **host != to);
                for frame in others.flat_map(|(_, frames)| frames) {
                    assert_eq!(frame[15], tos, "other ports have room");
                }
            }
        }
    });
}

/// The controller counts the losses of each switch by port, by source and by operation.
fn the_controller_counts_losses_by_port_source_and_operation(target: &Target) {
    target.pair(|mut stage| {
        let job = stage.jobs[0].clone();
        // The trunk carries three packets, the slow host's port at the far switch none.
        let (source, slow) = (0, 4);
        let [(near, trunk), (far, _)] = stage.testbed.fabric.trunks[0];
        let port = stage.testbed.fabric.host(job.host_of(slow)).port;
        let frame = (FRAME_CUT + VALUES) as i64;
        let queue = VirtualQueue::Share(job.shares[&(near, trunk)]);
        stage.operate(near, async |operator| {
            operator.limit(queue, 3 * frame, 3 * frame).await
        });
        let queue = VirtualQueue::Port(port);
        stage.operate(far, async |operator| operator.limit(queue, 1, 1).await);

        let mut frames = gathers(&job, source, (3, 0), 72);
        // 66 packets in a row never reach the switch. The next one shows that the number 64 before it is lost for good.
        let lost = 66;
        frames.drain(3..3 + lost);
        send(&mut stage, &job, source, &frames);

        // One report each of the trunk's share, the slow port and the source.
        let telemetry = stage.controller.telemetry(&stage.testbed, "across", 3);
        let packets = |count: &Option<api::Count>| count.map_or(0, |count| count.packets);
        let [one, other] = &telemetry.switches[..] else {
            panic!("the job is on both switches")
        };
        for switch in [one, other] {
            assert_eq!(switch.tail_dropped, 0);
            let counters = switch.counters.as_ref().expect("counters");
            let sum = |of: fn(&api::PortCounters) -> &Option<api::Count>| -> u64 {
                switch.ports.iter().map(|port| packets(of(port))).sum()
            };
            assert_eq!(sum(|port| &port.sent), packets(&counters.delivered));
            assert_eq!(sum(|port| &port.trimmed), packets(&counters.trimmed));
            assert_eq!(packets(&counters.late), 0);
        }
        let lossy = |switch: &api::SwitchTelemetry| -> Vec<(String, u64)> {
            let ports = switch
                .ports
                .iter()
                .filter(|port| packets(&port.trimmed) > 0);
            ports
                .map(|port| (port.peer.clone(), packets(&port.trimmed)))
                .collect()
        };
        // Packets that the trunk has trimmed are not trimmed or counted again.
        assert_eq!(lossy(one), [("s2".to_owned(), 3)]);
        assert_eq!(lossy(other), [("h4".to_owned(), 3)]);
        let lost_of: Vec<(u32, u64)> = (telemetry.switches.iter())
            .flat_map(|switch| &switch.sources)
            .map(|source| (source.rank, source.lost))
            .collect();
        let ranks = job.ranks().map(u32::from);
        let expected = |rank| {
            if rank == u32::from(source) {
                lost as u64
            } else {
                0
            }
        };
        let mut by_rank = lost_of.clone();
        by_rank.sort_unstable();
        assert!(
            ranks.map(|rank| (rank, expected(rank))).eq(by_rank),
            "{lost_of:?}"
        );

        let mut reported: Vec<_> = (telemetry.losses.iter())
            .map(|loss| {
                assert_eq!(
                    (loss.step, loss.bucket, loss.source),
                    (3, 0, u32::from(source))
                );
                let port = u16::try_from(loss.port).expect("ports are small");
                let counts = [loss.trimmed, loss.late, loss.upstream_lost];
                (loss.switch.as_str(), port, counts)
            })
            .collect();
        reported.sort_unstable();
        let from = stage.testbed.fabric.host(job.host_of(source)).port;
        let mut expected = [
            ("s1", from, [0, 0, 1]),
            ("s1", trunk, [1, 0, 0]),
            ("s2", port, [1, 0, 0]),
        ];
        expected.sort_unstable();
        assert_eq!(reported, expected);
    });
}

on_both! {
    only_the_slow_port_is_trimmed;
    a_job_keeps_to_its_share;
    a_full_port_marks_ecn;
    the_controller_counts_losses_by_port_source_and_operation;
    gaps_are_upstream_losses;
}
