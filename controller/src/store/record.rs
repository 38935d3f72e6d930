//! The stored form of a job. Elements are stored by name, because the fabric's file may change
//! between runs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use ultima_planner::fabric::{Fabric, SwitchId, SwitchPort, TrunkId};
use ultima_planner::job::{
    CounterIndex, Epoch, GroupId, Job, JobId, JobPolicy, Member, Multicast, PolicyChange,
    ShareIndex, SourceIndex,
};
use ultima_planner::ledger::{self, Reserved};
use ultima_planner::target::PortNumber;
use ultima_planner::tree::JobTree;
use ultima_wire::Key;

use super::origin::OriginRecord;

/// A job and the state of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Seconds; 0 for never.
    pub evict_after_s: u32,
    /// Seconds of Unix time.
    pub created_at: u64,
    /// 0 in records of earlier versions.
    #[serde(default)]
    pub request: u64,
    /// 0 in records of earlier versions, whose uid is `request`.
    #[serde(default)]
    pub uid: u64,
    /// The role and name of the client whose request created it; empty without TLS.
    #[serde(default)]
    pub client: String,
    /// The key of a sealed job.
    #[serde(with = "super::key")]
    pub key: Option<Key>,
    /// In rank order.
    pub members: Vec<MemberRecord>,
    pub shares: Vec<ShareRecord>,
    /// The epoch's origin; none for a job's first epoch.
    pub origin: Option<OriginRecord>,
}

/// A job's multicast group and tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastRecord {
    /// The group's id.
    pub group: u16,
    /// The trunks of the tree, each as one of its ends: the switch's name and its port.
    pub tree: Vec<(String, u16)>,
}

/// A rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The host's name.
    pub host: String,
    /// The UDP port on the host.
    pub udp_port: u16,
    /// The index of the rank's loss counters on its host's switch.
    pub source: u16,
    /// The state of the rank.
    pub seat: SeatRecord,
    /// The number that identifies the request that took the rank, so that a repeated request gets
    /// the same rank; 0 for none.
    pub attempt: u64,
    /// True if the member was suspected.
    #[serde(default)]
    pub suspected: bool,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeatRecord {
    /// No member has joined.
    Free,
    /// A member has joined.
    Joined,
    /// The member left after all had joined.
    Left,
    /// The member left before, and knows the epoch's key.
    Vacated,
}

/// A job's share of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRecord {
    /// The switch's name.
    pub switch: String,
    /// The port on that switch.
    pub port: u16,
    /// The index of the job's counters, meter and operations there.
    pub index: u16,
}

/// The reason why a stored job does not fit the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The job's name.
    pub job: String,
    /// The reason, on one line.
    pub reason: String,
}

/// Finds a switch's port by name and number, if the fabric has the switch.
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

    /// Returns the stored tree, or one that reaches no host if the fabric lacks one of its trunks.
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
    /// Returns the record of a job with these seats and their attempts, by rank.
    pub fn new(
        fabric: &Fabric,
        job: &Job,
        seats: impl IntoIterator<Item = (SeatRecord, u64)>,
    ) -> Self {
        let members = (job.members.iter().zip(&job.sources).zip(seats)).map(
            |((member, source), (seat, attempt))| MemberRecord {
                host: fabric.host(member.host).name.clone(),
                udp_port: member.udp_port,
                source: source.0,
                seat,
                attempt,
                suspected: false,
            },
        );
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
            loss_threshold: job.policy.loss_threshold,
            weight: job.policy.weight.get(),
            evict_after_s: job.policy.eviction.seconds(),
            created_at: job.created_at,
            request: job.request,
            uid: job.uid,
            client: job.client.clone(),
            key: job.key,
            members: members.collect(),
            shares: shares.collect(),
            origin: None,
        }
    }

    /// Changes the job's policy.
    pub fn set_policy(&mut self, policy: JobPolicy) {
        self.loss_threshold = policy.loss_threshold;
        self.weight = policy.weight.get();
        self.evict_after_s = policy.eviction.seconds();
    }

    /// The job's uid.
    pub fn uid(&self) -> u64 {
        match self.uid {
            0 => self.request,
            uid => uid,
        }
    }

    /// The numbers that the job has on the hosts and switches of `fabric`.
    pub fn reserved(&self, fabric: &Fabric) -> Reserved {
        let member = |record: &MemberRecord| {
            let member = Member {
                host: fabric.host_named(&record.host)?,
                udp_port: record.udp_port,
            };
            Some((member, SourceIndex(record.source)))
        };
        let share = |record: &ShareRecord| {
            let switch = fabric.switch_named(&record.switch)?;
            Some((switch, ShareIndex(record.index)))
        };
        Reserved {
            id: JobId(self.id),
            counter: CounterIndex(self.counter),
            group: self.multicast.as_ref().map(|it| GroupId(it.group)),
            members: self.members.iter().filter_map(member).collect(),
            shares: self.shares.iter().filter_map(share).collect(),
        }
    }

    /// Returns the job in `fabric`, to be [refitted](ultima_planner::ledger::Ledger::refit). Trunks and
    /// ports that the fabric does not have are left out.
    ///
    /// # Errors
    /// A member's host is not in the fabric, or a value is invalid.
    pub fn job(&self, fabric: &Fabric) -> Result<Job, Unfit> {
        let name = &self.name;
        let unfit = |reason| Unfit {
            job: name.clone(),
            reason,
        };
        let member = |record: &MemberRecord| {
            let host = fabric.host_named(&record.host).ok_or_else(|| {
                unfit(format!(
                    "job {name}: its host {} is not in the fabric; put the host back and restart, or delete the job",
                    record.host
                ))
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
        let policy = JobPolicy::default().with(PolicyChange {
            loss_threshold: Some(self.loss_threshold),
            weight: Some(self.weight.into()),
            evict_after_s: Some(self.evict_after_s),
        });
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
            policy: policy.map_err(|problem| {
                unfit(format!(
                    "job {name}: the stored record is invalid: {problem}; delete the job"
                ))
            })?,
            created_at: self.created_at,
            request: self.request,
            uid: self.uid(),
            client: self.client.clone(),
            key: self.key,
            members,
            shares: self.shares.iter().filter_map(share).collect(),
            sources: (self.members.iter())
                .map(|it| SourceIndex(it.source))
                .collect(),
        })
    }
}
