//! Rerouting: an order of writes from the current entries to the desired ones, after elements
//! failed, recovered or were drained. No packet is lost that the fabric can still carry, because
//! new paths are complete before old ones are removed.
//!
//! [`steps`] returns the writes. A step is complete on all switches before the next begins. Within
//! a step, switches are in no order, so packets meet any mixture of two neighbouring steps:
//!
//! 1. Entries of the new paths: first those that forward, then those that admit. They also cover
//!    packets that go partly by old and partly by new routes. No packet uses them yet.
//! 2. Groups get the new tree's branches in addition to the old ones. Every packet takes both
//!    trees, and members drop the duplicates. (Exceptions: the old tree is broken, or packets could
//!    [loop](flood). In the second case groups keep only the branches of both trees, and members miss
//!    some packets until the next step.)
//! 3. Groups lose the old tree's branches.
//! 4. Routes, for each host nearest switches first ([`Routes::write_round`]): packets that reach a switch
//!    by its new port find only new ports from there on.
//! 5. Entries that only the old paths needed are removed: those that admit before those that
//!    forward.
//!
//! If a switch has [no room](room) for a job's old and new paths together, the job's old paths are
//! removed before all this, and its new paths are written directly.
//!
//! For a job with switches that may not have the new paths yet, steps 3 and 5 are postponed, and
//! step 2 if packets could loop on both trees: the job keeps its old tree. Step 4 is never
//! postponed, because all jobs share the routes. A switch without its new routes keeps its old
//! ports, and its packets may come back by its neighbours' new routes.

mod flood;
mod room;
mod step;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

pub use room::Room;
pub use step::{Step, applied};

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::Update;

use crate::fabric::{Fabric, Health, SwitchId};
use crate::job::{Job, JobId};
use crate::plan::{self, Entity, Group, GroupReplica, JobPaths, JobPlan, SwitchPlan, table};
use crate::routing::Routes;
use crate::update::Untranslatable;

/// A job and its plan.
pub type Planned = (Arc<Job>, Arc<JobPlan>);

/// A rerouted job.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The job before the change.
    pub before: Planned,
    /// The job after the change.
    pub after: Planned,
}

impl Moved {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.after.0.id
    }

    /// The job after the change, with the share indices that it has before, too.
    pub fn between(&self) -> Job {
        let mut job = Job::clone(&self.after.0);
        for (at, share) in &self.before.0.shares {
            job.shares.entry(*at).or_insert(*share);
        }
        job
    }

    /// The switches of the new paths.
    pub fn switches(&self) -> BTreeSet<SwitchId> {
        self.after.1.keys().copied().collect()
    }

    /// The job's entries after these steps, on the switches that `is_of_interest` names.
    pub fn after_steps(
        &self,
        steps: &[Step],
        is_of_interest: impl Fn(SwitchId) -> bool,
    ) -> JobPlan {
        let here = |id: &SwitchId| is_of_interest(*id);
        let before = self.before.1.iter().filter(|(id, _)| here(id));
        let before = before.map(|(id, plan)| (*id, plan.clone())).collect();
        let rounds = steps.iter().filter_map(|step| step.of(self.id()));
        rounds.fold(before, |plan, round| {
            applied(plan, round.iter().filter(|(id, _)| here(id)))
        })
    }
}

/// A change of one entity on a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntityChange {
    /// Insert the entity.
    Insert(Entity),
    /// Modify the entity with this key.
    Modify(Entity),
    /// Delete the entity.
    Delete(Entity),
}

impl EntityChange {
    /// The P4Runtime update; none if there is nothing to delete.
    ///
    /// # Errors
    /// The program does not support the entity.
    pub fn update(&self, names: &Names) -> Result<Option<Update>, Untranslatable> {
        Ok(match self {
            EntityChange::Insert(entity) => Some(entity.creation(names)?),
            EntityChange::Modify(entity) => {
                let whole = entity.creation(names)?.entity.unwrap_or_default();
                Some(Update::modify(whole))
            }
            EntityChange::Delete(entity) => entity.removal(names)?,
        })
    }
}

/// Changes that are written at the same time, in order on each switch.
pub type Round = BTreeMap<SwitchId, Vec<EntityChange>>;

/// Returns the non-empty steps that reroute `jobs` while the routes change from `before` to
/// `after`. `lost` are the elements that carry nothing any more, as opposed to elements that are
/// only avoided.
pub fn steps(
    room: Room<'_>,
    before: &Routes,
    after: &Routes,
    lost: &Health,
    jobs: &[Moved],
) -> Vec<Step> {
    let moving = jobs
        .iter()
        .map(|moved| Moving::new(room.fabric, [before, after], lost, moved));
    let mut moving: Vec<Moving<'_>> = moving.collect();
    room::make(room, &mut moving);
    let mut of_jobs: [BTreeMap<JobId, Round>; 5] = Default::default();
    for moving in &moving {
        for switch in moving.switches() {
            let stages = moving.on(switch).stages();
            for (step, changes) in of_jobs.iter_mut().zip(stages) {
                if !changes.is_empty() {
                    let round = step.entry(moving.job).or_default();
                    round.insert(switch, changes);
                }
            }
        }
    }
    // Jobs whose old paths are already removed are not postponed.
    let waiting = || moving.iter().filter(|moving| !moving.removes_first);
    let wait: BTreeSet<JobId> = waiting().map(|it| it.job).collect();
    let between = waiting().filter(|moving| moving.transition == Transition::CommonBranches);
    let between: BTreeSet<JobId> = between.map(|it| it.job).collect();
    let rounds = rounds(room.fabric, before, after);
    let [make_room, carry, both, new, old] = of_jobs;
    let all = [make_room, carry].map(Step::brings).into_iter();
    let all = all.chain([Step::waits(both, &between), Step::waits(new, &wait)]);
    let all = all.chain(rounds.into_iter().map(Step::routes));
    let all = all.chain([Step::waits(old, &wait)]);
    all.filter(|step| !step.is_empty()).collect()
}

/// The changed routes, in rounds.
fn rounds(fabric: &Fabric, before: &Routes, after: &Routes) -> Vec<Round> {
    let mut rounds: BTreeMap<(bool, u32), Round> = BTreeMap::new();
    for id in fabric.host_ids() {
        let host = fabric.host(id);
        for switch in fabric.switch_ids() {
            let port = after.held(switch, id);
            let Some(port) = port.filter(|port| before.held(switch, id) != Some(*port)) else {
                continue;
            };
            let route = Entity::Route(table::Route {
                to: host.ip,
                port,
                mac: host.mac,
            });
            let round = rounds.entry(after.write_round(switch, host.attached.switch));
            round
                .or_default()
                .entry(switch)
                .or_default()
                .push(EntityChange::Modify(route));
        }
    }
    rounds.into_values().collect()
}

/// The transition of groups from one tree to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    /// Over both trees at once.
    BothTrees,
    /// Directly: the old tree is broken.
    Direct,
    /// Over the branches of both trees.
    CommonBranches,
}

/// A job during rerouting.
struct Moving<'a> {
    job: JobId,
    before: &'a JobPlan,
    after: &'a JobPlan,
    /// The entries for packets that go partly by old and partly by new routes.
    during: JobPlan,
    transition: Transition,
    /// True if its old paths are removed first, to make room.
    removes_first: bool,
}

impl<'a> Moving<'a> {
    fn new(fabric: &Fabric, routes: [&Routes; 2], lost: &Health, moved: &'a Moved) -> Self {
        let Moved {
            before: (was, before),
            after: (job, after),
        } = moved;
        let trees = [was.tree(), job.tree()];
        let paths = JobPaths::moving(fabric, routes, &job.members, trees);
        let during = plan::of_paths(fabric, job, &paths);
        // Compares the groups, not the trees: a job whose last rerouting did not complete belongs
        // to its new tree but may still have branches of the old one.
        let may_loop = || flood::may_loop(fabric, &job.members, [before, after], &during);
        let transition = match trees {
            [Some(old), Some(new)] if old != new => {
                if may_loop() {
                    Transition::CommonBranches
                } else if old.is_up(fabric, lost) {
                    Transition::BothTrees
                } else {
                    Transition::Direct
                }
            }
            [Some(_), Some(_)] if groups_change(before, after) && may_loop() => {
                Transition::CommonBranches
            }
            // The additional branches belong to another tree, which some members still use.
            [Some(_), Some(_)] => Transition::BothTrees,
            _ => Transition::Direct,
        };
        let mut moving = Moving {
            job: job.id,
            before,
            after,
            during,
            transition,
            removes_first: false,
        };
        let too_many = |at: SwitchId| {
            let replicas = moving.on(at).replicas_of_both();
            replicas > fabric.switch(at).limits.group_replicas as usize
        };
        if transition == Transition::BothTrees && moving.switches().into_iter().any(too_many) {
            moving.transition = Transition::Direct;
        }
        moving
    }

    /// Removes the old paths first, then writes the new ones directly.
    fn remove_first(&mut self) {
        self.removes_first = true;
        self.during = JobPlan::new();
        self.transition = Transition::Direct;
    }

    fn switches(&self) -> BTreeSet<SwitchId> {
        let plans = [self.before, self.after, &self.during];
        plans
            .into_iter()
            .flat_map(|plan| plan.keys())
            .copied()
            .collect()
    }

    fn on(&self, switch: SwitchId) -> OnSwitch<'_> {
        OnSwitch {
            before: self.before.get(&switch),
            after: self.after.get(&switch),
            during: self.during.get(&switch),
            transition: self.transition,
            removes_first: self.removes_first,
        }
    }
}

/// A rerouted job on one switch.
struct OnSwitch<'a> {
    before: Option<&'a SwitchPlan>,
    after: Option<&'a SwitchPlan>,
    during: Option<&'a SwitchPlan>,
    transition: Transition,
    removes_first: bool,
}

fn entities(plan: Option<&SwitchPlan>) -> impl Iterator<Item = &Entity> {
    plan.into_iter().flat_map(SwitchPlan::entities)
}

fn group(plan: Option<&SwitchPlan>) -> Option<&Group> {
    entities(plan).find_map(|entity| match entity {
        Entity::Group(group) => Some(group),
        _ => None,
    })
}

/// True if a group exists before and after, and changes.
fn groups_change(before: &JobPlan, after: &JobPlan) -> bool {
    before.iter().any(|(switch, was)| {
        let groups = (group(Some(was)), group(after.get(switch)));
        matches!(groups, (Some(was), Some(will)) if was != will)
    })
}

fn row(plan: Option<&SwitchPlan>) -> Option<&table::JobRow> {
    entities(plan).find_map(|entity| match entity {
        Entity::Job(row) => Some(row),
        _ => None,
    })
}

impl OnSwitch<'_> {
    /// The changes that make room, those of steps 1, 2 and 3, and those of the last step.
    fn stages(&self) -> [Vec<EntityChange>; 5] {
        let [both, new] = self.groups();
        let removed = self.removals();
        let (first, last) = match self.removes_first {
            true => (removed, Vec::new()),
            false => (Vec::new(), removed),
        };
        [first, self.additions(), both, new, last]
    }

    /// The number of replicas of a group with the branches of both trees.
    fn replicas_of_both(&self) -> usize {
        let groups = [group(self.before), group(self.after)].into_iter();
        let replicas = groups.flatten().flat_map(|group| &group.replicas);
        replicas.collect::<BTreeSet<_>>().len()
    }

    /// The entries for mixed routes beyond the old and new ones; the job's row and group are
    /// handled separately.
    fn mixed_routes(&self) -> impl Iterator<Item = &Entity> {
        let has_row = row(self.before).or(row(self.after)).is_some();
        entities(self.during).filter(move |entity| match entity {
            Entity::Group(_) => false,
            Entity::Job(_) => !has_row,
            _ => true,
        })
    }

    fn additions(&self) -> Vec<EntityChange> {
        let had: HashSet<&Entity> = entities(self.before).collect();
        let mut added: Vec<&Entity> = Vec::new();
        let mut seen: HashSet<&Entity> = HashSet::new();
        let own = entities(self.after);
        for entity in own.chain(self.mixed_routes()) {
            let changes = match entity {
                Entity::Group(_) => group(self.before).is_some(),
                // A job that loses its group keeps it until the last step.
                Entity::Job(row) => self::row(self.before).is_some() && row.group.is_none(),
                _ => false,
            };
            if !changes && !had.contains(entity) && seen.insert(entity) {
                added.push(entity);
            }
        }
        added.sort_by_key(|entity| entity.stage());
        let change = |entity: &Entity| match entity {
            Entity::Job(_) if row(self.before).is_some() => EntityChange::Modify(entity.clone()),
            _ => EntityChange::Insert(entity.clone()),
        };
        added.into_iter().map(change).collect()
    }

    /// The changes of a group that exists before and after, in two rounds.
    fn groups(&self) -> [Vec<EntityChange>; 2] {
        let (Some(was), Some(will)) = (group(self.before), group(self.after)) else {
            return Default::default();
        };
        if was == will {
            return Default::default();
        }
        let old: BTreeSet<&GroupReplica> = was.replicas.iter().collect();
        let new: BTreeSet<&GroupReplica> = will.replicas.iter().collect();
        let replicas: BTreeSet<GroupReplica> = match self.transition {
            Transition::BothTrees => old.union(&new).map(|replica| **replica).collect(),
            Transition::Direct => new.iter().map(|replica| **replica).collect(),
            Transition::CommonBranches => old.intersection(&new).map(|replica| **replica).collect(),
        };
        let set = |replicas: Vec<GroupReplica>| {
            let id = will.id;
            vec![EntityChange::Modify(Entity::Group(Group { id, replicas }))]
        };
        let is = |other: &BTreeSet<&GroupReplica>| replicas.iter().eq(other.iter().copied());
        let (is_old, is_new) = (is(&old), is(&new));
        let first = match (is_old, is_new) {
            (true, _) => Vec::new(),
            (_, true) => set(will.replicas.clone()),
            _ => set(replicas.into_iter().collect()),
        };
        let second = match is_new {
            true => Vec::new(),
            false => set(will.replicas.clone()),
        };
        [first, second]
    }

    fn removals(&self) -> Vec<EntityChange> {
        let stays: HashSet<&Entity> = entities(self.after).collect();
        let mut seen: HashSet<&Entity> = HashSet::new();
        let own = entities(self.before);
        let mut removed: Vec<&Entity> = (own.chain(self.mixed_routes()))
            .filter(|entity| {
                let only_changed = match entity {
                    Entity::Group(_) => group(self.after).is_some(),
                    Entity::Job(_) => row(self.after).is_some(),
                    Entity::Counter(_) => true,
                    _ => false,
                };
                !only_changed && !stays.contains(entity) && seen.insert(entity)
            })
            .collect();
        removed.sort_by_key(|entity| std::cmp::Reverse(entity.stage()));
        let mut changes: Vec<EntityChange> = (removed.into_iter())
            .map(|entity| EntityChange::Delete(entity.clone()))
            .collect();
        // Admissions first, then the group's reference in the job's row, then the group.
        if let (Some(was), Some(will)) = (row(self.before), row(self.after))
            && was != will
            && will.group.is_none()
        {
            let carries =
                |change: &EntityChange| !matches!(change, EntityChange::Delete(Entity::Source(_)));
            let at = changes.iter().position(carries).unwrap_or(changes.len());
            changes.insert(at, EntityChange::Modify(Entity::Job(will.clone())));
        }
        changes
    }
}
