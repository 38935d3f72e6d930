//! A model of the switches: the counts, arrivals, answers and reports that each packet causes.

use std::collections::{BTreeMap, BTreeSet};

use ultima_p4::names::counter;
use ultima_wire::{Kind, Report};

use super::traffic::{Fate, Packet, To};
use super::{CUT, SEAL, THRESHOLD};
use ultima_tests::counters::{Cell, Counts};
use ultima_tests::fabric::{Fabric, HostId};
use ultima_tests::job::Job;

/// A share's virtual queue that never drains.
///
/// It drains one byte per second. Packets are multiples of a granule, so a bound with a few spare bytes holds for minutes.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Bytes without a mark.
    pub unmarked: i64,
    /// Bytes without trimming.
    pub taken: i64,
}

/// A copy that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrived {
    /// Bytes of the frame.
    pub bytes: usize,
    /// True if its payload is trimmed.
    pub trimmed: bool,
    /// True if it is marked late.
    pub late: bool,
    /// True if it has a congestion mark.
    pub congestion: bool,
    /// The number of switches on its path.
    pub hops: u8,
}

/// A report of an operation's losses to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LossReport {
    /// The index of the job.
    pub job: usize,
    /// The switch and the port.
    pub place: (usize, u16),
    /// The operation's bucket.
    pub bucket: u16,
    /// The rank whose packet reached the threshold.
    pub source: u16,
    /// Packets trimmed, late, and lost before the switch.
    pub lost: [u32; 3],
}

/// A missing number counts as lost when a number this much higher arrives, or a later one with the same remainder.
const WINDOW: u32 = 64;
/// A numbering whose first number is this far from its start began earlier: numbers before it are not missing.
const START_WINDOW: u32 = 1 << 12;

/// The state of a rank's packet numbers at its switch.
#[derive(Clone, Debug, Default)]
pub struct Source {
    numbering: Option<u32>,
    received: BTreeSet<u32>,
    /// Losses in earlier numberings.
    lost_before: u64,
    /// Losses that the switch counts now.
    lost_now: u32,
    /// The bucket of the packet after the latest gap; `None` if it belongs to no operation.
    detected_by: Option<u16>,
    /// Numbers that were skipped.
    pub gaps: u64,
    /// Skipped numbers that came later.
    pub overtaken: u64,
    /// Duplicates.
    pub duplicated: u64,
    /// Numberings after the first.
    pub renumbered: u64,
}

impl Source {
    /// Records a packet of an operation's bucket or of none. Returns the number of packets that it proves lost, and their
    /// bucket.
    fn receive(&mut self, start: u32, number: u32, bucket: Option<u16>) -> (u32, Option<u16>) {
        if self.numbering != Some(start) {
            self.lost_before = self.lost();
            self.renumbered += u64::from(self.numbering.is_some());
            self.numbering = Some(start);
            self.received.clear();
        }
        let lost_for_good = self.lost_for_good(start, number);
        let next = self.received.last().map_or(start, |last| last + 1);
        let missing = number.saturating_sub(next);
        self.gaps += u64::from(missing);
        self.lost_now += missing;
        if missing > 0 {
            self.detected_by = bucket;
        }
        if !self.received.insert(number) {
            self.duplicated += 1;
        } else if number < next {
            self.overtaken += 1;
            self.lost_now -= 1;
        }
        (lost_for_good, self.detected_by)
    }

    /// The number of missing numbers that this number proves lost: those before it with its remainder.
    fn lost_for_good(&self, start: u32, number: u32) -> u32 {
        let of_remainder = |received: &&u32| *received % WINDOW == number % WINDOW;
        match self.received.iter().rev().find(of_remainder) {
            Some(latest) if *latest >= number => 0,
            Some(latest) => (number - latest) / WINDOW - 1,
            None if number - start < START_WINDOW => (number - start) / WINDOW,
            None => 0,
        }
    }

    /// The number of missing numbers up to the latest one.
    pub fn lost(&self) -> u64 {
        let last = self.received.last().zip(self.numbering);
        let sent = last.map_or(0, |(last, start)| u64::from(last - start) + 1);
        self.lost_before + sent - self.received.len() as u64
    }
}

/// A packet between switches.
#[derive(Clone, Copy, Debug)]
struct Flight<'a> {
    packet: &'a Packet,
    bytes: usize,
    ttl: u8,
    values: bool,
    seen: Arrived,
}

/// The expected effects of all packets so far.
pub struct Model<'a> {
    fabric: &'a Fabric,
    jobs: &'a [Job],
    meters: BTreeMap<(usize, u32), Meter>,
    operations: BTreeMap<(usize, u32, u16), [u32; 3]>,
    upstream: BTreeMap<(usize, u16, u16), u32>,
    /// The sources, by job and rank.
    pub sources: BTreeMap<(usize, u16), Source>,
    /// The counters, except those by source.
    pub counts: Counts,
    /// The arrivals, by host and packet.
    pub arrivals: BTreeMap<(HostId, u32), Vec<Arrived>>,
    /// The answers to probes, by packet.
    pub reports: BTreeMap<u32, Vec<Report>>,
    /// The reports of switches.
    pub loss_reports: Vec<LossReport>,
}

impl<'a> Model<'a> {
    /// A model of a fabric with jobs, and with virtual queues of shares, by switch and share.
    pub fn new(fabric: &'a Fabric, jobs: &'a [Job], meters: BTreeMap<(usize, u32), Meter>) -> Self {
        Self {
            fabric,
            jobs,
            meters,
            operations: BTreeMap::new(),
            upstream: BTreeMap::new(),
            sources: BTreeMap::new(),
            counts: Counts::default(),
            arrivals: BTreeMap::new(),
            reports: BTreeMap::new(),
            loss_reports: Vec::new(),
        }
    }

    /// Sends a packet.
    pub fn send(&mut self, packet: &Packet) {
        let host = self.fabric.host(packet.from);
        let (at, port) = (host.switch, host.port);
        let bytes = packet.frame.len();
        match packet.fate {
            Fate::Lost => return,
            Fate::Damaged => return self.count(at, counter::MALFORMED, port.into(), bytes),
            Fate::Refused(index) => self.count(at, counter::REJECTED, index, bytes),
            Fate::Admitted => {}
        }
        if let Some((start, number)) = packet.number {
            let source = self.sources.entry((packet.job, packet.source)).or_default();
            let bucket = (packet.kind != Kind::Probe).then_some(packet.bucket);
            if let (lost_for_good, Some(bucket)) = source.receive(start, number, bucket) {
                let cell = (packet.job, packet.source, bucket);
                let so_far = self.upstream.entry(cell).or_default();
                let reached = *so_far < THRESHOLD && *so_far + lost_for_good >= THRESHOLD;
                *so_far += lost_for_good;
                let lost = [0, 0, *so_far];
                if reached {
                    self.report_loss(packet, bucket, (at, port), lost);
                }
            }
        }
        if packet.fate == Fate::Admitted {
            let seen = Arrived {
                bytes,
                trimmed: false,
                late: false,
                congestion: false,
                hops: 0,
            };
            let flight = Flight {
                packet,
                bytes,
                ttl: packet.ttl,
                values: packet.values,
                seen,
            };
            self.enter(at, port, flight);
        }
    }

    fn enter(&mut self, at: usize, port: u16, mut flight: Flight<'_>) {
        let packet = flight.packet;
        let job = &self.jobs[packet.job];
        let bytes = flight.bytes;
        self.count(at, counter::RECEIVED, job.counter, bytes);
        if flight.ttl <= 1 || (packet.to == To::Group && job.group == 0) {
            self.count(at, counter::UNDELIVERABLE, job.counter, bytes);
            return self.count(at, counter::UNROUTED, port.into(), bytes);
        }
        flight.ttl -= 1;
        match packet.to {
            To::Switch => {
                self.count(at, counter::REFLECTED, job.counter, bytes);
                self.leave(at, port, flight);
            }
            To::Rank(owner) => {
                self.count(at, counter::UNICAST, job.counter, bytes);
                let out = self.fabric.toward(at, job.host_of(owner));
                self.leave(at, out, flight);
            }
            To::Group => {
                self.count(at, counter::REPLICATED, job.counter, bytes);
                for (out, rank) in replicas(self.fabric, job, at) {
                    let own = match rank {
                        Some(rank) => rank == packet.source,
                        None => out == port,
                    };
                    match own {
                        true => self.count(at, counter::OWN_COPY, job.counter, bytes),
                        false => self.leave(at, out, flight),
                    }
                }
            }
        }
    }

    fn leave(&mut self, at: usize, out: u16, mut flight: Flight<'_>) {
        let packet = flight.packet;
        let job = &self.jobs[packet.job];
        let share = job.shares[&(at, out)];
        let bytes = flight.bytes;
        self.count(at, counter::DELIVERED, job.counter, bytes);
        self.count(at, counter::SHARE_SENT, share, bytes);

        // A packet that an earlier switch trimmed is not late.
        flight.seen.late |= packet.late && !flight.seen.trimmed;
        let mut lost = None;
        if flight.values && packet.late {
            lost = Some([counter::LATE, counter::SHARE_LATE]);
        } else if let Some(meter) = self.meters.get_mut(&(at, share)).filter(|_| flight.values) {
            let size = bytes as i64;
            if meter.taken < size {
                flight.seen.congestion = true;
                lost = Some([counter::TRIMMED, counter::SHARE_TRIMMED]);
            } else {
                meter.taken -= size;
                if meter.unmarked < size {
                    flight.seen.congestion = true;
                } else {
                    meter.unmarked -= size;
                }
            }
        }
        if let Some(arrays) = lost {
            let [of_job, of_share] = arrays;
            self.count(at, of_job, job.counter, bytes);
            self.count(at, of_share, share, bytes);
            if packet.sealed {
                self.count(at, counter::CUT_SEALED, job.counter, bytes);
                self.count(at, counter::SHARE_CUT_SEALED, share, bytes);
            }
            flight.seen.trimmed = true;
            flight.values = false;
            flight.bytes = CUT + if packet.sealed { SEAL } else { 0 };
        }
        self.operation(at, out, share, packet, lost.map(|[cause, _]| cause));
        flight.seen.hops += 1;
        match self.fabric.peer(at, out) {
            Some((next, port)) => self.enter(next, port, flight),
            None => self.arrive(at, out, flight),
        }
    }

    /// The switch's state of the operation at a share.
    fn operation(
        &mut self,
        at: usize,
        out: u16,
        share: u32,
        packet: &Packet,
        lost: Option<&'static str>,
    ) {
        let cell = (at, share, packet.bucket);
        if packet.kind == Kind::Probe {
            let known = self.operations.get(&cell);
            let [sent, trimmed, late] = known.copied().unwrap_or_default();
            let source = &self.sources[&(packet.job, packet.source)];
            let report = Report {
                port: out,
                known: known.is_some(),
                sent,
                trimmed,
                late,
                upstream_lost: source.lost_now,
            };
            self.reports.entry(packet.id).or_default().push(report);
        } else if packet.kind != Kind::Feedback {
            let [sent, trimmed, late] = self.operations.entry(cell).or_default();
            *sent += 1;
            match lost {
                Some(counter::LATE) => *late += 1,
                Some(_) => *trimmed += 1,
                None => {}
            }
            let lost_now = [*trimmed, *late, 0];
            if lost.is_some() && *trimmed + *late == THRESHOLD {
                self.report_loss(packet, packet.bucket, (at, out), lost_now);
            }
        }
    }

    fn arrive(&mut self, at: usize, out: u16, flight: Flight<'_>) {
        let is_there = |id: &HostId| {
            let host = self.fabric.host(*id);
            (host.switch, host.port) == (at, out)
        };
        let host = self.fabric.host_ids().find(is_there);
        let host = host.expect("a port leads somewhere");
        let arrived = Arrived {
            bytes: flight.bytes,
            ..flight.seen
        };
        self.arrivals
            .entry((host, flight.packet.id))
            .or_default()
            .push(arrived);
    }

    fn report_loss(&mut self, packet: &Packet, bucket: u16, place: (usize, u16), lost: [u32; 3]) {
        self.loss_reports.push(LossReport {
            job: packet.job,
            place,
            bucket,
            source: packet.source,
            lost,
        });
    }

    fn count(&mut self, switch: usize, array: &'static str, index: u32, bytes: usize) {
        let cell = Cell {
            switch,
            array,
            index,
        };
        self.counts.add(cell, 1, bytes);
    }
}

/// The copies that a switch makes for a job's group: one for each of its ranks, and one for each trunk with ranks behind it.
pub fn replicas(fabric: &Fabric, job: &Job, at: usize) -> Vec<(u16, Option<u16>)> {
    let mut copies = BTreeSet::new();
    for rank in job.ranks() {
        let host = job.host_of(rank);
        let here = fabric.host(host).switch == at;
        copies.insert((fabric.toward(at, host), here.then_some(rank)));
    }
    copies.into_iter().collect()
}
