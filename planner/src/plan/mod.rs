//! The entities of each switch, as pure functions of fabric, routes and jobs.
//!
//! [`of_fabric`] are the entities that every job needs, written when a switch comes up. [`of_job`]
//! are those of one job. [`divide`] divides shared ports among jobs. They return the typed rows of
//! [`table`], [`Group`], [`CounterCell`], [`MeterCell`] and others; an [`Entity`] is any of these,
//! and becomes an update with the program's names.

mod counter;
mod cut;
mod division;
mod entity;
mod group;
mod job_paths;
mod limits;
mod loss;
mod meter;
pub mod table;
#[cfg(test)]
mod tests;
mod virtual_queue;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub use counter::CounterCell;
pub use cut::{CutSession, cuts, uncut};
pub use division::{Division, divide};
pub use entity::{Entity, SchemaError, Stage};
pub use group::{Group, GroupReplica};
pub use job_paths::{JobPaths, Through};
pub use limits::{Usage, check_fabric};
pub use loss::{LossDigest, LossSession};
pub use meter::MeterCell;
pub use virtual_queue::VirtualQueue;

use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::Job;
use crate::routing::Routes;
use crate::target::PortNumber;

/// A job's entities on one switch, in the order of writing. Entities within a stage do not depend
/// on each other. A switch admits packets when it can forward them; members begin when all switches
/// have all entities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Reset counters, the group, destinations and the addresses of replicas.
    pub prepare: Vec<Entity>,
    /// The job's row: its packets are counted.
    pub announce: Vec<Entity>,
    /// The admissions of senders.
    pub admit: Vec<Entity>,
}

impl SwitchPlan {
    /// The stages in the order of writing.
    pub fn stages(&self) -> [&[Entity]; 3] {
        [&self.prepare, &self.announce, &self.admit]
    }

    /// The number of replicas of the job's group; 0 without a group.
    pub fn replicas(&self) -> usize {
        let group = self.entities().find_map(|entity| match entity {
            Entity::Group(group) => Some(group.replicas.len()),
            _ => None,
        });
        group.unwrap_or_default()
    }

    /// All entities in the order of writing.
    pub fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.stages().into_iter().flatten()
    }
}

/// A job's entities on each of its switches.
pub type JobPlan = BTreeMap<SwitchId, SwitchPlan>;

/// The entities that every job needs: [held](Routes::held) routes and ARP entries for all hosts,
/// loss reports, and the virtual queues of ports.
pub fn of_fabric(fabric: &Fabric, routes: &Routes, switch: SwitchId) -> Vec<Entity> {
    let mut entities = vec![
        Entity::LossSession(LossSession::of(fabric.switch(switch).target)),
        Entity::LossDigest(LossDigest),
    ];
    for id in fabric.host_ids() {
        let host = fabric.host(id);
        entities.extend(routes.held(switch, id).map(|port| {
            Entity::Route(table::Route {
                to: host.ip,
                port,
                mac: host.mac,
            })
        }));
        entities.push(Entity::Neighbor(table::Neighbor {
            ip: host.ip,
            mac: host.mac,
        }));
    }
    for port in fabric.ports_of(switch) {
        let Some(queue) = division::virtual_queue(fabric, SwitchPort { switch, port }) else {
            continue;
        };
        entities.push(Entity::Meter(MeterCell::of_port(port, queue)));
        if fabric.switch(switch).line_rate_queues {
            let egress = port;
            entities.push(Entity::QueueTime(table::QueueTime { egress, queue }));
        }
    }
    entities
}

/// The entities of `job`, on the switches that its packets pass only.
pub fn of_job(fabric: &Fabric, routes: &Routes, job: &Job) -> JobPlan {
    let paths = JobPaths::new(fabric, routes, &job.members, job.tree());
    of_paths(fabric, job, &paths)
}

/// Like [`of_job`], for known paths.
pub fn of_paths(fabric: &Fabric, job: &Job, paths: &JobPaths) -> JobPlan {
    let on_switch = |(switch, through)| (switch, on_switch(fabric, job, switch, through));
    paths.iter().map(on_switch).collect()
}

fn on_switch(fabric: &Fabric, job: &Job, switch: SwitchId, through: &Through) -> SwitchPlan {
    let mut plan = SwitchPlan::default();
    plan.prepare
        .extend(CounterCell::of_job(job.counter).map(Entity::Counter));
    for (port, index) in job.shares.range(ports_of(switch)) {
        plan.prepare
            .extend(CounterCell::of_share(*index).map(Entity::Counter));
        plan.prepare.push(Entity::Share(table::Share {
            job: job.id,
            egress: port.port,
            index: *index,
        }));
    }

    let multicast = (job.multicast.as_ref()).filter(|multicast| multicast.tree.contains(switch));
    let branches = multicast.map_or(&[][..], |multicast| multicast.tree.branches(switch));
    let mut replicas: Vec<GroupReplica> = (branches.iter())
        .map(|end| GroupReplica::to_switch(end.port))
        .collect();
    for ((rank, member), source) in job.ranks().zip(&job.sources) {
        let host = fabric.host(member.host);
        let is_here = host.attached.switch == switch;
        let admit = |ingress, index| {
            Entity::Source(table::Source {
                ingress,
                job: job.id,
                epoch: job.epoch,
                rank,
                ip: host.ip,
                index,
            })
        };
        if is_here {
            plan.prepare
                .extend(CounterCell::of_source(*source).map(Entity::Counter));
            plan.admit.push(admit(host.attached.port, Some(*source)));
        } else {
            let entrances = through.entrances(host.attached.switch);
            plan.admit.extend(entrances.map(|port| admit(port, None)));
        }
        if is_here && multicast.is_some() {
            replicas.push(GroupReplica::to_rank(host.attached.port, rank));
            plan.prepare.push(Entity::Replica(table::Replica {
                job: job.id,
                rank,
                mac: host.mac,
                ip: host.ip,
                udp_port: member.udp_port,
            }));
        }
        if through.leads_to(member.host) {
            plan.prepare.push(Entity::Destination(table::Destination {
                job: job.id,
                ip: host.ip,
                udp_port: member.udp_port,
            }));
        }
    }
    let group = multicast.map(|multicast| multicast.group);
    plan.prepare
        .extend(group.map(|id| Entity::Group(Group { id, replicas })));
    plan.announce.push(Entity::Job(table::JobRow {
        job: job.id,
        counter: job.counter,
        group,
        loss_threshold: job.policy.loss_threshold,
    }));
    plan
}

/// All ports that a switch can have.
fn ports_of(switch: SwitchId) -> RangeInclusive<SwitchPort> {
    let at = |port| SwitchPort {
        switch,
        port: PortNumber(port),
    };
    at(0)..=at(u16::MAX)
}
