//! Checks the equations of `docs/dataplane.md` from the counters and from what hosts sent and received.

use std::collections::BTreeMap;

use ultima_api::v1 as api;
use ultima_p4::names::counter;

use super::model::replicas;
use super::traffic::{Fate, Packet};
use super::{CUT, SEAL};
use ultima_tests::counters::{Cell, Count, Counts};
use ultima_tests::fabric::{Fabric, HostId};
use ultima_tests::job::Job;

/// The packets that hosts sent and received.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Intact Ultima packets that each switch received from its hosts.
    pub entered: BTreeMap<usize, Count>,
    /// Packets of each job that each host received.
    pub arrived: BTreeMap<(HostId, usize), Count>,
    /// The number of these packets that were late, on all hosts.
    pub late: BTreeMap<usize, u64>,
}

impl Ledger {
    /// Records a sent packet.
    pub fn send(&mut self, fabric: &Fabric, packet: &Packet) {
        if !matches!(packet.fate, Fate::Lost | Fate::Damaged) {
            let switch = fabric.host(packet.from).switch;
            add(self.entered.entry(switch).or_default(), packet.frame.len());
        }
    }

    /// Records a received frame of a job.
    pub fn arrive(&mut self, host: HostId, job: usize, frame: &[u8]) {
        add(self.arrived.entry((host, job)).or_default(), frame.len());
        let late = ultima_tests::stamps::header(frame).switch_flags.late;
        *self.late.entry(job).or_default() += u64::from(late);
    }
}

fn add(count: &mut Count, bytes: usize) {
    count.packets += 1;
    count.bytes += bytes as u64;
}

fn plus<const N: usize>(counts: [Count; N]) -> Count {
    counts
        .into_iter()
        .fold(Count::default(), |sum, count| Count {
            packets: sum.packets + count.packets,
            bytes: sum.bytes + count.bytes,
        })
}

fn less(count: Count, other: Count) -> Count {
    let less = |count: u64, other| count.checked_sub(other).expect("no more than all");
    Count {
        packets: less(count.packets, other.packets),
        bytes: less(count.bytes, other.bytes),
    }
}

/// The counters of a fabric with its jobs.
pub struct Audit<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// All jobs on it.
    pub jobs: &'a [Job],
    /// The counters of its switches.
    pub counts: &'a Counts,
}

impl Audit<'_> {
    /// Checks all equations. Returns the packets that the switches' queues dropped, by job.
    ///
    /// # Panics
    /// If an equation does not hold.
    pub fn check(&self, ledger: &Ledger) -> Vec<Count> {
        let mut dropped = vec![Count::default(); self.jobs.len()];
        for (job, dropped) in self.jobs.iter().zip(&mut dropped) {
            for at in 0..self.fabric.switches {
                *dropped = plus([*dropped, self.dropped_by_queues(job, at)]);
                self.shares(job, at);
            }
        }
        for at in 0..self.fabric.switches {
            self.check_ingress(at, ledger);
        }
        self.check_egress(ledger);
        dropped
    }

    /// Checks a job's packets at a switch. Returns the packets that its queues dropped.
    fn dropped_by_queues(&self, job: &Job, at: usize) -> Count {
        let of = |array| self.at(at, array, job.counter);
        let [replicated, unicast, reflected] =
            [counter::REPLICATED, counter::UNICAST, counter::REFLECTED].map(of);
        assert_eq!(
            of(counter::RECEIVED),
            plus([replicated, unicast, reflected, of(counter::UNDELIVERABLE)]),
            "job {} at s{}: received",
            job.id,
            at + 1
        );
        let copies = match job.group {
            0 => 0,
            _ => replicas(self.fabric, job, at).len() as u64,
        };
        let copied = Count {
            packets: replicated.packets * copies,
            bytes: replicated.bytes * copies,
        };
        let seen = [counter::DELIVERED, counter::OWN_COPY, counter::UNKNOWN_RANK];
        less(plus([copied, unicast, reflected]), plus(seen.map(of)))
    }

    /// Checks the counts of a job that are sums.
    fn shares(&self, job: &Job, at: usize) {
        let sums = [
            (counter::DELIVERED, counter::SHARE_SENT),
            (counter::LATE, counter::SHARE_LATE),
            (counter::TRIMMED, counter::SHARE_TRIMMED),
            (counter::CUT_SEALED, counter::SHARE_CUT_SEALED),
        ];
        for (of_job, of_share) in sums {
            let here = job.shares.iter().filter(|((switch, _), _)| *switch == at);
            let sum = here.fold(Count::default(), |sum, (_, share)| {
                plus([sum, self.at(at, of_share, *share)])
            });
            let whole = self.at(at, of_job, job.counter);
            assert_eq!(whole, sum, "job {} at s{}: {of_job}", job.id, at + 1);
        }
    }

    /// The packets of a job that left a port, with their bytes after trimming.
    fn left(&self, at: usize, share: u32) -> Count {
        let of = |array| self.at(at, array, share);
        let sent = of(counter::SHARE_SENT);
        let cut = plus([of(counter::SHARE_LATE), of(counter::SHARE_TRIMMED)]);
        let sealed = of(counter::SHARE_CUT_SEALED).packets * SEAL as u64;
        Count {
            packets: sent.packets,
            bytes: sent.bytes - cut.bytes + cut.packets * CUT as u64 + sealed,
        }
    }

    /// Checks that a switch admitted or rejected all packets from its hosts and trunks.
    fn check_ingress(&self, at: usize, ledger: &Ledger) {
        let mut arrived = ledger.entered.get(&at).copied().unwrap_or_default();
        for ((neighbour, port), share) in self.jobs.iter().flat_map(|job| &job.shares) {
            if self
                .fabric
                .peer(*neighbour, *port)
                .is_some_and(|(to, _)| to == at)
            {
                arrived = plus([arrived, self.left(*neighbour, *share)]);
            }
        }
        let known = self.jobs.iter().map(|job| job.counter).chain([0]);
        let counted = known.fold(Count::default(), |sum, index| {
            let of = |array| self.at(at, array, index);
            plus([sum, of(counter::RECEIVED), of(counter::REJECTED)])
        });
        assert_eq!(arrived, counted, "packets into s{}", at + 1);
    }

    /// Checks that hosts received what left the switches' ports.
    fn check_egress(&self, ledger: &Ledger) {
        for id in self.fabric.host_ids() {
            let host = self.fabric.host(id);
            for (at, job) in self.jobs.iter().enumerate() {
                let share = job.shares.get(&(host.switch, host.port));
                let left = share.map_or(Count::default(), |share| self.left(host.switch, *share));
                let arrived = ledger.arrived.get(&(id, at)).copied().unwrap_or_default();
                assert_eq!(left, arrived, "job {} at {}", job.id, host.name);
            }
        }
    }

    /// The packets of a job in an array, on all switches.
    pub fn all(&self, array: &'static str, job: &Job) -> u64 {
        let switches = 0..self.fabric.switches;
        switches
            .map(|at| self.at(at, array, job.counter).packets)
            .sum()
    }

    /// A rank's lost packets, duplicates, and new numberings.
    pub fn source(&self, job: &Job, rank: u16) -> [u64; 3] {
        let member = &job.members[usize::from(rank)];
        let at = self.fabric.host(member.host).switch;
        let of = |array| self.at(at, array, member.source).packets;
        let gaps: u64 = counter::gap_cells(member.source)
            .map(|(array, index, missing)| self.at(at, array, index).packets * missing)
            .sum();
        [
            gaps - of(counter::OVERTAKEN),
            of(counter::DUPLICATED),
            of(counter::RENUMBERED),
        ]
    }

    /// Checks that the controller's telemetry of a job equals the switches' counters.
    ///
    /// # Panics
    /// If it does not.
    pub fn check_telemetry(&self, job: &Job, telemetry: &api::GetTelemetryResponse) {
        let is = |reported: &Option<api::Count>, at, array, index| {
            let reported = reported.map(|count| Count {
                packets: count.packets,
                bytes: count.bytes,
            });
            assert_eq!(
                reported,
                Some(self.at(at, array, index)),
                "{array} at s{}",
                at + 1
            );
        };
        for (name, switch) in telemetry.switches.iter().map(|switch| {
            let counters = switch.counters.as_ref().expect("counters");
            (counters.switch.as_str(), switch)
        }) {
            let mut switches = 0..self.fabric.switches;
            let at = switches.find(|at| ultima_tests::fabric::switch_name(*at) == name);
            let at = at.expect("a switch of the fabric");
            let counters = switch.counters.as_ref().expect("counters");
            for (reported, array) in [
                (&counters.received, counter::RECEIVED),
                (&counters.rejected, counter::REJECTED),
                (&counters.undeliverable, counter::UNDELIVERABLE),
                (&counters.delivered, counter::DELIVERED),
                (&counters.late, counter::LATE),
                (&counters.trimmed, counter::TRIMMED),
                (&counters.cut_sealed, counter::CUT_SEALED),
            ] {
                is(reported, at, array, job.counter);
            }
            assert_eq!(switch.tail_dropped, self.dropped_by_queues(job, at).packets);
            let shares = (job.shares.iter()).filter(|((switch, _), _)| *switch == at);
            assert_eq!(switch.ports.len(), shares.count());
            for port in &switch.ports {
                let number = u16::try_from(port.port).expect("ports are small");
                let share = job.shares[&(at, number)];
                for (reported, array) in [
                    (&port.sent, counter::SHARE_SENT),
                    (&port.late, counter::SHARE_LATE),
                    (&port.trimmed, counter::SHARE_TRIMMED),
                    (&port.cut_sealed, counter::SHARE_CUT_SEALED),
                ] {
                    is(reported, at, array, share);
                }
            }
            for source in &switch.sources {
                let rank = u16::try_from(source.rank).expect("ranks are small");
                let reported = [source.lost, source.duplicated, source.renumbered];
                assert_eq!(reported, self.source(job, rank), "rank {rank}");
            }
        }
    }

    fn at(&self, switch: usize, array: &'static str, index: u32) -> Count {
        let cell = Cell {
            switch,
            array,
            index,
        };
        self.counts.0.get(&cell).copied().unwrap_or_default()
    }
}
