//! A job across two switches: one copy crosses the trunk, and the far switch makes copies for its ranks.

use std::net::SocketAddrV4;

use ultima_p4::names::counter;
use ultima_wire::Kind;

use super::Scenario;
use crate::fabric::{Fabric, HostId};
use crate::generator::Datagram;
use crate::job::Job;
use crate::testbed::plain;

/// Scenarios on [`Fabric::pair`] with one job that has ranks on both switches.
pub fn scenarios(fabric: &Fabric, job: &Job) -> Vec<Scenario> {
    let scene = Across { fabric, job };
    vec![
        scene.scatter(),
        scene.gather(),
        scene.ttl_ends_at_the_trunk(),
        scene.plain(),
        scene.forged(),
    ]
}

#[derive(Clone, Copy)]
struct Across<'a> {
    fabric: &'a Fabric,
    job: &'a Job,
}

impl Across<'_> {
    fn scatter(self) -> Scenario {
        let Self { job, .. } = self;
        let mut scenario = Scenario::new("SCATTER within and across");
        for source in job.ranks() {
            for owner in job.ranks().filter(|owner| *owner != source) {
                let sent = job.scatter(source, owner, b"data");
                let bytes = sent.emit().len();
                let (near, far) = (self.switch_of(source), self.switch_of(owner));
                scenario = scenario.step(
                    job.host_of(source),
                    sent.emit(),
                    self.at(source, &sent, [owner]),
                );
                for switch in [near].into_iter().chain((near != far).then_some(far)) {
                    for array in [counter::RECEIVED, counter::UNICAST] {
                        scenario = scenario.count_at(switch, array, job.counter, 1, bytes);
                    }
                    let port = self.port_toward(switch, owner);
                    scenario = scenario.delivered(switch, job, port, bytes);
                }
            }
        }
        scenario
    }

    /// The copy for the trunk counts as delivered at the first switch and as received at the second, which does not send it back
    /// and counts that as its own copy.
    fn gather(self) -> Scenario {
        let Self { job, .. } = self;
        job.ranks().fold(
            Scenario::new("GATHER from each rank"),
            |scenario, source| {
                let sent = job.gather(source, b"data");
                let bytes = sent.emit().len();
                let others = job.ranks().filter(|rank| *rank != source);
                let (near, far) = (self.switch_of(source), self.other_than(source));
                // One copy for each rank of the switch, and one for the trunk.
                let scenario = others.clone().fold(scenario, |scenario, rank| {
                    let switch = self.switch_of(rank);
                    scenario.delivered(switch, job, self.port_toward(switch, rank), bytes)
                });
                scenario
                    .delivered(near, job, self.trunk_at(near), bytes)
                    .step(
                        job.host_of(source),
                        sent.emit(),
                        self.at(source, &sent, others),
                    )
                    .count_at(near, counter::RECEIVED, job.counter, 1, bytes)
                    .count_at(near, counter::REPLICATED, job.counter, 1, bytes)
                    .count_at(near, counter::OWN_COPY, job.counter, 1, bytes)
                    .count_at(far, counter::RECEIVED, job.counter, 1, bytes)
                    .count_at(far, counter::REPLICATED, job.counter, 1, bytes)
                    .count_at(far, counter::OWN_COPY, job.counter, 1, bytes)
            },
        )
    }

    /// Each hop decreases the TTL by 1: a packet with a TTL of 2 reaches the near switch's hosts only.
    fn ttl_ends_at_the_trunk(self) -> Scenario {
        let Self { job, .. } = self;
        let sent = Datagram {
            ttl: 2,
            ..job.gather(0, b"data")
        };
        let bytes = sent.emit().len();
        let near: Vec<u16> = job
            .ranks()
            .filter(|rank| *rank != 0 && self.hops(0, *rank) == 1)
            .collect();
        let far = self.other_than(0);
        let port = self.trunk_at(far);
        let here = self.switch_of(0);
        let ports =
            (near.iter().map(|rank| self.port_toward(here, *rank))).chain([self.trunk_at(here)]);
        let scenario = Scenario::new("a TTL that ends at the trunk");
        ports
            .fold(scenario, |scenario, port| {
                scenario.delivered(here, job, port, bytes)
            })
            .step(job.host_of(0), sent.emit(), self.at(0, &sent, near))
            .count_at(self.switch_of(0), counter::RECEIVED, job.counter, 1, bytes)
            .count_at(
                self.switch_of(0),
                counter::REPLICATED,
                job.counter,
                1,
                bytes,
            )
            .count_at(self.switch_of(0), counter::OWN_COPY, job.counter, 1, bytes)
            .count_at(far, counter::RECEIVED, job.counter, 1, bytes)
            .count_at(far, counter::UNDELIVERABLE, job.counter, 1, bytes)
            .count_at(far, counter::UNROUTED, port.into(), 1, bytes)
    }

    fn plain(self) -> Scenario {
        let Self { fabric, .. } = self;
        let pairs = fabric
            .host_ids()
            .flat_map(|from| fabric.host_ids().map(move |to| (from, to)));
        pairs.fold(
            Scenario::new("plain UDP between all hosts"),
            |scenario, (from, to)| {
                let sent = plain(fabric, from, to, 5001, b"ping".to_vec());
                let arrives = carried(&sent, fabric, from, to, sent.dst);
                scenario.step(from, sent.emit(), vec![(to, arrives)])
            },
        )
    }

    /// Packets with the number of a rank at the other switch, with the sender's own address and with the rank's.
    fn forged(self) -> Scenario {
        let Self { job, .. } = self;
        let last = job.ranks().next_back().expect("a job has members");
        assert_eq!(self.hops(0, last), 2, "they are on different switches");
        let mut scenario = Scenario::new("a rank of the other switch");
        for (rank, impostor) in [(last, 0), (0, last)] {
            let header = job.header(Kind::Gather, rank, rank);
            let own = job.gather(impostor, b"data").with_header(&header);
            let spoofed = Datagram {
                src: job.members[usize::from(rank)].address,
                ..own.clone()
            };
            for frame in [own.emit(), spoofed.emit()] {
                let bytes = frame.len();
                let near = self.switch_of(impostor);
                scenario = scenario
                    .step(job.host_of(impostor), frame, vec![])
                    .count_at(near, counter::REJECTED, job.counter, 1, bytes);
            }
        }
        scenario
    }

    /// The arrivals at these ranks for another rank's packet.
    fn at(
        self,
        source: u16,
        sent: &Datagram,
        to: impl IntoIterator<Item = u16>,
    ) -> Vec<(HostId, Vec<u8>)> {
        let Self { fabric, job } = self;
        let from = job.host_of(source);
        to.into_iter()
            .map(|rank| &job.members[usize::from(rank)])
            .map(|to| (to.host, carried(sent, fabric, from, to.host, to.address)))
            .collect()
    }

    fn hops(self, from: u16, to: u16) -> u8 {
        self.fabric
            .hops(self.job.host_of(from), self.job.host_of(to))
    }

    fn switch_of(self, rank: u16) -> usize {
        self.fabric.host(self.job.host_of(rank)).switch
    }

    fn other_than(self, rank: u16) -> usize {
        1 - self.switch_of(rank)
    }

    /// A switch's port to the other switch.
    fn trunk_at(self, switch: usize) -> u16 {
        let ends = self.fabric.trunks[0];
        let end = ends.into_iter().find(|(at, _)| *at == switch);
        end.expect("the trunk has an end at each switch").1
    }

    /// A switch's port to a rank.
    fn port_toward(self, switch: usize, rank: u16) -> u16 {
        if self.switch_of(rank) == switch {
            self.fabric.host(self.job.host_of(rank)).port
        } else {
            self.trunk_at(switch)
        }
    }
}

/// The datagram that arrives at a host after all hops, with this destination.
pub fn carried(
    sent: &Datagram,
    fabric: &Fabric,
    from: HostId,
    to: HostId,
    address: SocketAddrV4,
) -> Vec<u8> {
    let mac = fabric.host(to).mac;
    let sent = Datagram {
        dst: address,
        ..sent.clone()
    };
    let hops = 0..fabric.hops(from, to);
    hops.fold(sent, |datagram, _| datagram.forwarded(mac))
        .emit()
}
