//! A job as it stands in the store: by names, as the fabric's file may have changed since.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use ultima_wire::Key;

use super::origin::OriginRecord;
use crate::fabric::{Fabric, SwitchId, SwitchPort, TrunkId};
use crate::job::{
    CounterIndex, Epoch, GroupId, Job, JobId, JobProblem, Member, Multicast, ShareIndex,
    SourceIndex, Weight,
};
use crate::ledger;
use crate::membership::Eviction;
use crate::target::PortNumber;
use crate::tree::JobTree;

/// A job, and how its members stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // As in `Job`.
pub struct JobRecord {
    pub id: u16,
    pub name: String,
    pub epoch: u16,
    pub seed: u64,
    pub counter: u16,
    pub multicast: Option<MulticastRecord>,
    pub loss_threshold: u32,
    pub weight: u8,
    /// Seconds, 0 for never.
    #[serde(default)]
    pub evict_after_s: u32,
    /// What the members of a sealed job seal packets with.
    #[serde(
        default,
        with = "crate::job::key",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<Key>,
    /// In rank order.
    pub members: Vec<MemberRecord>,
    pub shares: Vec<ShareRecord>,
    /// How this epoch came to be; none of a job's first.
    #[serde(default)]
    pub origin: Option<OriginRecord>,
}

/// How a job's packets reach all of its members at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MulticastRecord {
    /// Its group.
    pub group: u16,
    /// The trunks of its tree, each by one of its ends: a switch's name and the port there.
    pub tree: Vec<(String, u16)>,
}

/// A rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberRecord {
    /// Its host's name.
    pub host: String,
    /// Where it listens there.
    pub udp_port: u16,
    /// Where its losses stand, on the switch of its host.
    pub source: u16,
    /// Whether somebody has taken it.
    pub seat: SeatRecord,
    /// The number by which whoever has taken it asks for it again; 0 where it says none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub attempt: u64,
}

fn is_none(attempt: &u64) -> bool {
    *attempt == 0
}

/// Whether a rank is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeatRecord {
    /// Nobody has taken it.
    Free,
    /// A member has.
    Joined,
    /// A member had, and left after all had joined.
    Left,
}

/// A job's part of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRecord {
    /// The switch's name.
    pub switch: String,
    /// The port there.
    pub port: u16,
    /// Where the job's counts, meter and operations stand.
    pub index: u16,
}

/// Why a stored job does not fit the fabric any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A member's host is gone.
    #[error(
        "job {job} has a member on host {host}, which the fabric does not have any more; put the host back, or start with another --state"
    )]
    Host {
        /// The job's name.
        job: String,
        /// The host's.
        host: String,
    },
    /// It says something that no controller wrote.
    #[error("job {job}: {what}; start with another --state")]
    Value {
        /// The job's name.
        job: String,
        /// What.
        what: String,
    },
}

/// The port of that number on the switch of that name, if the fabric has the switch.
fn port_named(fabric: &Fabric, switch: &str, port: u16) -> Option<SwitchPort> {
    let switch = (fabric.switches().iter()).position(|it| it.name == switch)?;
    Some(SwitchPort {
        switch: SwitchId(switch),
        port: PortNumber(port),
    })
}

impl MulticastRecord {
    fn new(fabric: &Fabric, multicast: &Multicast) -> Self {
        let tree = multicast.tree.trunks().map(|trunk| {
            let [end, _] = fabric.trunk(trunk).ends;
            (fabric.switch(end.switch).name.clone(), end.port.0)
        });
        MulticastRecord {
            group: multicast.group.0,
            tree: tree.collect(),
        }
    }

    /// With the tree that it had, or one that reaches nobody where the fabric does not have that any more.
    fn multicast(&self, fabric: &Fabric, members: &[Member]) -> Multicast {
        let trunk = |(switch, port): &(String, u16)| {
            let at = port_named(fabric, switch, *port)?;
            let mut ends = fabric.trunks_of(at.switch).iter();
            ends.find(|end| end.port == at.port).map(|end| end.trunk)
        };
        let trunks: Option<BTreeSet<TrunkId>> = self.tree.iter().map(trunk).collect();
        let homes = ledger::homes(fabric, members);
        let tree = trunks.and_then(|trunks| JobTree::joining(fabric, &trunks, &homes));
        Multicast {
            group: GroupId(self.group),
            tree: tree.unwrap_or_else(JobTree::nowhere),
        }
    }
}

impl JobRecord {
    /// The record of a job with these seats, by rank.
    pub fn new(fabric: &Fabric, job: &Job, seats: impl IntoIterator<Item = SeatRecord>) -> Self {
        let members =
            (job.members.iter().zip(&job.sources).zip(seats)).map(|((member, source), seat)| {
                MemberRecord {
                    host: fabric.host(member.host).name.clone(),
                    udp_port: member.udp_port,
                    source: source.0,
                    seat,
                    attempt: 0,
                }
            });
        let shares = job.shares.iter().map(|(at, index)| ShareRecord {
            switch: fabric.switch(at.switch).name.clone(),
            port: at.port.0,
            index: index.0,
        });
        JobRecord {
            id: job.id.0,
            name: job.name.clone(),
            epoch: job.epoch.0,
            seed: job.seed,
            counter: job.counter.0,
            multicast: job
                .multicast
                .as_ref()
                .map(|it| MulticastRecord::new(fabric, it)),
            loss_threshold: job.loss_threshold,
            weight: job.weight.get(),
            evict_after_s: job.eviction.seconds(),
            key: job.key,
            members: members.collect(),
            shares: shares.collect(),
            origin: None,
        }
    }

    /// The job in `fabric`, to be [refitted](crate::ledger::Ledger::refit): what the fabric does not have any more of its tree and
    /// its shares is left out.
    ///
    /// # Errors
    /// A member's host is gone, or a value is none.
    pub fn job(&self, fabric: &Fabric) -> Result<Job, Unfit> {
        let member = |record: &MemberRecord| {
            let host = fabric.host_named(&record.host).ok_or_else(|| Unfit::Host {
                job: self.name.clone(),
                host: record.host.clone(),
            })?;
            Ok(Member {
                host,
                udp_port: record.udp_port,
            })
        };
        let share = |record: &ShareRecord| {
            let at = port_named(fabric, &record.switch, record.port)?;
            Some((at, ShareIndex(record.index)))
        };
        let unfit = |problem: JobProblem| Unfit::Value {
            job: self.name.clone(),
            what: problem.to_string(),
        };
        let weight = Weight::try_from(u32::from(self.weight)).map_err(unfit)?;
        let eviction = Eviction::try_from(self.evict_after_s).map_err(unfit)?;
        let members = self.members.iter().map(member);
        let members = members.collect::<Result<Vec<Member>, _>>()?;
        let multicast = self
            .multicast
            .as_ref()
            .map(|it| it.multicast(fabric, &members));
        Ok(Job {
            id: JobId(self.id),
            name: self.name.clone(),
            epoch: Epoch(self.epoch),
            seed: self.seed,
            counter: CounterIndex(self.counter),
            multicast,
            loss_threshold: self.loss_threshold,
            weight,
            eviction,
            key: self.key,
            members,
            shares: self.shares.iter().filter_map(share).collect(),
            sources: (self.members.iter())
                .map(|it| SourceIndex(it.source))
                .collect(),
        })
    }
}
