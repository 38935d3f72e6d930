//! Scenarios: frames to send and their expected effects, as data, for every target.
//!
//! A [`Scenario`] has a few frames with all expected arrivals and counts. Any other arrival or count is an error.

mod dropped;
mod jobs;
mod late;
mod members;
mod plain;
mod probes;
mod refused;
mod run;
mod truncated;
mod trunk;

pub use dropped::{to_an_unknown_rank, without_a_group};
pub use run::{Outcome, in_any_order, outcome, run, shown};

use ultima_p4::names::counter;
use ultima_testing::full;

use crate::counters::{Cell, Counts};
use crate::fabric::{Fabric, HostId};
use crate::generator::{Datagram, Ipv4};
use crate::job::Job;
use crate::testbed::Arrivals;

/// The counter index of packets of unknown jobs.
const UNKNOWN_JOB: u32 = 0;

/// One frame and the arrivals that it causes.
#[derive(Clone, Debug)]
pub struct Step {
    /// The host that sends it.
    pub from: HostId,
    /// The frame.
    pub frame: Vec<u8>,
    /// The frames that hosts receive for it.
    pub arrivals: Arrivals,
}

/// Frames with their expected effects.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// A short description.
    pub name: String,
    /// The frames, in order.
    pub steps: Vec<Step>,
    /// The counts of all frames.
    pub counts: Counts,
}

/// The scene: a fabric with one switch and two jobs on it.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The fabric, [`Fabric::star`].
    pub fabric: &'a Fabric,
    /// Ranks 0 and 1 on the first host, 2 on the second, 3 on the third.
    pub left: &'a Job,
    /// Rank 0 on the second host, 1 on the fourth.
    pub right: &'a Job,
}

/// The scenarios that check a switch after a change: those of members in a quick run, all in a full run.
pub fn recheck(scene: Scene<'_>) -> Vec<Scenario> {
    match full() {
        true => star(scene),
        false => members::scenarios(scene),
    }
}

/// All scenarios for one switch.
pub fn star(scene: Scene<'_>) -> Vec<Scenario> {
    [
        members::scenarios(scene),
        jobs::scenarios(scene),
        refused::scenarios(scene),
        truncated::scenarios(scene),
        late::scenarios(scene),
        probes::scenarios(scene),
        plain::scenarios(scene),
    ]
    .concat()
}

pub use trunk::{carried, scenarios as pair};

impl Scenario {
    fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            steps: vec![],
            counts: Counts::default(),
        }
    }

    /// A frame that causes these arrivals.
    fn step(mut self, from: HostId, frame: Vec<u8>, arrivals: Vec<(HostId, Vec<u8>)>) -> Self {
        let mut by_host = Arrivals::new();
        for (to, frame) in arrivals {
            by_host.entry(to).or_default().push(frame);
        }
        self.steps.push(Step {
            from,
            frame,
            arrivals: by_host,
        });
        self
    }

    /// The only switch counts `packets` of `bytes` each.
    fn count(self, array: &'static str, index: u32, packets: u64, bytes: usize) -> Self {
        self.count_at(0, array, index, packets, bytes)
    }

    /// A switch counts `packets` of `bytes` each.
    fn count_at(
        mut self,
        switch: usize,
        array: &'static str,
        index: u32,
        packets: u64,
        bytes: usize,
    ) -> Self {
        self.counts.add(
            Cell {
                switch,
                array,
                index,
            },
            packets,
            bytes,
        );
        self
    }

    /// A switch sends a job's packet of `bytes` out of a port.
    fn delivered(self, switch: usize, job: &Job, port: u16, bytes: usize) -> Self {
        let share = job.shares[&(switch, port)];
        self.count_at(switch, counter::DELIVERED, job.counter, 1, bytes)
            .count_at(switch, counter::SHARE_SENT, share, 1, bytes)
    }

    /// The only switch sends a packet of `bytes` to a rank.
    fn delivered_to(self, scene: Scene<'_>, job: &Job, rank: u16, bytes: usize) -> Self {
        let port = scene.fabric.host(job.host_of(rank)).port;
        self.delivered(0, job, port, bytes)
    }

    /// A rank's packet for another rank arrives there.
    fn unicast(
        self,
        scene: Scene<'_>,
        job: &Job,
        source: u16,
        owner: u16,
        sent: &Datagram,
    ) -> Self {
        let to = &job.members[usize::from(owner)];
        let frame = sent.emit();
        let bytes = frame.len();
        self.step(
            job.host_of(source),
            frame,
            vec![(to.host, sent.forwarded(to.mac).emit())],
        )
        .count(counter::RECEIVED, job.counter, 1, bytes)
        .count(counter::UNICAST, job.counter, 1, bytes)
        .delivered_to(scene, job, owner, bytes)
    }

    /// A rank's packet to the group arrives at all other ranks, addressed to each.
    fn multicast(self, scene: Scene<'_>, job: &Job, source: u16, sent: &Datagram) -> Self {
        self.multicast_but(&[], scene, job, source, sent)
    }

    /// A rank's packet to the group arrives at all other ranks that the switch knows.
    fn multicast_but(
        self,
        unknown: &[u16],
        scene: Scene<'_>,
        job: &Job,
        source: u16,
        sent: &Datagram,
    ) -> Self {
        let frame = sent.emit();
        let bytes = frame.len();
        let others = (job.ranks()).filter(|rank| *rank != source && !unknown.contains(rank));
        let copies = others
            .clone()
            .map(|rank| (job.host_of(rank), job.copy_for(sent, rank).emit()));
        let scenario = self.step(job.host_of(source), frame, copies.collect());
        others
            .fold(scenario, |scenario, rank| {
                scenario.delivered_to(scene, job, rank, bytes)
            })
            .count(counter::RECEIVED, job.counter, 1, bytes)
            .count(counter::REPLICATED, job.counter, 1, bytes)
            .count(counter::OWN_COPY, job.counter, 1, bytes)
            .count(
                counter::UNKNOWN_RANK,
                job.counter,
                unknown.len() as u64,
                bytes,
            )
    }

    /// A job's packet is admitted and has no route.
    fn admitted_unrouted(self, scene: Scene<'_>, job: &Job, from: HostId, frame: Vec<u8>) -> Self {
        let bytes = frame.len();
        self.unrouted(scene, from, frame)
            .count(counter::UNDELIVERABLE, job.counter, 1, bytes)
            .count(counter::RECEIVED, job.counter, 1, bytes)
    }

    /// A packet is rejected and counted for a job, or for unknown jobs.
    fn rejected(self, from: HostId, frame: Vec<u8>, job: u32) -> Self {
        let bytes = frame.len();
        self.step(from, frame, vec![])
            .count(counter::REJECTED, job, 1, bytes)
    }

    /// A frame that is not Ultima's arrives at another host.
    fn forwarded(self, scene: Scene<'_>, from: HostId, to: HostId, sent: &Ipv4) -> Self {
        let arrives = sent.forwarded(scene.fabric.host(to).mac).emit();
        self.step(from, sent.emit(), vec![(to, arrives)])
    }

    /// A frame has no route.
    fn unrouted(self, scene: Scene<'_>, from: HostId, frame: Vec<u8>) -> Self {
        let (port, bytes) = (scene.fabric.host(from).port, frame.len());
        self.step(from, frame, vec![])
            .count(counter::UNROUTED, port.into(), 1, bytes)
    }

    /// A frame counts as malformed.
    fn malformed(self, scene: Scene<'_>, from: HostId, frame: Vec<u8>) -> Self {
        let (port, bytes) = (scene.fabric.host(from).port, frame.len());
        self.step(from, frame, vec![])
            .count(counter::MALFORMED, port.into(), 1, bytes)
    }
}
