//! From what switches hold to what they should after parts of the fabric went, came back or were drained, in an order in which nothing
//! is lost that the fabric could still carry: the new ways are there everywhere before the old ones are taken.
//!
//! [`rounds`] says what is written, in rounds; a round is whole on all switches before the next begins. Within one, switches are in no
//! order, so what the packets of a moment meet is any mixture of two neighbouring rounds:
//!
//! 1. What carries on new ways, and then what admits there: also packets that go part of their way by old routes and the rest by
//!    new ones. Nothing uses it yet.
//! 2. Groups get the new tree's branches beside the old one's: every packet goes by both trees, so that members hear some twice, which they
//!    know. (Not where the old tree is broken anyhow, and not where packets could then go [round](flood): there groups keep only
//!    what both trees have, and members miss some.)
//! 3. Groups lose the old tree's branches.
//! 4. Routes, for each host the nearest switches first ([`Routes::turn`]): what comes to a switch with its new port finds only new ports
//!    from there on.
//! 5. What only the old ways needed is taken off: what admits before what carries.

mod flood;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::Update;

use crate::fabric::{Fabric, Health, SwitchId};
use crate::install::Untranslatable;
use crate::job::Job;
use crate::plan::{self, Copy, Entity, Group, JobPlan, SwitchPlan, Ways, table};
use crate::routing::Routes;

/// A job, and what it needs.
pub type Planned = (Arc<Job>, Arc<JobPlan>);

/// A job that moves.
#[derive(Clone, Debug)]
pub struct Moved {
    /// As it was.
    pub before: Planned,
    /// As it will be.
    pub after: Planned,
}

/// What is done to one entity of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It comes.
    Put(Entity),
    /// What has its key says this from now on.
    Set(Entity),
    /// It goes.
    Drop(Entity),
}

impl Change {
    /// The update that does it; none where there is nothing to take off.
    ///
    /// # Errors
    /// The program has no place for it.
    pub fn update(&self, names: &Names) -> Result<Option<Update>, Untranslatable> {
        let (Change::Put(entity) | Change::Set(entity) | Change::Drop(entity)) = self;
        let update = match self {
            Change::Put(_) => entity.creation(names).map(Some),
            Change::Set(_) => entity.creation(names).map(|creation| {
                let whole = creation.entity.unwrap_or_default();
                Some(Update::modify(whole))
            }),
            Change::Drop(_) => entity.removal(names),
        };
        update.map_err(|error| Untranslatable::new(entity, error))
    }
}

/// What is written at the same time, in order on each switch.
pub type Round = BTreeMap<SwitchId, Vec<Change>>;

/// All that is written when `jobs` move as the routes change from `before` to `after`; only rounds in which there is something.
/// `lost` is what carries nothing any more, as against what is only to be left alone.
pub fn rounds(
    fabric: &Fabric,
    (before, after): (&Routes, &Routes),
    lost: &Health,
    jobs: &[Moved],
) -> Vec<Round> {
    let mut job_rounds: [Round; 4] = Default::default();
    for moved in jobs {
        let moving = Moving::new(fabric, (before, after), lost, moved);
        for switch in moving.switches() {
            moving.on(switch).add_to(&mut job_rounds, switch);
        }
    }
    let [carry, both, new, old] = job_rounds;
    let turns = turns(fabric, before, after);
    let all = [carry, both, new].into_iter().chain(turns).chain([old]);
    all.filter(|round| !round.is_empty()).collect()
}

/// The routes that change, in turns.
fn turns(fabric: &Fabric, before: &Routes, after: &Routes) -> Vec<Round> {
    let mut turns: BTreeMap<(bool, u32), Round> = BTreeMap::new();
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
            let turn = turns.entry(after.turn(switch, host.attached.switch));
            turn.or_default()
                .entry(switch)
                .or_default()
                .push(Change::Set(route));
        }
    }
    turns.into_values().collect()
}

/// How groups go over from one tree to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passing {
    /// By both trees at once.
    Both,
    /// At once: the old tree is broken.
    Straight,
    /// By what both trees have.
    Between,
}

/// A job on its way.
struct Moving<'a> {
    before: &'a JobPlan,
    after: &'a JobPlan,
    /// What packets need that go by old and new routes.
    amid: JobPlan,
    passing: Passing,
}

impl<'a> Moving<'a> {
    fn new(fabric: &Fabric, routes: (&Routes, &Routes), lost: &Health, moved: &'a Moved) -> Self {
        let Moved {
            before: (was, before),
            after: (job, after),
        } = moved;
        let trees = [was.tree(), job.tree()];
        let ways = Ways::moving(fabric, routes, &job.members, trees);
        let passing = match trees {
            [Some(old), Some(new)] if old != new => {
                if flood::goes_round(fabric, &ways, &job.members, [old, new]) {
                    Passing::Between
                } else if old.is_up(fabric, lost) {
                    Passing::Both
                } else {
                    Passing::Straight
                }
            }
            _ => Passing::Straight,
        };
        Moving {
            before,
            after,
            amid: plan::of_ways(fabric, job, &ways),
            passing,
        }
    }

    fn switches(&self) -> BTreeSet<SwitchId> {
        let plans = [self.before, self.after, &self.amid];
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
            amid: self.amid.get(&switch),
            passing: self.passing,
        }
    }
}

/// A moving job on one switch.
struct OnSwitch<'a> {
    before: Option<&'a SwitchPlan>,
    after: Option<&'a SwitchPlan>,
    amid: Option<&'a SwitchPlan>,
    passing: Passing,
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

fn row(plan: Option<&SwitchPlan>) -> Option<&table::JobRow> {
    entities(plan).find_map(|entity| match entity {
        Entity::Job(row) => Some(row),
        _ => None,
    })
}

/// The order of writing within a switch.
fn stage(entity: &Entity) -> u8 {
    match entity {
        Entity::Source(_) => 2,
        Entity::Job(_) => 1,
        _ => 0,
    }
}

impl OnSwitch<'_> {
    fn add_to(&self, rounds: &mut [Round; 4], switch: SwitchId) {
        let [both, new] = self.groups();
        let all = [self.coming(), both, new, self.leaving()];
        for (round, changes) in rounds.iter_mut().zip(all) {
            if !changes.is_empty() {
                round.entry(switch).or_default().extend(changes);
            }
        }
    }

    /// What is needed beside what was and what will be: of the job's row and group these decide.
    fn on_the_way(&self) -> impl Iterator<Item = &Entity> {
        let has_row = row(self.before).or(row(self.after)).is_some();
        entities(self.amid).filter(move |entity| match entity {
            Entity::Group(_) => false,
            Entity::Job(_) => !has_row,
            _ => true,
        })
    }

    fn coming(&self) -> Vec<Change> {
        let had: HashSet<&Entity> = entities(self.before).collect();
        let mut coming: Vec<&Entity> = Vec::new();
        let mut seen: HashSet<&Entity> = HashSet::new();
        let own = entities(self.after);
        for entity in own.chain(self.on_the_way()) {
            let changes = match entity {
                Entity::Group(_) => group(self.before).is_some(),
                // One that loses its group keeps it until the end.
                Entity::Job(row) => self::row(self.before).is_some() && row.group.is_none(),
                _ => false,
            };
            if !changes && !had.contains(entity) && seen.insert(entity) {
                coming.push(entity);
            }
        }
        coming.sort_by_key(|entity| stage(entity));
        let change = |entity: &Entity| match entity {
            Entity::Job(_) if row(self.before).is_some() => Change::Set(entity.clone()),
            _ => Change::Put(entity.clone()),
        };
        coming.into_iter().map(change).collect()
    }

    /// What becomes of a group that there was and will be, in two rounds.
    fn groups(&self) -> [Vec<Change>; 2] {
        let (Some(was), Some(will)) = (group(self.before), group(self.after)) else {
            return Default::default();
        };
        if was == will {
            return Default::default();
        }
        let old: BTreeSet<&Copy> = was.copies.iter().collect();
        let new: BTreeSet<&Copy> = will.copies.iter().collect();
        let copies: BTreeSet<Copy> = match self.passing {
            Passing::Both => old.union(&new).map(|copy| **copy).collect(),
            Passing::Straight => new.iter().map(|copy| **copy).collect(),
            Passing::Between => old.intersection(&new).map(|copy| **copy).collect(),
        };
        let set = |copies: Vec<Copy>| {
            let id = will.id;
            vec![Change::Set(Entity::Group(Group { id, copies }))]
        };
        let is = |other: &BTreeSet<&Copy>| copies.iter().eq(other.iter().copied());
        let (is_old, is_new) = (is(&old), is(&new));
        let first = match (is_old, is_new) {
            (true, _) => Vec::new(),
            (_, true) => set(will.copies.clone()),
            _ => set(copies.into_iter().collect()),
        };
        let second = match is_new {
            true => Vec::new(),
            false => set(will.copies.clone()),
        };
        [first, second]
    }

    fn leaving(&self) -> Vec<Change> {
        let stays: HashSet<&Entity> = entities(self.after).collect();
        let mut seen: HashSet<&Entity> = HashSet::new();
        let own = entities(self.before);
        let mut leaving: Vec<&Entity> = (own.chain(self.on_the_way()))
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
        leaving.sort_by_key(|entity| std::cmp::Reverse(stage(entity)));
        let mut changes: Vec<Change> = (leaving.into_iter())
            .map(|entity| Change::Drop(entity.clone()))
            .collect();
        // Who is admitted no more goes first, then the job's group from its row, then the group.
        if let (Some(was), Some(will)) = (row(self.before), row(self.after))
            && was != will
            && will.group.is_none()
        {
            let carries = |change: &Change| !matches!(change, Change::Drop(Entity::Source(_)));
            let at = changes.iter().position(carries).unwrap_or(changes.len());
            changes.insert(at, Change::Set(Entity::Job(will.clone())));
        }
        changes
    }
}
