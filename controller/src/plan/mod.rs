//! What each switch should hold: pure functions from fabric, routes and jobs to entities.
//!
//! [`of_fabric`] is what every job needs, written when a switch comes up; [`of_job`] is what one
//! job adds; [`divide`] is what jobs are to each other: their parts of ports that they share. All speak in the typed
//! rows of [`table`], [`Group`], [`CounterCell`], [`MeterCell`] and a few more; an [`Entity`] is any of these and becomes an
//! update with the program's names.

mod counter;
mod cut;
mod division;
mod entity;
mod group;
mod limits;
mod loss;
mod meter;
pub mod table;
#[cfg(test)]
mod tests;
mod virtual_queue;
mod ways;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub use counter::CounterCell;
pub use cut::{CutSession, cuts, uncut};
pub use division::{Division, divide};
pub use entity::{Entity, SchemaError, Stage};
pub use group::{Copy, Group};
pub use limits::{LimitError, Usage, check_fabric};
pub use loss::{LossDigest, LossSession};
pub use meter::MeterCell;
pub use virtual_queue::VirtualQueue;
pub use ways::{Through, Ways};

use crate::fabric::{Fabric, SwitchId, SwitchPort};
use crate::job::Job;
use crate::routing::Routes;
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

/// Routes to every host, as they are [given](Routes::held), ARP answers for every host of the fabric, what brings word of losses, and what the links of its
/// ports can carry.
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

/// What `job` needs on the switches that its packets come through, and on no other.
pub fn of_job(fabric: &Fabric, routes: &Routes, job: &Job) -> JobPlan {
    let ways = Ways::new(fabric, routes, &job.members, job.tree());
    of_ways(fabric, job, &ways)
}

/// The same, where its ways are known.
pub(crate) fn of_ways(fabric: &Fabric, job: &Job, ways: &Ways) -> JobPlan {
    let on_switch = |(switch, through)| (switch, on_switch(fabric, job, switch, through));
    ways.iter().map(on_switch).collect()
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
    let mut copies: Vec<Copy> = (branches.iter())
        .map(|end| Copy::to_switch(end.port))
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
            copies.push(Copy::to_rank(host.attached.port, rank));
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
        .extend(group.map(|id| Entity::Group(Group { id, copies })));
    plan.announce.push(Entity::Job(table::JobRow {
        job: job.id,
        counter: job.counter,
        group,
        loss_threshold: job.loss_threshold,
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
