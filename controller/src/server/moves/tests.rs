//! Random fabrics, and what happens to them in any order: what switches hold while all of it moves.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;

use proptest::prelude::*;
use ultima_p4::names::replica::TRUNK_RID;

use super::*;
use crate::fabric::{Fabric, Health, SwitchPort};
use crate::job::{GroupId, Job, JobId, Rank};
use crate::plan::{self, Copy, Entity};
use crate::program::Program;
use crate::routing::Routes;
use crate::server::registry::Registry;
use crate::target::PortNumber;
use crate::testing::{Case, cases, spec};
use crate::tree::JobTree;

/// What a switch does by what was written to it.
#[derive(Default)]
struct Switch {
    held: HashSet<Entity>,
    routes: HashMap<Ipv4Addr, PortNumber>,
    groups: HashMap<JobId, GroupId>,
    copies: HashMap<GroupId, Vec<Copy>>,
    admitted: HashSet<(PortNumber, JobId, Rank)>,
    destinations: HashSet<(JobId, Ipv4Addr)>,
}

impl Switch {
    /// What of this switch has the key of `entity`.
    fn like(&self, entity: &Entity) -> Option<Entity> {
        let is_like = |held: &&Entity| match (held, entity) {
            (Entity::Route(held), Entity::Route(it)) => held.to == it.to,
            (Entity::Job(held), Entity::Job(it)) => held.job == it.job,
            (Entity::Group(held), Entity::Group(it)) => held.id == it.id,
            (held, it) => held == &it,
        };
        self.held.iter().find(is_like).cloned()
    }

    /// As P4Runtime has it: nothing comes twice, and nothing changes or goes that is not there.
    fn change(&mut self, change: &Change) {
        match change {
            Change::Put(Entity::Counter(_)) => {}
            Change::Put(entity) => {
                assert_eq!(self.like(entity), None);
                self.put(entity);
            }
            Change::Set(entity) => {
                let held = self.like(entity).expect("what changes is there");
                assert_ne!(held, *entity, "nothing is written that is so already");
                self.held.remove(&held);
                self.put(entity);
            }
            Change::Drop(entity) => {
                let held = self.like(entity).expect("what goes is there");
                self.held.remove(&held);
                match &held {
                    Entity::Source(row) => {
                        assert!(self.admitted.remove(&(row.ingress, row.job, row.rank)));
                    }
                    Entity::Destination(row) => {
                        self.destinations.remove(&(row.job, row.ip));
                    }
                    Entity::Job(row) => drop(self.groups.remove(&row.job)),
                    Entity::Group(group) => drop(self.copies.remove(&group.id)),
                    _ => {}
                }
            }
        }
    }

    fn put(&mut self, entity: &Entity) {
        match entity {
            Entity::Route(row) => drop(self.routes.insert(row.to, row.port)),
            Entity::Source(row) => drop(self.admitted.insert((row.ingress, row.job, row.rank))),
            Entity::Destination(row) => drop(self.destinations.insert((row.job, row.ip))),
            Entity::Job(row) => match row.group {
                Some(group) => drop(self.groups.insert(row.job, group)),
                None => drop(self.groups.remove(&row.job)),
            },
            Entity::Group(group) => drop(self.copies.insert(group.id, group.copies.clone())),
            _ => {}
        }
        self.held.insert(entity.clone());
    }
}

/// The trees that jobs had before a move.
type Trees = BTreeMap<JobId, Option<JobTree>>;

struct World {
    fabric: Fabric,
    program: Program,
    registry: Registry,
    health: Health,
    switches: Vec<Switch>,
    /// Changes so far, which also choose what is looked at.
    changes: usize,
}

impl World {
    fn new(fabric: Fabric) -> Self {
        let routes = Routes::new(&fabric, Health::default());
        let switches = fabric.switch_ids().map(|id| {
            let mut switch = Switch::default();
            let entities = plan::of_fabric(&fabric, &routes, id);
            entities.iter().for_each(|entity| switch.put(entity));
            switch
        });
        World {
            switches: switches.collect(),
            program: Program::v1model().unwrap(),
            registry: Registry::new(&fabric, routes),
            health: Health::default(),
            fabric,
            changes: 0,
        }
    }

    fn create(&mut self, name: &str, members: &[String]) {
        let proposed =
            self.registry
                .propose(&self.fabric, self.program.names(), &spec(name, members));
        let Ok((job, plan)) = proposed else { return };
        for (id, plan) in &plan {
            for entity in plan.entities() {
                self.switches[id.0].change(&Change::Put(entity.clone()));
            }
        }
        self.registry.add(&self.fabric, job, plan);
    }

    fn delete(&mut self, name: &str) {
        let Ok(record) = self.registry.named(name) else {
            return;
        };
        let (id, plan) = (record.job.id, Arc::clone(&record.plan));
        for (id, plan) in &*plan {
            for entity in plan
                .entities()
                .filter(|it| !matches!(it, Entity::Counter(_)))
            {
                self.switches[id.0].change(&Change::Drop(entity.clone()));
            }
        }
        self.registry.remove(&self.fabric, id);
    }

    /// A part is drained, or used again: everything works on, all the time.
    fn drain(&mut self, part: Part, drained: bool) {
        match drained {
            true => self.health.fail(part),
            false => self.health.mend(part),
        };
        let before = Arc::clone(self.registry.routes());
        let trees: Trees = (self.registry.iter())
            .map(|record| (record.job.id, record.job.tree().cloned()))
            .collect();
        let names = self.program.names();
        let moved = (self.registry).refit_all(&self.fabric, names, self.health.clone());
        let after = Arc::clone(self.registry.routes());
        let rounds = moves::rounds(&self.fabric, (&before, &after), &Health::default(), &moved);
        let lossy = self.lossy(&rounds);
        for round in &rounds {
            for change in round.values().flatten() {
                self.leaves_other_trees_alone(change, &trees);
            }
            self.write(round, &trees, &lossy);
        }
        self.is_as_planned();
    }

    /// Jobs whose groups have neither tree in between.
    fn lossy(&self, rounds: &[Round]) -> HashSet<GroupId> {
        let mut lossy = HashSet::new();
        for record in self.registry.iter() {
            for (id, plan) in &*record.plan {
                let will = plan.entities().find_map(|entity| match entity {
                    Entity::Group(group) => Some(group),
                    _ => None,
                });
                let sets = rounds.iter().filter_map(|round| round.get(id)).flatten();
                for change in sets {
                    if let (Change::Set(Entity::Group(now)), Some(will)) = (change, will)
                        && now.id == will.id
                        && !will.copies.iter().all(|copy| now.copies.contains(copy))
                    {
                        lossy.insert(now.id);
                    }
                }
            }
        }
        lossy
    }

    fn leaves_other_trees_alone(&self, change: &Change, trees: &Trees) {
        let (Change::Put(entity) | Change::Set(entity) | Change::Drop(entity)) = change;
        if let Entity::Group(group) = entity {
            let mut jobs = self.registry.iter();
            let job = jobs.find(|record| record.job.group() == Some(group.id));
            let job = &job.expect("a job's").job;
            assert_ne!(job.tree(), trees[&job.id].as_ref(), "{change:?}");
        }
    }

    /// Writes a round, switch by switch in any mixture, and sends packets in between.
    fn write(&mut self, round: &Round, were: &Trees, lossy: &HashSet<GroupId>) {
        let mut left: Vec<(SwitchId, std::slice::Iter<'_, Change>)> = (round.iter())
            .map(|(id, changes)| (*id, changes.iter()))
            .collect();
        while !left.is_empty() {
            self.changes = self
                .changes
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (self.changes >> 33) % left.len();
            let (id, changes) = &mut left[at];
            match changes.next() {
                Some(change) => {
                    self.switches[id.0].change(change);
                    self.send(were, lossy);
                }
                None => drop(left.remove(at)),
            }
        }
    }

    /// One packet of each job to all and one to one other member: they arrive, and do not go round.
    fn send(&self, were: &Trees, lossy: &HashSet<GroupId>) {
        for record in self.registry.iter() {
            let job = &record.job;
            let ranks = job.members.len();
            let from = (self.changes >> 35) % ranks;
            let to = (self.changes >> 41) % ranks;
            let heard = self.multicast(job, from);
            let others = (0..ranks)
                .filter(|rank| *rank != from)
                .collect::<BTreeSet<_>>();
            // Who was not in the tree, or will not be, has no claim to it meanwhile.
            let trees = [were[&job.id].as_ref(), job.tree()];
            let in_tree = |rank: &usize| {
                let home = self.fabric.host(job.members[*rank].host).attached.switch;
                trees
                    .iter()
                    .flatten()
                    .filter(|tree| tree.contains(home))
                    .count()
                    == 2
            };
            if !job.group().is_some_and(|group| lossy.contains(&group)) && in_tree(&from) {
                let others = others.into_iter().filter(in_tree).collect::<BTreeSet<_>>();
                assert!(
                    heard.is_superset(&others),
                    "{from} of {}: {heard:?}",
                    job.name
                );
            }
            self.unicast(job, from, to);
        }
    }

    fn multicast(&self, job: &Job, from: usize) -> BTreeSet<usize> {
        let start = self.fabric.host(job.members[from].host).attached;
        let (mut arriving, mut heard, mut hops) = (vec![start], BTreeSet::new(), 0);
        while let Some(at) = arriving.pop() {
            hops += 1;
            assert!(hops < 1000, "{} goes round", job.name);
            let switch = &self.switches[at.switch.0];
            let admitted = switch
                .admitted
                .contains(&(at.port, job.id, Rank(from as u16)));
            let group = switch.groups.get(&job.id).filter(|_| admitted);
            for copy in group.iter().flat_map(|group| &switch.copies[group]) {
                let leaving = SwitchPort {
                    switch: at.switch,
                    port: copy.port,
                };
                if copy.rid != TRUNK_RID {
                    heard.insert(usize::from(copy.rid));
                } else if copy.port != at.port {
                    arriving.push(self.fabric.across(leaving).unwrap());
                }
            }
        }
        heard
    }

    fn unicast(&self, job: &Job, from: usize, to: usize) {
        let [source, target] = [from, to].map(|rank| self.fabric.host(job.members[rank].host));
        let mut at = source.attached;
        for _ in 0..=self.fabric.switches().len() {
            let switch = &self.switches[at.switch.0];
            let rank = Rank(from as u16);
            assert!(
                switch.admitted.contains(&(at.port, job.id, rank)),
                "{from} of {} at {at:?}",
                job.name
            );
            assert!(
                switch.destinations.contains(&(job.id, target.ip)),
                "to {to} at {at:?}"
            );
            let leaving = SwitchPort {
                switch: at.switch,
                port: switch.routes[&target.ip],
            };
            if leaving == target.attached {
                return;
            }
            at = self.fabric.across(leaving).expect("a trunk");
        }
        panic!("{from} of {} goes round", job.name);
    }

    /// Every switch holds what planning from nothing for what is up says, with the trees and numbers that jobs have.
    fn is_as_planned(&self) {
        let routes = Routes::new(&self.fabric, self.health.clone());
        let mut jobs: BTreeMap<SwitchId, Vec<Entity>> = BTreeMap::new();
        for record in self.registry.iter() {
            let job = &record.job;
            let plan = match record.cut_off.is_empty() {
                true => plan::of_job(&self.fabric, &routes, job),
                false => {
                    let ways = plan::Ways::held(&self.fabric, &routes, &job.members, job.tree());
                    plan::of_ways(&self.fabric, job, &ways)
                }
            };
            for (id, plan) in plan {
                jobs.entry(id).or_default().extend(plan.entities().cloned());
            }
        }
        for id in self.fabric.switch_ids() {
            let all = plan::of_fabric(&self.fabric, &routes, id);
            let all = all.into_iter().chain(jobs.remove(&id).unwrap_or_default());
            let all: HashSet<Entity> = all.filter(|it| !matches!(it, Entity::Counter(_))).collect();
            assert_eq!(self.switches[id.0].held, all, "{id:?}");
        }
    }
}

/// What happens, each by a number that chooses what it happens to.
fn events() -> impl Strategy<Value = Vec<(u8, prop::sample::Index)>> {
    prop::collection::vec((0u8..6, any::<prop::sample::Index>()), 1..14)
}

fn run(case: &Case, events: &[(u8, prop::sample::Index)]) {
    let mut world = World::new(case.fabric.clone());
    // Operators leave switches alone; they don't switch them off.
    let parts: BTreeSet<Part> = (case.failures.iter())
        .map(|part| match *part {
            Part::Switch(switch) => Part::Transit(switch),
            part => part,
        })
        .collect();
    let parts: Vec<Part> = parts.into_iter().collect();
    let name = |at: usize| format!("job{at}");
    world.create("job0", &case.jobs[0]);
    for (kind, index) in events {
        let job = index.index(case.jobs.len());
        match kind {
            0 => world.create(&name(job), &case.jobs[job]),
            1 => world.delete(&name(job)),
            _ if parts.is_empty() => {}
            kind => world.drain(parts[index.index(parts.len())], kind % 2 == 0),
        }
    }
    world.is_as_planned();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_is_lost_while_everything_moves(case in cases(12), events in events()) {
        run(&case, &events);
    }
}
