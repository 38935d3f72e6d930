//! A job across two switches: one copy crosses the trunk, and the far switch makes the rest.

use std::net::SocketAddrV4;

use ultima_wire::Kind;

use super::{Scenario, Step};
use crate::fabric::{Fabric, HostId};
use crate::generator::Datagram;
use crate::job::Job;
use crate::testbed::{Arrivals, plain};

/// Scenarios on [`Fabric::pair`] with one job that has ranks on both switches. Counts are left to the
/// comparison of targets.
pub fn scenarios(fabric: &Fabric, job: &Job) -> Vec<Scenario> {
    let mut everyone = Scenario::new("SCATTER and GATHER across a trunk");
    for source in job.ranks() {
        for owner in job.ranks().filter(|owner| *owner != source) {
            everyone = everyone.across(
                fabric,
                job,
                source,
                &[owner],
                &job.scatter(source, owner, b"data"),
            );
        }
        let others: Vec<u16> = job.ranks().filter(|rank| *rank != source).collect();
        everyone = everyone.across(fabric, job, source, &others, &job.gather(source, b"data"));
    }

    // Each hop takes one: what has two left reaches the near switch's hosts only.
    let weary = Datagram {
        ttl: 2,
        ..job.gather(0, b"data")
    };
    let near: Vec<u16> = (job.ranks())
        .filter(|rank| *rank != 0 && fabric.hops(job.host_of(0), job.host_of(*rank)) == 1)
        .collect();
    assert!(
        !near.is_empty() && near.len() + 1 < job.members.len(),
        "ranks on both switches"
    );
    let tired = Scenario::new("a TTL that ends at the trunk").across(fabric, job, 0, &near, &weary);

    let mut talk = Scenario::new("plain UDP across a trunk");
    for from in fabric.host_ids() {
        for to in fabric.host_ids() {
            let sent = plain(fabric, from, to, 5001, b"ping".to_vec());
            talk = talk.reaching(fabric, from, &sent, &[(to, sent.dst)]);
        }
    }

    // A rank of the far switch, forged at the near one, and the reverse.
    let mut forged = Scenario::new("a rank of the other switch");
    for (rank, impostor) in [
        (job.members.len() as u16 - 1, 0),
        (0, job.members.len() as u16 - 1),
    ] {
        let header = job.header(Kind::Gather, rank, rank);
        let sent = job.gather(impostor, b"data").with_header(&header);
        let spoofed = Datagram {
            src: job.members[usize::from(rank)].address,
            ..sent.clone()
        };
        for frame in [sent, spoofed] {
            forged = forged.reaching(fabric, job.host_of(impostor), &frame, &[]);
        }
    }
    [everyone, tired, talk, forged]
        .map(|scenario| Scenario {
            counts: None,
            ..scenario
        })
        .to_vec()
}

impl Scenario {
    /// A rank's packet reaches these ranks.
    fn across(self, fabric: &Fabric, job: &Job, source: u16, to: &[u16], sent: &Datagram) -> Self {
        let member = |rank: &u16| &job.members[usize::from(*rank)];
        let to: Vec<(HostId, SocketAddrV4)> = to
            .iter()
            .map(|rank| (member(rank).host, member(rank).address))
            .collect();
        self.reaching(fabric, job.host_of(source), sent, &to)
    }

    /// A datagram reaches these hosts, readdressed where it was multicast.
    fn reaching(
        mut self,
        fabric: &Fabric,
        from: HostId,
        sent: &Datagram,
        to: &[(HostId, SocketAddrV4)],
    ) -> Self {
        let mut arrivals = Arrivals::new();
        for (host, address) in to {
            let mac = fabric.host(*host).mac;
            let hop =
                (1..fabric.hops(from, *host)).fold(sent.clone(), |sent, _| sent.forwarded(mac));
            arrivals
                .entry(*host)
                .or_default()
                .push(hop.delivered(mac, *address).emit());
        }
        self.steps.push(Step {
            from,
            frame: sent.emit(),
            arrivals,
        });
        self
    }
}
