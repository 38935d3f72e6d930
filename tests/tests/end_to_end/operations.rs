//! The state of operations and sources in switches: shared cells, restarted jobs, duplicated packets.

use ultima_p4::names::counter;
use ultima_tests::controller::LEFT;
use ultima_tests::counters::Counts;
use ultima_tests::job::Job;
use ultima_tests::operator::VirtualQueue;
use ultima_tests::stage::{Stage, Target};
use ultima_wire::{Header, Kind, Report, Ticks};

use crate::losses::send_probe;

/// The sending rank, and the receiving one.
const SOURCE: u16 = 2;
const OWNER: u16 = 0;
/// A missing packet number counts as lost when a number this much higher arrives.
const WINDOW: usize = 64;
/// A job whose switches report operations with three losses.
const THRESHOLD: &str = "{ name: left, members: [h1, h1, h2, h3], loss_threshold: 3 }";

fn star<T: Send>(target: &Target, test: impl FnOnce(Stage) -> T + Send) -> T {
    let fabric = ultima_tests::fabric::Fabric::star();
    target.run(fabric, &[THRESHOLD], test)
}

/// Sends packets, and counts the packet numbers of each rank.
struct Sender {
    job: Job,
    next: [u32; 4],
}

impl Sender {
    fn header(&mut self, kind: Kind, source: u16, (step, bucket): (u32, u16)) -> Header {
        let next = &mut self.next[usize::from(source)];
        let packet_number = *next;
        *next += 1;
        Header {
            step,
            bucket,
            packet_number,
            ..self.job.header(kind, source, source)
        }
    }

    fn data(&mut self, stage: &mut Stage, operation: (u32, u16), budgets: &[Ticks]) {
        self.send(stage, Kind::Scatter, operation, budgets);
    }

    fn send(&mut self, stage: &mut Stage, kind: Kind, operation: (u32, u16), budgets: &[Ticks]) {
        let frame = |budget: &Ticks| {
            let header = Header {
                budget: *budget,
                ..self.header(kind, SOURCE, operation)
            };
            let sent = self.job.scatter(SOURCE, OWNER, b"data");
            sent.with_header(&header).emit()
        };
        let frames: Vec<Vec<u8>> = budgets.iter().map(frame).collect();
        stage.testbed.exchange(self.job.host_of(SOURCE), &frames);
    }

    /// Skips the next packets of the source.
    fn lose(&mut self, packets: u32) {
        self.next[usize::from(SOURCE)] += packets;
    }

    /// The switch's answer to a probe of the owner: packets sent, trimmed and late. `None` for an unknown operation.
    fn known(&mut self, stage: &mut Stage, operation: (u32, u16)) -> Option<[u32; 3]> {
        let header = self.header(Kind::Probe, OWNER, operation);
        let probe = self.job.probe(OWNER, 0).with_header(&header);
        let report = send_probe(stage, &self.job, OWNER, &probe);
        let counts = [report.sent, report.trimmed, report.late];
        assert!(report.known || counts == [0; 3], "{report:?}");
        report.known.then_some(counts)
    }
}

/// Makes the owner's port trim all packets, or none.
fn limit(stage: &Stage, job: &Job, nothing: bool) {
    let port = stage.testbed.fabric.host(job.host_of(OWNER)).port;
    let queue = VirtualQueue::Port(port);
    stage.operate(0, async |operator| match nothing {
        true => operator.limit(queue, 1, 1).await,
        false => operator.unlimit(queue).await,
    });
}

const ON_TIME: Ticks = Ticks::MAX;
const LATE: Ticks = Ticks(0);

fn a_newer_operation_takes_the_cell_of_an_older_one(target: &Target) {
    star(target, |mut stage| {
        let job = stage.jobs[0].clone();
        let mut sender = Sender { job, next: [0; 4] };
        let job = sender.job.clone();
        // All operations but the last two share a cell.
        let [first, second, third, older, other, next] =
            [(7, 1), (23, 1), (39, 1), (38, 0), (7, 2), (8, 1)];

        limit(&stage, &job, true);
        sender.data(
            &mut stage,
            first,
            &[ON_TIME, ON_TIME, LATE, ON_TIME, ON_TIME],
        );
        sender.data(&mut stage, other, &[ON_TIME]);
        sender.data(&mut stage, next, &[LATE]);
        assert_eq!(sender.known(&mut stage, first), Some([5, 4, 1]));
        assert_eq!(sender.known(&mut stage, other), Some([1, 1, 0]));
        assert_eq!(sender.known(&mut stage, next), Some([1, 0, 1]));

        // The controller has the report before an operator becomes primary.
        stage.controller.telemetry(&stage.testbed, "left", 1);
        // A newer operation starts at zero and replaces the first one.
        limit(&stage, &job, false);
        sender.data(&mut stage, second, &[ON_TIME, ON_TIME]);
        assert_eq!(sender.known(&mut stage, second), Some([2, 0, 0]));
        assert_eq!(sender.known(&mut stage, first), None);
        assert_eq!(sender.known(&mut stage, other), Some([1, 1, 0]));

        limit(&stage, &job, true);
        sender.data(&mut stage, second, &[ON_TIME, LATE]);
        sender.data(&mut stage, third, &[LATE, ON_TIME, ON_TIME, ON_TIME]);
        assert_eq!(sender.known(&mut stage, third), Some([4, 3, 1]));
        // A late packet of an older operation is not counted and does not take the cell.
        sender.data(&mut stage, older, &[ON_TIME]);
        assert_eq!(sender.known(&mut stage, older), None);
        assert_eq!(sender.known(&mut stage, third), Some([4, 3, 1]));
        // A step two windows back: the job's members have restarted.
        sender.data(&mut stage, first, &[ON_TIME, ON_TIME, ON_TIME]);
        assert_eq!(sender.known(&mut stage, first), Some([3, 3, 0]));
        assert_eq!(sender.known(&mut stage, third), None);

        let reported = stage.controller.telemetry(&stage.testbed, "left", 3);
        let reported: Vec<_> = (reported.losses.iter())
            .map(|reported| {
                (
                    (reported.step, reported.bucket),
                    [reported.trimmed, reported.late],
                )
            })
            .collect();
        let [first, third] = [first, third].map(|(step, bucket)| (step, bucket.into()));
        assert_eq!(
            reported,
            [(first, [2, 1]), (third, [2, 1]), (first, [3, 0])]
        );
    });
}

/// A job that gets the cells of a deleted job starts at zero.
fn a_job_starts_without_the_state_of_a_deleted_one(target: &Target) {
    star(target, |mut stage| {
        let operation = (7, 1);
        let lose = |stage: &mut Stage| {
            let job = stage.jobs[0].clone();
            let mut sender = Sender { job, next: [0; 4] };
            let before = sender.known(stage, operation);
            sender.data(stage, operation, &[ON_TIME, ON_TIME, ON_TIME]);
            sender.next[usize::from(OWNER)] += 5;
            let header = sender.header(Kind::Probe, OWNER, operation);
            let probe = sender.job.probe(OWNER, 0).with_header(&header);
            let job = sender.job.clone();
            (before, send_probe(stage, &job, OWNER, &probe))
        };
        let (before, first) = lose(&mut stage);
        assert_eq!(before, None);
        stage.controller.delete(&stage.testbed, "left");
        let again = stage.controller.create(&stage.testbed, LEFT);
        let [one, other] = [&stage.jobs[0], &again].map(|job| (&job.shares, &job.members));
        assert_eq!(one, other, "the new job has the indexes of the deleted job");
        stage.jobs[0] = again;
        let (before, second) = lose(&mut stage);
        assert_eq!(before, None);
        assert_eq!(first, second);
        assert_eq!(
            second,
            Report {
                port: 1,
                known: true,
                sent: 3,
                trimmed: 0,
                late: 0,
                upstream_lost: 5,
            }
        );
    });
}

/// The losses of a source belong to one operation, and the latest operation with losses takes the cell.
fn losses_belong_to_one_operation(target: &Target) {
    star(target, |mut stage| {
        let job = stage.jobs[0].clone();
        let mut sender = Sender { job, next: [0; 4] };
        // All operations share a cell. Numbers are skipped before an operation's first packet, and leave the window after its last.
        for (operation, lost) in [
            ((7, 1), 2),
            ((23, 1), 2),
            ((22, 0), 9),
            ((23, 1), 1),
            ((23, 1), 9),
            ((39, 1), 4),
        ] {
            sender.lose(lost);
            sender.data(&mut stage, operation, &[ON_TIME; WINDOW]);
        }
        assert_eq!(
            upstream_losses(&stage, 3),
            [((22, 0), 3), ((23, 1), 3), ((39, 1), 3)]
        );
    });
}

/// Step, bucket and losses before the switch of at least so many reported operations.
fn upstream_losses(stage: &Stage, operations: usize) -> Vec<((u32, u32), u32)> {
    let reported = stage
        .controller
        .telemetry(&stage.testbed, "left", operations);
    let reported = (reported.losses.iter())
        .map(|reported| ((reported.step, reported.bucket), reported.upstream_lost));
    reported.collect()
}

/// Losses before packets of no operation belong to no operation and take no cell, not even that of step 0.
fn losses_before_control_packets_belong_to_no_operation(target: &Target) {
    star(target, |mut stage| {
        let job = stage.jobs[0].clone();
        let mut sender = Sender { job, next: [0; 4] };
        let operation = (16, 0);
        let before = stage.counts();
        for (kind, of, lost) in [
            (Kind::Scatter, operation, 2),
            (Kind::Control, (0, 0), 9),
            (Kind::Probe, (0, 0), 9),
            (Kind::Report, (0, 0), 9),
            (Kind::Feedback, operation, 1),
        ] {
            sender.lose(lost);
            sender.send(&mut stage, kind, of, &[ON_TIME]);
            sender.data(&mut stage, operation, &[ON_TIME; WINDOW - 1]);
        }
        assert_eq!(upstream_losses(&stage, 1), [((16, 0), 3)]);
        let counts = stage.counts().since(&before);
        let index = sender.job.members[usize::from(SOURCE)].source;
        assert_eq!(gaps(&counts, index), 2 + 9 + 9 + 9 + 1);
    });
}

/// Reordered packets are not losses. A loss is reported when its number leaves the window.
fn reordered_packets_are_not_lost(target: &Target) {
    let fabric = ultima_tests::fabric::Fabric::star();
    target.run(fabric, &[LEFT], |mut stage| {
        let job = stage.jobs[0].clone();
        let mut send = |numbers: &[u32], bucket| {
            let frame = |number: &u32| {
                let header = Header {
                    packet_number: *number,
                    step: 7,
                    bucket,
                    ..job.header(Kind::Scatter, SOURCE, OWNER)
                };
                let sent = job.scatter(SOURCE, OWNER, b"data");
                sent.with_header(&header).emit()
            };
            let frames: Vec<Vec<u8>> = numbers.iter().map(frame).collect();
            stage.testbed.exchange(job.host_of(SOURCE), &frames);
        };
        // Each second packet overtakes its neighbour.
        let pairs: Vec<u32> = (0..100).map(|number| number ^ 1).collect();
        send(&pairs, 1);
        // Packets of the next operation overtake those of this one. One packet comes at the end of the window.
        let late: Vec<u32> = (101..=163).chain([100]).collect();
        send(&late, 2);
        send(&[164], 1);
        send(&[168, 169], 3);
        send(&[165, 166, 167], 2);
        // 170 is lost, which the switch detects 64 numbers later.
        let lost: Vec<u32> = (171..=233).collect();
        send(&lost, 4);
        send(&[234], 5);
        send(&[235], 5);
        // 236 is lost, and 237 comes at the end of the window.
        let lost: Vec<u32> = (238..=300).chain([237, 301]).collect();
        send(&lost, 6);
        assert_eq!(upstream_losses(&stage, 2), [((7, 4), 1), ((7, 6), 1)]);
    });
}

/// The number of packet numbers that a source skipped.
fn gaps(counts: &Counts, source: u32) -> u64 {
    counter::gap_cells(source)
        .map(|(array, index, missing)| crate::slots::at(counts, array, index) * missing)
        .sum()
}

/// Each number counts once. A duplicate does not compensate for a loss.
fn each_packet_number_counts_once(target: &Target) {
    star(target, |mut stage| {
        let job = stage.jobs[0].clone();
        let before = stage.counts();
        let send = |stage: &mut Stage, numbers: &mut dyn Iterator<Item = u32>| {
            let frame = |number| {
                let header = Header {
                    packet_number: number,
                    ..job.header(Kind::Scatter, SOURCE, OWNER)
                };
                let sent = job.scatter(SOURCE, OWNER, b"data");
                sent.with_header(&header).emit()
            };
            let frames: Vec<Vec<u8>> = numbers.map(frame).collect();
            stage.testbed.exchange(job.host_of(SOURCE), &frames);
        };
        let lost = |stage: &mut Stage, number| {
            let header = Header {
                packet_number: number,
                ..job.header(Kind::Probe, SOURCE, SOURCE)
            };
            send_probe(
                stage,
                &job,
                SOURCE,
                &job.probe(SOURCE, 0).with_header(&header),
            )
            .upstream_lost
        };
        // The first number is far from the start of its numbering, so no earlier number counts as missing.
        let n = (3 << 20) + 5000;
        send(&mut stage, &mut (n..n + 70));
        send(&mut stage, &mut [n + 69, n + 6].into_iter());
        // The first number has left the window. No number before it counts as lost.
        send(&mut stage, &mut [n].into_iter());
        assert_eq!(lost(&mut stage, n + 70), 0);
        // Eight are lost; one of them comes late, twice.
        send(&mut stage, &mut [n + 79, n + 75, n + 75].into_iter());
        assert_eq!(lost(&mut stage, n + 80), 7);
        // 63 are lost; the first is the oldest in the window.
        send(&mut stage, &mut [n + 144, n + 81, n + 81].into_iter());
        assert_eq!(lost(&mut stage, n + 145), 7 + 62);
        // 64 are lost; the first comes late, and the number before it has left the window.
        send(&mut stage, &mut [n + 210, n + 146, n + 210].into_iter());
        assert_eq!(lost(&mut stage, n + 211), 7 + 62 + 63);
        // A new numbering, and one whose first number is near its start.
        let m = (9 << 20) + 4096;
        send(&mut stage, &mut [m, m - 1, m - 63].into_iter());
        assert_eq!(lost(&mut stage, m + 1), 7 + 62 + 63 - 2);
        let m = (17 << 20) + 4095;
        send(&mut stage, &mut [m, m - 1, m - 1].into_iter());
        assert_eq!(lost(&mut stage, m + 1), 7 + 62 + 63 - 2 + 4094);

        let counts = stage.counts().since(&before);
        let index = job.members[usize::from(SOURCE)].source;
        let at = |array, index| crate::slots::at(&counts, array, index);
        assert_eq!(gaps(&counts, index), 8 + 63 + 64 + 4095);
        assert_eq!(at(counter::OVERTAKEN, index), 1 + 1 + 1 + 1 + 2 + 1);
        assert_eq!(at(counter::DUPLICATED, index), 2 + 1 + 1 + 1 + 1);
        assert_eq!(at(counter::RENUMBERED, index), 2);
    });
}

on_both! {
    a_newer_operation_takes_the_cell_of_an_older_one;
    a_job_starts_without_the_state_of_a_deleted_one;
    losses_belong_to_one_operation;
    losses_before_control_packets_belong_to_no_operation;
    reordered_packets_are_not_lost;
    each_packet_number_counts_once;
}
