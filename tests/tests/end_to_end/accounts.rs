//! Counters are exact: the packets that hosts sent equal those that arrived plus those lost by each cause.

mod audit;
mod model;
mod traffic;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ultima_p4::names::counter;
use ultima_switch::proto::traffic_manager_client::TrafficManagerClient;
use ultima_switch::proto::{Change, SetSettingsRequest};
use ultima_tests::counters::Count;
use ultima_tests::fabric::{Fabric, HostId, device_id, switch_name};
use ultima_tests::job::Job;
use ultima_tests::needs;
use ultima_tests::operator::VirtualQueue;
use ultima_tests::stage::{Stage, Target};
use ultima_tests::stamps::header;
use ultima_tests::testbed::Arrivals;
use ultima_wire::{Header, Kind, Report, Ticks};

use self::audit::{Audit, Ledger};
use self::model::{Arrived, LossReport, Meter, Model};
use self::traffic::GRANULE;

/// The number of losses of one operation at one port after which a switch reports it, for all jobs.
const THRESHOLD: u32 = 3;
/// The step of all packets.
const STEP: u32 = 5;
/// The number of operations, which are buckets of the step. A job has as many cells.
const BUCKETS: u16 = 8;
/// Bytes of a trimmed frame.
const CUT: usize = ultima_wire::frame::FRAME_OVERHEAD + ultima_wire::HEADER_LEN;
/// Bytes of the digest and the tag, which a trimmed frame may keep.
const SEAL: usize = 16;

/// A job on all three switches, one on the outer two, and one without a multicast group.
const JOBS: [&str; 3] = [
    "name: wide, members: [h1, h1, h2, h3, h4, h5, h6, h5]",
    "name: ends, members: [h2, h6, h5]",
    "name: plain, members: [h1, h3], gather: unicast",
];
const SEED: u64 = 7;
/// The number of packets of each rank.
const PACKETS: usize = 80;

fn row<T: Send>(target: &Target, test: impl FnOnce(Stage) -> T + Send) -> T {
    let jobs = JOBS.map(|job| format!("{{ {job}, loss_threshold: {THRESHOLD} }}"));
    let jobs = jobs.each_ref().map(String::as_str);
    target.run(Fabric::row(), &jobs, test)
}

/// The headers of the frames that arrived, by host and packet.
type Seen = BTreeMap<(HostId, u32), Vec<Arrived>>;
/// The answers to probes, by packet.
type Reports = BTreeMap<u32, Vec<Report>>;

fn read(arrivals: &Arrivals) -> (Seen, Reports) {
    let (mut seen, mut reports) = (Seen::new(), Reports::new());
    for (host, frame) in arrivals
        .iter()
        .flat_map(|(host, frames)| frames.iter().map(|frame| (*host, frame)))
    {
        let (_, datagram) =
            ultima_wire::frame::parse(frame).expect("lengths and checksums are right");
        let (header, payload) = Header::parse(datagram).expect("an Ultima packet");
        if header.kind == Kind::Report {
            let report = Report::parse(payload).expect("a report");
            reports.entry(header.slot).or_default().push(report);
        }
        let flags = header.switch_flags;
        let arrived = Arrived {
            bytes: frame.len(),
            trimmed: flags.trimmed,
            late: flags.late,
            congestion: flags.congestion,
            hops: flags.hops,
        };
        seen.entry((host, header.slot)).or_default().push(arrived);
    }
    seen.values_mut().for_each(|copies| copies.sort_unstable());
    (seen, reports)
}

/// Compares arrivals, counters, answers to probes and reports to the controller with the model.
fn counters_add_up(target: &Target) {
    row(target, |mut stage| {
        let (fabric, jobs) = (stage.testbed.fabric.clone(), stage.jobs.clone());
        // A trunk and the hosts' ports at either end are full after some packets of medium size.
        let granule = GRANULE as i64;
        let full = |unmarked: i64, taken: i64| Meter {
            unmarked: unmarked * granule + 16,
            taken: taken * granule + 16,
        };
        let meters: BTreeMap<(usize, u32), Meter> = [
            ((0, 9), 0, full(200, 260)),
            ((2, 1), 0, full(60, 150)),
            ((0, 1), 0, full(100, 100)),
            ((1, 8), 1, full(20, 40)),
            ((2, 2), 1, full(10, 30)),
        ]
        .map(|(place, job, meter): ((usize, u16), usize, Meter)| {
            ((place.0, jobs[job].shares[&place]), meter)
        })
        .into();
        for ((at, share), meter) in &meters {
            stage.operate(*at, async |operator| {
                let queue = VirtualQueue::Share(*share);
                operator.limit(queue, meter.unmarked, meter.taken).await;
            });
        }

        let before = stage.counts();
        let mut model = Model::new(&fabric, &jobs, meters);
        let (mut ledger, mut arrivals) = (Ledger::default(), Arrivals::new());
        for burst in traffic::bursts(&jobs, SEED, PACKETS) {
            let mut frames = Vec::new();
            for packet in &burst {
                model.send(packet);
                ledger.send(&fabric, packet);
                if packet.fate != traffic::Fate::Lost {
                    frames.push(packet.frame.clone());
                }
            }
            for (host, frames) in stage.testbed.exchange(burst[0].from, &frames) {
                for frame in frames {
                    let job = jobs.iter().position(|job| job.id == header(&frame).job);
                    ledger.arrive(host, job.expect("a packet of a job"), &frame);
                    arrivals.entry(host).or_default().push(frame);
                }
            }
        }

        let (seen, reports) = read(&arrivals);
        model
            .arrivals
            .values_mut()
            .for_each(|copies| copies.sort_unstable());
        for (place, expected) in &model.arrivals {
            assert_eq!(seen.get(place), Some(expected), "{place:?}");
        }
        assert_eq!(seen.len(), model.arrivals.len(), "nothing else arrives");
        assert_eq!(reports, model.reports);

        let counts = stage.counts().since(&before);
        assert_eq!(counts.without_sources(), model.counts);
        let audit = Audit {
            fabric: &fabric,
            jobs: &jobs,
            counts: &counts,
        };
        assert_eq!(audit.check(&ledger), [Count::default(); 3]);
        for ((job, rank), source) in &model.sources {
            assert_eq!(source.lost(), source.gaps - source.overtaken);
            let expected = [source.lost(), source.duplicated, source.renumbered];
            assert_eq!(
                audit.source(&jobs[*job], *rank),
                expected,
                "rank {rank} of {job}"
            );
            assert!(expected.iter().all(|count| *count > 0), "{expected:?}");
        }
        for array in counter::BY_JOB {
            let all: u64 = jobs.iter().map(|job| audit.all(array, job)).sum();
            assert!(
                all > 0 || array == counter::UNKNOWN_RANK,
                "no packet is {array}"
            );
        }

        for cause in 0..3 {
            let is_reported = model
                .loss_reports
                .iter()
                .any(|report| report.lost[cause] > 0);
            assert!(is_reported, "no operation lost anything by cause {cause}");
        }
        model.loss_reports.sort_unstable();
        let mut loss_reports = Vec::new();
        for (at, (name, job)) in ["wide", "ends", "plain"].into_iter().zip(&jobs).enumerate() {
            let losses = model
                .loss_reports
                .iter()
                .filter(|report| report.job == at)
                .count();
            let telemetry = stage.controller.telemetry(&stage.testbed, name, losses);
            audit.check_telemetry(job, &telemetry);
            loss_reports.extend(telemetry.losses.iter().map(|loss| {
                assert_eq!((loss.step, loss.epoch), (STEP, job.epoch.into()));
                let switch = (0..fabric.switches).find(|at| switch_name(*at) == loss.switch);
                let number = |number: u32| u16::try_from(number).expect("small");
                LossReport {
                    job: at,
                    place: (switch.expect("a switch"), number(loss.port)),
                    bucket: number(loss.bucket),
                    source: number(loss.source),
                    lost: [loss.trimmed, loss.late, loss.upstream_lost],
                }
            }));
        }
        loss_reports.sort_unstable();
        assert_eq!(loss_reports, model.loss_reports);
    });
}

/// The rank whose unicast crosses all switches, and its receiver.
const SOURCE: u16 = 2;
const OWNER: u16 = 6;

/// SCATTERs from the first switch to the last, whose budgets run out at any switch.
fn expiring(job: &Job) -> Vec<Vec<u8>> {
    let scatter = |slot: u32| {
        let header = Header {
            // One tick to an eighth of a second.
            budget: Ticks(1 << (slot % 18)),
            slot,
            packet_number: slot,
            ..job.header(Kind::Scatter, SOURCE, OWNER)
        };
        let sent = job.scatter(SOURCE, OWNER, &[7; 200]);
        sent.with_header(&header).emit()
    };
    (0..120).map(scatter).collect()
}

/// A packet that one switch trims is not late at the next. The trunk behind the first switch carries no payload. Returns the
/// number of packets whose budget ran out behind it.
fn trimmed_before_late(target: &Target, slow: impl Fn(&Stage) + Sync) -> usize {
    row(target, |mut stage| {
        let (fabric, jobs) = (stage.testbed.fabric.clone(), stage.jobs.clone());
        slow(&stage);
        let job = &jobs[0];
        let trunk = VirtualQueue::Share(job.shares[&(0, 9)]);
        stage.operate(0, async |operator| operator.limit(trunk, 1, 1).await);
        let before = stage.counts();
        let frames = expiring(job);
        let arrivals = stage.testbed.exchange(job.host_of(SOURCE), &frames);
        let headers: Vec<Header> = arrivals[&job.host_of(OWNER)]
            .iter()
            .map(|frame| header(frame))
            .collect();
        assert_eq!(headers.len(), frames.len());
        assert!(headers.iter().all(|header| header.switch_flags.trimmed));
        let (late, trimmed): (Vec<&Header>, Vec<&Header>) =
            (headers.iter()).partition(|header| header.switch_flags.late);

        let counts = stage.counts().since(&before);
        let audit = Audit {
            fabric: &fabric,
            jobs: &jobs,
            counts: &counts,
        };
        let counted = [counter::LATE, counter::TRIMMED].map(|array| audit.all(array, job));
        assert_eq!(counted, [late.len() as u64, trimmed.len() as u64]);
        let over = trimmed.iter().filter(|header| header.budget == Ticks(0));
        over.count()
    })
}

/// A packet is late at one switch only. Returns the number of packets that were late behind the first switch.
fn late_once(target: &Target, slow: impl Fn(&Stage) + Sync) -> u64 {
    row(target, |mut stage| {
        let (fabric, jobs) = (stage.testbed.fabric.clone(), stage.jobs.clone());
        slow(&stage);
        let job = &jobs[0];
        let before = stage.counts();
        let frames = expiring(job);
        let mut ledger = Ledger::default();
        let entered = Count {
            packets: frames.len() as u64,
            bytes: frames.iter().map(|frame| frame.len() as u64).sum(),
        };
        ledger
            .entered
            .insert(fabric.host(job.host_of(SOURCE)).switch, entered);
        for (host, frames) in stage.testbed.exchange(job.host_of(SOURCE), &frames) {
            frames
                .iter()
                .for_each(|frame| ledger.arrive(host, 0, frame));
        }
        let counts = stage.counts().since(&before);
        let audit = Audit {
            fabric: &fabric,
            jobs: &jobs,
            counts: &counts,
        };
        assert_eq!(audit.check(&ledger), [Count::default(); 3]);
        assert_eq!(audit.all(counter::LATE, job), ledger.late[&0]);
        let first = job.shares[&(0, 9)];
        let at_first = ultima_tests::counters::Cell {
            switch: 0,
            array: counter::SHARE_LATE,
            index: first,
        };
        let at_first = counts.0.get(&at_first).map_or(0, |count| count.packets);
        ledger.late[&0] - at_first
    })
}

/// Sets the rate and the queue of a port of an embedded switch; `None` is no limit.
fn set(stage: &Stage, at: usize, port: u16, rate_bps: Option<u64>, queue_packets: Option<u32>) {
    let grpc: SocketAddr = stage.testbed.grpc()[at];
    let rate = rate_bps.map_or("none".to_owned(), |rate| rate.to_string());
    let queue = queue_packets.map_or("none".to_owned(), |packets| packets.to_string());
    let change = Change {
        ports: vec![port.into()],
        settings: format!("rate={rate},queue-packets={queue}"),
    };
    stage.testbed.runtime.block_on(async {
        let client = TrafficManagerClient::connect(format!("http://{grpc}")).await;
        let request = SetSettingsRequest {
            device_id: device_id(at),
            changes: vec![change],
        };
        let set = client.expect("the switch serves").set(request).await;
        set.unwrap_or_else(|error| panic!("{error}"));
    });
}

/// The packets that a full queue drops are the difference in the equations.
#[test]
fn packets_dropped_by_a_queue_are_the_difference() {
    row(&Target::Sockets, |mut stage| {
        let (fabric, jobs) = (stage.testbed.fabric.clone(), stage.jobs.clone());
        let job = &jobs[0];
        let (source, packets) = (2, 40);
        let before = stage.counts();
        // A frame takes 40 ms, and the queue holds four.
        set(&stage, 0, 9, Some(200_000), Some(4));
        let frames: Vec<Vec<u8>> = (0..packets)
            .map(|slot| {
                let header = Header {
                    slot,
                    packet_number: slot,
                    ..job.header(Kind::Gather, source, source)
                };
                job.gather(source, &[7; 906]).with_header(&header).emit()
            })
            .collect();
        let mut ledger = Ledger::default();
        let entered = Count {
            packets: frames.len() as u64,
            bytes: 1000 * frames.len() as u64,
        };
        ledger.entered.insert(0, entered);
        stage.testbed.inject(job.host_of(source), &frames);
        let received = |stage: &mut Stage| {
            let counts = stage.counts().since(&before);
            let audit = Audit {
                fabric: &fabric,
                jobs: &jobs,
                counts: &counts,
            };
            audit.all(counter::RECEIVED, job) >= u64::from(packets)
        };
        while !received(&mut stage) {}
        set(&stage, 0, 9, None, None);
        let mut arrived = 0;
        for (host, frames) in stage.testbed.exchange(job.host_of(source), &[]) {
            frames
                .iter()
                .for_each(|frame| ledger.arrive(host, 0, frame));
            arrived += frames.len() as u64;
        }
        let counts = stage.counts().since(&before);
        let audit = Audit {
            fabric: &fabric,
            jobs: &jobs,
            counts: &counts,
        };
        let [dropped, none, no] = audit.check(&ledger)[..] else {
            panic!("three jobs")
        };
        assert_eq!([none, no], [Count::default(); 2]);
        assert!(dropped.packets > 0, "the queue was never full");
        assert_eq!(dropped.bytes, 1000 * dropped.packets);
        // Two ranks are at the first switch, and five behind the trunk.
        let through = u64::from(packets) - dropped.packets;
        assert_eq!(arrived, 2 * u64::from(packets) + 5 * through);
        let telemetry = stage.controller.telemetry(&stage.testbed, "wide", 0);
        audit.check_telemetry(job, &telemetry);
    });
}

on_both! {
    counters_add_up;
}

#[test]
fn a_packet_is_late_once_on_embedded() {
    // A frame takes 10 ms at the second switch.
    let late = late_once(&Target::Sockets, |stage| {
        set(stage, 1, 9, Some(250_000), None)
    });
    assert!(late > 0, "no packet was late behind the first switch");
}

#[test]
fn a_trimmed_packet_is_not_late_on_embedded() {
    // A trimmed frame takes 3 ms at the second switch.
    let over = trimmed_before_late(&Target::Sockets, |stage| {
        set(stage, 1, 9, Some(250_000), None)
    });
    assert!(over > 0, "no budget ran out behind the first switch");
}

#[test]
fn a_trimmed_packet_is_not_late_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        trimmed_before_late(&Target::Bmv2(program), |_| ());
    }
}

#[test]
fn a_packet_is_late_once_on_bmv2() {
    if let Some(program) = needs::bmv2() {
        late_once(&Target::Bmv2(program), |_| ());
    }
}
