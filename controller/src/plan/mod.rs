//! What each switch should hold: pure functions from fabric and jobs to entities.
//!
//! [`of_fabric`] is what every job needs, written when a switch comes up; [`of_job`] is what one
//! job adds; [`divide`] is what jobs are to each other: their parts of ports that they share. All speak in the typed
//! rows of [`table`], [`Group`], [`CounterCell`], [`MeterCell`] and a few more; an [`Entity`] is any of these and becomes an
//! update with the program's names.

mod counter;
mod division;
mod entity;
mod group;
mod limits;
mod loss;
mod meter;
mod numbers;
pub mod table;
#[cfg(test)]
mod tests;
mod virtual_queue;

use std::collections::{BTreeMap, BTreeSet};

pub use counter::CounterCell;
pub use division::{Division, divide};
pub use entity::{Entity, SchemaError};
pub use group::{Copy, Group};
pub use limits::{LimitError, check_fabric, check_job};
pub use loss::{LossDigest, LossSession};
pub use meter::MeterCell;
pub use numbers::{Numbers, number};
pub use virtual_queue::VirtualQueue;

use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::{Job, Member};
use crate::target::PortNumber;

/// What one switch should hold for one job, in the order of writing. Within a stage entities do
/// not depend on each other; a stage is whole on all switches before the next is begun, so that
/// no packet is admitted before every switch can carry it to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Counters set to zero, group, destinations and how copies are addressed.
    pub prepare: Vec<Entity>,
    /// The job itself: packets of it are counted as its own.
    pub announce: Vec<Entity>,
    /// Who may send.
    pub admit: Vec<Entity>,
}

impl SwitchPlan {
    /// The stages, first to be written first.
    pub fn stages(&self) -> [&[Entity]; 3] {
        [&self.prepare, &self.announce, &self.admit]
    }

    /// How many copies its group makes of a packet; 0 without one.
    pub fn replicas(&self) -> usize {
        let group = self.entities().find_map(|entity| match entity {
            Entity::Group(group) => Some(group.copies.len()),
            _ => None,
        });
        group.unwrap_or_default()
    }

    /// All entities, first to be written first.
    pub fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.stages().into_iter().flatten()
    }
}

/// What a job needs on each of its switches.
pub type JobPlan = BTreeMap<SwitchId, SwitchPlan>;

/// Routes to, and ARP answers for, every host of the fabric, what brings word of losses, and what the links of its
/// ports can carry.
pub fn of_fabric(fabric: &Fabric, switch: SwitchId) -> Vec<Entity> {
    let mut entities = vec![
        Entity::LossSession(LossSession),
        Entity::LossDigest(LossDigest),
    ];
    for id in fabric.host_ids() {
        let host = fabric.host(id);
        let port = fabric.port_toward(switch, id);
        entities.push(Entity::Route(table::Route {
            to: host.ip,
            port,
            mac: host.mac,
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

/// What `job` needs on the switches between its members, and on no other.
pub fn of_job(fabric: &Fabric, job: &Job) -> JobPlan {
    let trunks = trunks_of(fabric, &job.members);
    trunks
        .iter()
        .map(|(switch, trunks)| (*switch, on_switch(fabric, job, *switch, trunks)))
        .collect()
}

/// The job's tree: its switches, and at each the trunks to the next. The fabric's tree has one
/// path between any two switches, so the paths from one member's switch to all others make up the
/// smallest part of it that joins them.
fn trunks_of(fabric: &Fabric, members: &[Member]) -> BTreeMap<SwitchId, BTreeSet<PortNumber>> {
    let mut switches = members
        .iter()
        .map(|member| fabric.host(member.host).attached.switch);
    let mut trunks: BTreeMap<SwitchId, BTreeSet<PortNumber>> = BTreeMap::new();
    let Some(root) = switches.next() else {
        return trunks;
    };
    trunks.entry(root).or_default();
    for to in switches {
        let tree = fabric.tree();
        for at in tree.path(root, to) {
            trunks.entry(at).or_default().extend(
                [root, to]
                    .into_iter()
                    .filter_map(|end| tree.port_toward(at, end)),
            );
        }
    }
    trunks
}

fn on_switch(
    fabric: &Fabric,
    job: &Job,
    switch: SwitchId,
    trunks: &BTreeSet<PortNumber>,
) -> SwitchPlan {
    let mut plan = SwitchPlan::default();
    plan.prepare
        .extend(CounterCell::of_job(job.counter).map(Entity::Counter));
    for (port, index) in job.shares.iter().filter(|(port, _)| port.switch == switch) {
        plan.prepare
            .extend(CounterCell::of_share(*index).map(Entity::Counter));
        plan.prepare.push(Entity::Share(table::Share {
            job: job.id,
            egress: port.port,
            index: *index,
        }));
    }

    let mut copies: Vec<Copy> = trunks.iter().map(|port| Copy::to_switch(*port)).collect();
    for ((rank, member), source) in job.ranks().zip(&job.sources) {
        let host = fabric.host(member.host);
        let index = (host.attached.switch == switch).then_some(*source);
        plan.prepare.extend(
            (index.into_iter())
                .flat_map(CounterCell::of_source)
                .map(Entity::Counter),
        );
        if job.group.is_some() && host.attached.switch == switch {
            copies.push(Copy::to_rank(host.attached.port, rank));
            plan.prepare.push(Entity::Replica(table::Replica {
                job: job.id,
                rank,
                mac: host.mac,
                ip: host.ip,
                udp_port: member.udp_port,
            }));
        }
        plan.prepare.push(Entity::Destination(table::Destination {
            job: job.id,
            ip: host.ip,
            udp_port: member.udp_port,
        }));
        plan.admit.push(Entity::Source(table::Source {
            ingress: fabric.port_toward(switch, member.host),
            job: job.id,
            epoch: job.epoch,
            rank,
            ip: host.ip,
            index,
        }));
    }
    if let Some(id) = job.group {
        plan.prepare.push(Entity::Group(Group { id, copies }));
    }
    plan.announce.push(Entity::Job(table::JobRow {
        job: job.id,
        counter: job.counter,
        group: job.group,
        loss_threshold: job.loss_threshold,
    }));
    plan
}
