//! Property tests: random fabrics, and random failures and drains in any order. The switches'
//! entries are checked after every update of every reroute.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::LazyLock;

use proptest::prelude::*;
use ultima_p4::names::replica::TRUNK_RID;
use ultima_planner::fabric::{Element, Fabric, HostId, SwitchPort, TrunkId};
use ultima_planner::job::{GroupId, Rank};
use ultima_planner::moves::{EntityChange, Round};
use ultima_planner::plan::{self, Entity, GroupReplica};
use ultima_planner::program::Program;
use ultima_planner::routing::Routes;
use ultima_planner::target::PortNumber;
use ultima_planner::testing::{Case, cases, fabric_of, spec, tight_cases};
use ultima_planner::tree::JobTree;

use super::super::moves::*;
use crate::server::registry::Registry;

/// Compiled once, not for each case.
static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::v1model().unwrap());

/// A model of a switch: it forwards by the entries written to it.
#[derive(Default)]
struct Switch {
    held: HashSet<Entity>,
    routes: HashMap<Ipv4Addr, PortNumber>,
    groups: HashMap<JobId, GroupId>,
    replicas: HashMap<GroupId, Vec<GroupReplica>>,
    admitted: HashSet<(PortNumber, JobId, Rank)>,
    destinations: HashSet<(JobId, Ipv4Addr)>,
    /// The limit of multicast groups.
    room: usize,
}

impl Switch {
    fn new(fabric: &Fabric, id: SwitchId) -> Self {
        Switch {
            room: fabric.switch(id).limits.groups as usize,
            ..Switch::default()
        }
    }

    /// The entry with the same key as `entity`.
    fn like(&self, entity: &Entity) -> Option<Entity> {
        let is_like = |held: &&Entity| match (held, entity) {
            (Entity::Route(held), Entity::Route(it)) => held.to == it.to,
            (Entity::Job(held), Entity::Job(it)) => held.job == it.job,
            (Entity::Group(held), Entity::Group(it)) => held.id == it.id,
            (held, it) => held == &it,
        };
        self.held.iter().find(is_like).cloned()
    }

    /// Applies a change under P4Runtime's rules: no insert of an existing entry, no modify or
    /// delete of a missing one.
    fn change(&mut self, change: &EntityChange) {
        match change {
            EntityChange::Insert(Entity::Counter(_)) => {}
            EntityChange::Insert(entity) => {
                assert_eq!(self.like(entity), None);
                self.put(entity);
            }
            EntityChange::Modify(entity) => {
                let held = self.like(entity).expect("what changes is there");
                assert_ne!(held, *entity, "nothing is written that is so already");
                self.held.remove(&held);
                self.put(entity);
            }
            EntityChange::Delete(entity) => {
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
                    Entity::Group(group) => drop(self.replicas.remove(&group.id)),
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
            Entity::Group(group) => {
                self.replicas.insert(group.id, group.replicas.clone());
                assert!(self.replicas.len() <= self.room, "one group too many");
            }
            _ => {}
        }
        self.held.insert(entity.clone());
    }
}

/// The conditions of a reroute, which decide what must arrive.
struct How {
    /// The trees before it.
    trees: Trees,
    /// Groups that have neither the old nor the new tree at some point.
    lossy: HashSet<GroupId>,
    /// Jobs whose old paths are removed first to make room.
    removes_first: HashSet<JobId>,
    /// A switch that receives no updates.
    away: Option<SwitchId>,
    /// True if an element in use has failed: then no delivery is guaranteed.
    is_broken: bool,
}

/// The jobs' trees before a reroute.
type Trees = BTreeMap<JobId, Option<JobTree>>;

struct World {
    fabric: Fabric,
    registry: Registry,
    health: Health,
    switches: Vec<Switch>,
    /// Updates so far; also the source of pseudo-random choices.
    changes: usize,
}

impl World {
    fn new(fabric: Fabric) -> Self {
        let routes = Routes::new(&fabric, Health::default());
        let switches = fabric.switch_ids().map(|id| {
            let mut switch = Switch::new(&fabric, id);
            let entities = plan::of_fabric(&fabric, &routes, id);
            entities.iter().for_each(|entity| switch.put(entity));
            switch
        });
        World {
            switches: switches.collect(),
            registry: Registry::new(&fabric, routes),
            health: Health::default(),
            fabric,
            changes: 0,
        }
    }

    fn create(&mut self, name: &str, members: &[String]) {
        let proposed = self
            .registry
            .propose(&self.fabric, PROGRAM.names(), &spec(name, members));
        let Ok(proposed) = proposed else { return };
        let (job, plan) = self.registry.reserve(&self.fabric, proposed);
        for (id, plan) in &*plan {
            for entity in plan.entities() {
                self.switches[id.0].change(&EntityChange::Insert(entity.clone()));
            }
        }
        self.registry.add(job.id, None);
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
                self.switches[id.0].change(&EntityChange::Delete(entity.clone()));
            }
        }
        self.registry.remove(&self.fabric, id);
    }

    /// Drains or undrains an element; every packet must arrive all the time. If `may_refuse`,
    /// nothing happens if a job has no room elsewhere. The switch `away` receives no updates until
    /// the end.
    fn drain(&mut self, element: Element, drained: bool, may_refuse: bool, away: Option<SwitchId>) {
        let lost = Health::default();
        let mut health = self.health.clone();
        match drained {
            true => health.fail(element),
            false => health.repair(element),
        };
        let names = PROGRAM.names();
        let refit = (self.registry).refit(&self.fabric, names, health.clone(), |_, _| true);
        if may_refuse && self.registry.refused(&refit).is_some() {
            return;
        }
        self.health = health;
        self.go_over(away, &lost);
        if let Some(away) = away {
            self.come_back(away);
        }
        assert!(self.registry.awaited().is_empty());
        self.is_as_planned();
    }

    /// Resyncs a switch that was away, and finishes the reroutes that waited for it.
    fn come_back(&mut self, away: SwitchId) {
        let wanted = self.registry.wanted();
        let entities = plan::of_fabric(&self.fabric, &wanted.routes, away);
        let jobs = wanted.jobs.iter().filter_map(|(_, plan)| plan.get(&away));
        let all = entities.iter().chain(jobs.flat_map(|plan| plan.entities()));
        let mut switch = Switch::new(&self.fabric, away);
        all.filter(|entity| !matches!(entity, Entity::Counter(_)))
            .for_each(|entity| switch.put(entity));
        self.switches[away.0] = switch;
        self.go_over(None, &Health::default());
    }

    /// Fails an element. [`drain`](Self::drain) with `false` repairs it.
    fn fail(&mut self, element: Element) {
        self.health.fail(element);
        self.go_over(None, &[element].into_iter().collect());
        self.is_as_planned();
    }

    /// Reroutes everything for the present health, except for jobs that must wait for `away`.
    fn go_over(&mut self, away: Option<SwitchId>, lost: &Health) {
        let before = Arc::clone(self.registry.routes());
        let trees: Trees = (self.registry.iter())
            .map(|record| (record.job.id, record.job.tree().cloned()))
            .collect();
        let unfinished = self.registry.iter();
        let unfinished = unfinished.filter(|record| !record.waits_for.is_empty());
        let unfinished: HashSet<JobId> = unfinished.map(|record| record.job.id).collect();
        let names = PROGRAM.names();
        let refit = (self.registry).refit(&self.fabric, names, self.health.clone(), |_, _| true);
        let moved = self.registry.adopt(refit);
        let after = Arc::clone(self.registry.routes());
        let room = Room {
            fabric: &self.fabric,
            names,
            ledger: self.registry.ledger(),
        };
        let steps = moves::steps(room, &before, &after, lost, &moved);
        let gives_way = |id: JobId| {
            let first = steps
                .first()
                .filter(|step| !step.waits_for().any(|it| it == id));
            let first = first.and_then(|step| step.of(id));
            let mut changes = first.into_iter().flat_map(Round::values).flatten();
            changes.any(|change| matches!(change, EntityChange::Delete(_)))
        };
        let removes_first: HashSet<JobId> =
            trees.keys().copied().filter(|id| gives_way(*id)).collect();
        let mut keeping_old_paths: BTreeSet<JobId> = BTreeSet::new();
        let lossy = {
            let rounds: Vec<Round> = steps.iter().map(|step| step.without(|_| false)).collect();
            self.lossy(&rounds)
        };
        let how = How {
            trees,
            lossy,
            removes_first,
            away,
            is_broken: lost.down().len() > 0,
        };
        for (at, step) in steps.iter().enumerate() {
            for id in step.waits_for() {
                let moved = moved.iter().find(|moved| moved.after.0.id == id).unwrap();
                if let Some(away) = away
                    && moved.switches().contains(&away)
                    && keeping_old_paths.insert(id)
                {
                    let done = steps[..at].iter().filter_map(|step| step.of(id));
                    let plan = done.fold((*moved.before.1).clone(), moves::applied);
                    let on: BTreeSet<SwitchId> = [away].into();
                    (self.registry).keep_old_paths(&self.fabric, moved.between(), plan, on);
                }
            }
            let mut round = step.without(|id| keeping_old_paths.contains(&id));
            if let Some(away) = away {
                round.remove(&away);
            }
            for change in round.values().flatten() {
                self.leaves_other_trees_alone(change, &how.trees, &unfinished);
            }
            self.write(&round, &how);
        }
    }

    /// Groups that have neither tree at some point: after some round both the old and the new tree
    /// lack replicas.
    fn lossy(&self, rounds: &[Round]) -> HashSet<GroupId> {
        type Replicas = HashMap<(SwitchId, GroupId), Vec<GroupReplica>>;
        let mut now = Replicas::new();
        for (at, switch) in self.switches.iter().enumerate() {
            let replicas = switch.replicas.iter();
            now.extend(replicas.map(|(id, replicas)| ((SwitchId(at), *id), replicas.clone())));
        }
        let mut will = Replicas::new();
        for record in self.registry.iter() {
            for (at, plan) in &*record.plan {
                for entity in plan.entities() {
                    if let Entity::Group(group) = entity {
                        will.insert((*at, group.id), group.replicas.clone());
                    }
                }
            }
        }
        let before = now.clone();
        let groups: HashSet<GroupId> = will.keys().map(|(_, id)| *id).collect();
        let mut lossy = HashSet::new();
        for round in rounds {
            for (at, change) in round
                .iter()
                .flat_map(|(at, all)| all.iter().map(move |it| (*at, it)))
            {
                match change {
                    EntityChange::Insert(Entity::Group(group))
                    | EntityChange::Modify(Entity::Group(group)) => {
                        now.insert((at, group.id), group.replicas.clone());
                    }
                    EntityChange::Delete(Entity::Group(group)) => drop(now.remove(&(at, group.id))),
                    _ => {}
                }
            }
            let has_all = |of: &Replicas, id: GroupId| {
                let mut of = of.iter().filter(|((_, group), _)| *group == id);
                of.all(|(at, replicas)| {
                    let now = now.get(at);
                    replicas
                        .iter()
                        .all(|replica| now.is_some_and(|now| now.contains(replica)))
                })
            };
            let has_neither = |id: &GroupId| !has_all(&before, *id) && !has_all(&will, *id);
            lossy.extend(groups.iter().copied().filter(has_neither));
        }
        lossy
    }

    fn leaves_other_trees_alone(
        &self,
        change: &EntityChange,
        trees: &Trees,
        unfinished: &HashSet<JobId>,
    ) {
        let (EntityChange::Insert(entity)
        | EntityChange::Modify(entity)
        | EntityChange::Delete(entity)) = change;
        if let Entity::Group(group) = entity {
            let mut jobs = self.registry.iter();
            let job = jobs.find(|record| record.job.group() == Some(group.id));
            let job = &job.expect("a job's").job;
            let moves = job.tree() != trees[&job.id].as_ref();
            assert!(moves || unfinished.contains(&job.id), "{change:?}");
        }
    }

    /// Writes a round, interleaving the switches pseudo-randomly, and sends packets after each
    /// update.
    fn write(&mut self, round: &Round, how: &How) {
        let mut left: Vec<(SwitchId, std::slice::Iter<'_, EntityChange>)> = (round.iter())
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
                    self.send(how);
                }
                None => drop(left.remove(at)),
            }
        }
    }

    /// Sends a multicast and a unicast packet of each job. Both must arrive, and must not loop.
    fn send(&self, how: &How) {
        for record in self.registry.iter() {
            let job = &record.job;
            let ranks = job.members.len();
            let from = (self.changes >> 35) % ranks;
            let to = (self.changes >> 41) % ranks;
            let heard = self.multicast(job, from);
            let others = (0..ranks)
                .filter(|rank| *rank != from)
                .collect::<BTreeSet<_>>();
            // Only members that are in the old and the new tree must be reached meanwhile.
            let trees = [how.trees[&job.id].as_ref(), job.tree()];
            let in_tree = |rank: &usize| {
                let home = self.fabric.host(job.members[*rank].host).attached.switch;
                trees
                    .iter()
                    .flatten()
                    .filter(|tree| tree.contains(home))
                    .count()
                    == 2
            };
            if how.is_broken || how.removes_first.contains(&job.id) {
                continue;
            }
            if !job.group().is_some_and(|group| how.lossy.contains(&group)) && in_tree(&from) {
                let others = others.into_iter().filter(in_tree).collect::<BTreeSet<_>>();
                assert!(
                    heard.is_superset(&others),
                    "{from} of {}: {heard:?}",
                    job.name
                );
            }
            // A switch that is away does not admit packets from new paths, so paths through it are
            // not checked.
            let home = self.fabric.host(job.members[to].host).attached.switch;
            if how.away != Some(home) {
                self.unicast(job, from, to, how.away);
            }
        }
    }

    fn multicast(&self, job: &Job, from: usize) -> BTreeSet<usize> {
        let start = self.fabric.host(job.members[from].host).attached;
        let (mut arriving, mut heard, mut hops) = (vec![start], BTreeSet::new(), 0);
        while let Some(at) = arriving.pop() {
            hops += 1;
            assert!(hops < 1000, "{} loops", job.name);
            let switch = &self.switches[at.switch.0];
            let admitted = switch
                .admitted
                .contains(&(at.port, job.id, Rank(from as u16)));
            let group = switch.groups.get(&job.id).filter(|_| admitted);
            for replica in group.iter().flat_map(|group| &switch.replicas[group]) {
                let leaving = SwitchPort {
                    switch: at.switch,
                    port: replica.port,
                };
                if replica.rid != TRUNK_RID {
                    heard.insert(usize::from(replica.rid));
                } else if replica.port != at.port {
                    arriving.push(self.fabric.across(leaving).unwrap());
                }
            }
        }
        heard
    }

    /// Sends a packet to another member. Paths through the switch `away`, which has only old
    /// entries, are not checked further.
    fn unicast(&self, job: &Job, from: usize, to: usize, away: Option<SwitchId>) {
        let [source, target] = [from, to].map(|rank| self.fabric.host(job.members[rank].host));
        let mut at = source.attached;
        for _ in 0..=self.fabric.switches().len() {
            if away == Some(at.switch) && at != source.attached {
                return;
            }
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
        panic!("{from} of {} loops", job.name);
    }

    /// Every switch has exactly the entries of a plan from scratch for the present health, with the
    /// jobs' trees and ids.
    fn is_as_planned(&self) {
        let routes = Routes::new(&self.fabric, self.health.clone());
        let mut jobs: BTreeMap<SwitchId, Vec<Entity>> = BTreeMap::new();
        for record in self.registry.iter() {
            let job = &record.job;
            let paths = plan::JobPaths::new(&self.fabric, &routes, &job.members, job.tree());
            let plan = plan::of_paths(&self.fabric, job, &paths);
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

/// Random events: a kind, an index that chooses its subject, and an index that chooses the switch
/// away.
fn events() -> impl Strategy<Value = Vec<(u8, prop::sample::Index, prop::sample::Index)>> {
    let any = any::<prop::sample::Index>;
    prop::collection::vec((0u8..12, any(), any()), 1..14)
}

fn run(case: &Case, events: &[(u8, prop::sample::Index, prop::sample::Index)]) {
    let mut world = World::new(case.fabric.clone());
    // Operators drain transit through a switch, not the switch itself.
    let elements: BTreeSet<Element> = (case.failures.iter())
        .map(|element| match *element {
            Element::Switch(switch) => Element::Transit(switch),
            element => element,
        })
        .collect();
    let elements: Vec<Element> = elements.into_iter().collect();
    let name = |at: usize| format!("job{at}");
    world.create("job0", &case.jobs[0]);
    for (kind, index, away) in events {
        let job = index.index(case.jobs.len());
        let away = SwitchId(away.index(case.fabric.switches().len()));
        match kind {
            0 | 1 => world.create(&name(job), &case.jobs[job]),
            2 => world.delete(&name(job)),
            _ if elements.is_empty() => {}
            10.. => world.fail(elements[index.index(elements.len())]),
            kind => {
                let element = elements[index.index(elements.len())];
                // A drain may be refused; a failure is not.
                let away = (*kind >= 8).then_some(away);
                world.drain(element, kind % 2 == 0, kind % 3 != 0, away);
            }
        }
    }
    world.is_as_planned();
}

/// h0 is on s0 and h1 on s1. The two have a link, and a longer path over s2 and s3. While the link
/// is drained, s0 sends by s2. When it is in use again, s2 sends packets for h1 to s0, which is
/// away and still sends them to s2.
#[test]
fn a_switch_that_is_away_may_receive_its_own_packets() {
    let trunks = [(0, 1, ""), (0, 2, ""), (2, 3, ""), (3, 1, "")];
    let mut world = World::new(fabric_of(4, &[(0, 1), (1, 1)], &trunks));
    let (s0, link, h1) = (SwitchId(0), Element::Trunk(TrunkId(0)), HostId(1));
    let (to_s2, to_s0) = (PortNumber(2), PortNumber(1));
    world.create("train", &["h0", "h1"].map(String::from));
    world.drain(link, true, true, None);
    assert_eq!(world.registry.routes().port(s0, h1), Some(to_s2));

    world.health.repair(link);
    world.go_over(Some(s0), &Health::default());
    assert_eq!(world.registry.routes().port(SwitchId(2), h1), Some(to_s0));
    let job = |world: &World| Arc::clone(&world.registry.named("train").unwrap().job);
    world.unicast(&job(&world), 0, 1, Some(s0));

    world.come_back(s0);
    world.unicast(&job(&world), 0, 1, None);
    world.is_as_planned();
}

/// The job's old and new tree together contain a loop while one switch is away. The job keeps its
/// old tree until that switch is back, and packets never loop.
#[test]
fn a_job_that_kept_its_old_tree_changes_over_without_a_loop() {
    let hosts = [
        (7, 1),
        (4, 2),
        (4, 3),
        (3, 2),
        (5, 3),
        (5, 1),
        (7, 2),
        (6, 1),
        (4, 2),
        (2, 1),
    ];
    let (fast, slow) = ("rate: 10G", "rate: 1G");
    let trunks = [
        (0, 1, fast),
        (1, 2, slow),
        (2, 3, fast),
        (2, 4, slow),
        (3, 5, slow),
        (5, 6, ""),
        (3, 7, slow),
        (5, 1, fast),
        (5, 1, slow),
        (2, 3, slow),
        (4, 6, fast),
        (1, 5, ""),
        (1, 7, fast),
        (6, 4, slow),
        (3, 4, fast),
        (5, 4, fast),
        (2, 5, ""),
        (6, 2, slow),
        (4, 3, ""),
    ];
    let mut world = World::new(fabric_of(8, &hosts, &trunks));
    let members = [
        "h0", "h1", "h2", "h2", "h2", "h3", "h3", "h4", "h4", "h5", "h6", "h7", "h9",
    ];
    world.create("train", &members.map(String::from));
    let link = Element::Trunk(TrunkId(2));
    world.drain(link, true, true, Some(SwitchId(3)));
    let routes = world.registry.routes();
    assert!(!routes.health().trunk_is_up(&world.fabric, TrunkId(2)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(32, 2000)))]

    #[test]
    fn no_packet_is_lost_during_reroutes(case in cases(12), events in events()) {
        run(&case, &events);
    }

    #[test]
    fn no_switch_gets_more_entries_than_it_has_room_for(case in tight_cases(12), events in events()) {
        run(&case, &events);
    }
}
