//! Two jobs on the same links.

use std::time::Duration;

use ultima_host::{
    Coding, Config, Core, Destination, Event, Layout, OperationId, Pacing, Part, RatePolicy,
};
use ultima_testing::per_run;
use ultima_wire::Kind;

use super::Datagram;
use crate::algorithm::Algorithm;
use crate::clock::Ps;
use crate::experiment::Experiment;
use crate::network::{Hosts, Network, NetworkConfig};
use crate::packet::{Group, Packet, Stamps, Target};
use crate::stages::TRAIN;
use crate::values::{Counted, Payload};

const RATE: u64 = 100_000_000_000;
const SLOT: usize = 8192;
/// Measurement starts here, when rates have settled, and ends there.
const FROM: Ps = Ps(20_000_000_000);
const UNTIL: Ps = Ps(60_000_000_000);

struct Job {
    cores: Vec<Core<Counted>>,
    /// The start of its next operation.
    begins: Ps,
    number: u32,
    running: usize,
    len: usize,
    /// Contributions and aggregates that counted between the two times.
    arrived: u64,
}

/// Each host has a rank of each job. A job's next operation starts when the one before has ended at all its
/// ranks.
struct Sharing {
    jobs: Vec<Job>,
    train: Ps,
    buf: Vec<u8>,
    back: Vec<u8>,
    /// Data packets that arrived between the two times, and their waits.
    packets: u64,
    waited: u64,
    trimmed: u64,
}

impl Sharing {
    /// Jobs with buckets of these numbers of values.
    fn new(policy: RatePolicy, ranks: u16, buckets: [usize; 2]) -> Self {
        let jobs = buckets.into_iter().zip(1u16..).map(|(len, number)| {
            let core = |rank| {
                let t_b = Duration::from_millis(20);
                Core::with_store(Config {
                    slot_bytes: SLOT,
                    coding: Coding::Identity,
                    pacing: Some(Pacing {
                        bits_per_second: RATE,
                        burst: TRAIN as u32,
                        policy,
                    }),
                    ..Config::new(number, 1, rank, ranks, 7, t_b)
                })
                .expect("a good configuration")
            };
            Job {
                cores: (0..ranks).map(core).collect(),
                // The second one joins while the first is running.
                begins: Ps(u64::from(number - 1) * 3_300_000_000),
                number: 0,
                running: 0,
                len,
                arrived: 0,
            }
        });
        let jobs: Vec<Job> = jobs.collect();
        Self {
            buf: vec![0; jobs[0].cores[0].max_datagram()],
            jobs,
            train: Ps::to_send(TRAIN, RATE),
            back: Vec::new(),
            packets: 0,
            waited: 0,
            trimmed: 0,
        }
    }

    fn advance(&mut self, net: &mut Network<(usize, Datagram)>, host: u32) {
        let now = net.now();
        let mut next = Ps::NEVER;
        for job in &mut self.jobs {
            let core = &mut job.cores[host as usize];
            core.handle_timeout(now.to_core());
            while let Some(event) = core.poll_event() {
                let Event::Done { outcome, .. } = event else {
                    continue;
                };
                let layout = Layout::new(job.len, core.config().ranks, core.config().slot_len());
                let others = (0..core.config().ranks).filter(|owner| u32::from(*owner) != host);
                let slots: u32 = others.map(|owner| layout.slots(owner)).sum();
                if (FROM..UNTIL).contains(&now) {
                    let contributions = (0..).zip(&outcome.contributions);
                    let contributions = contributions
                        .map(|(n, slots): (u64, &u32)| n.saturating_sub(1) * u64::from(*slots));
                    job.arrived += contributions.sum::<u64>();
                    job.arrived += u64::from(slots - outcome.missed_aggregates);
                }
                job.running -= 1;
                if job.running == 0 && now < UNTIL {
                    job.begins = now;
                    net.alarm(now);
                }
            }
        }
        // The jobs take turns at the host's link.
        let mut idle = 0;
        while idle < self.jobs.len() && net.sent_by(host) < now + self.train {
            idle = 0;
            for number in 0..self.jobs.len() {
                let core = &mut self.jobs[number].cores[host as usize];
                let Some(transmit) = core.next_datagram(now.to_core(), &mut self.buf) else {
                    idle += 1;
                    continue;
                };
                let target = match transmit.to {
                    Destination::Rank(rank) => Target::Host(rank.into()),
                    Destination::Group => Target::Group(Group::all(net.hosts())),
                };
                let datagram = Datagram::read::<Counted>(&self.buf, transmit);
                let budget = datagram.header.budget;
                let packet = datagram.into_packet(host, target);
                let packet = Packet {
                    source: packet.source,
                    target: packet.target,
                    frame: packet.frame,
                    head: packet.head,
                    is_owed: packet.is_owed,
                    body: (number, packet.body),
                };
                net.send(packet, budget);
            }
        }
        for job in &self.jobs {
            let core = &job.cores[host as usize];
            let timer = core.poll_timeout().map_or(Ps::NEVER, Ps::from_core);
            let send = core.poll_transmit_at().map_or(Ps::NEVER, Ps::from_core);
            next = next.min(timer).min(send.max(net.sent_by(host)));
        }
        net.wake(host, next);
    }

    /// Jain's index of the jobs' goodput: 1 if it is equal.
    fn fairness(&self) -> f64 {
        let got = self.jobs.iter().map(|job| job.arrived as f64);
        let sum: f64 = got.clone().sum();
        let squares: f64 = got.map(|got| got * got).sum();
        sum * sum / (self.jobs.len() as f64 * squares)
    }

    /// The goodput of both.
    fn goodput(&self) -> f64 {
        let slots: u64 = self.jobs.iter().map(|job| job.arrived).sum();
        let ranks = self.jobs[0].cores.len() as u64;
        let bits = (slots * SLOT as u64 * 8 / ranks) as f64;
        bits / (RATE as f64 * (UNTIL.since(FROM)).as_secs())
    }
}

impl Hosts for Sharing {
    type Body = (usize, Datagram);

    fn receive(
        &mut self,
        net: &mut Network<Self::Body>,
        host: u32,
        stamps: Stamps,
        (number, datagram): Self::Body,
    ) {
        let is_data = matches!(datagram.header.kind, Kind::Scatter | Kind::Gather);
        if is_data && (FROM..UNTIL).contains(&net.now()) {
            self.packets += 1;
            self.waited += stamps.path_queue.as_ns();
            self.trimmed += u64::from(stamps.has_no_payload());
        }
        let core = &mut self.jobs[number].cores[host as usize];
        datagram.deliver(stamps, core, net.now().to_core(), &mut self.back);
        self.advance(net, host);
    }

    fn woken(&mut self, net: &mut Network<Self::Body>, host: u32) {
        self.advance(net, host);
    }

    fn alarmed(&mut self, net: &mut Network<Self::Body>) {
        let now = net.now();
        for job in self.jobs.iter_mut().filter(|job| job.begins <= now) {
            job.begins = Ps::NEVER;
            let id = OperationId {
                step: job.number,
                bucket: 0,
            };
            job.number += 1;
            job.running = job.cores.len();
            for core in &mut job.cores {
                let bucket = Counted::of(Vec::new(), job.len);
                core.start_with(now.to_core(), id, Part::Whole.into(), bucket)
                    .expect("the one before has ended everywhere");
            }
        }
        for host in 0..net.hosts() {
            self.advance(net, host);
        }
        let begins = self.jobs.iter().map(|job| job.begins).min();
        net.alarm(begins.unwrap_or(Ps::NEVER));
    }
}

/// Both jobs on all hosts of a star. Their links to the switch are twice as fast, so the jobs compete in the
/// switch.
fn share(policy: RatePolicy, ranks: u16, buckets: [usize; 2]) -> (Sharing, Ps, u64) {
    let experiment = Experiment::new(Algorithm::Tar, ranks);
    let config = NetworkConfig {
        rate: RATE,
        ..experiment.network
    };
    let mut net = Network::new(&config, ranks.into(), 1);
    net.set_uplinks(2 * RATE, config.delay);
    let mut jobs = Sharing::new(policy, ranks, buckets);
    net.alarm(Ps::ZERO);
    net.run(&mut jobs);
    let buffer = Ps::to_send(config.queue, RATE);
    let mean = jobs.waited / jobs.packets;
    println!(
        "{:8} {ranks:3} ranks {buckets:?}: Jain {:.4}, goodput {:.3}, mean wait {:.1} us, {:.4} trimmed, longest {:.0} us",
        policy.name(),
        jobs.fairness(),
        jobs.goodput(),
        mean as f64 / 1e3,
        jobs.trimmed as f64 / jobs.packets as f64,
        net.longest_wait().as_ms() * 1e3,
    );
    (jobs, buffer, mean)
}

#[test]
fn two_jobs_share_fairly_with_short_queues() {
    let jobs = [(6, [6_250_000, 3_000_000]), (8, [2_000_000, 2_000_000])];
    for (ranks, buckets) in jobs.into_iter().take(per_run(1, jobs.len())) {
        let (jobs, buffer, mean) = share(RatePolicy::InBand, ranks, buckets);
        assert!(jobs.fairness() >= 0.95, "{}", jobs.fairness());
        assert!(jobs.goodput() >= 0.75, "{}", jobs.goodput());
        assert!(mean < buffer.as_ns() / 10, "{mean}");
        let (_, _, fixed) = share(RatePolicy::Fixed, ranks, buckets);
        assert!(mean < fixed / 2, "{mean} {fixed}");
    }
}
