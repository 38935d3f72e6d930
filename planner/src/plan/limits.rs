//! Checks that entities fit, before any is written.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Display;

use ultima_p4::names::{counter, loss, share};
use ultima_p4runtime::names::Names;

use super::{Entity, SwitchPlan, cuts, meter, of_fabric, table};
use crate::fabric::{Fabric, Switch, SwitchId};
use crate::job::Refusal;
use crate::program::Program;
use crate::routing::Routes;

/// Checks that the program has all tables, counters and meters, and that the fabric's own entities
/// fit on `switch`. A warning of [`uncut`](super::uncut) is not an error.
///
/// # Errors
/// The missing name, or the first exceeded limit.
pub fn check_fabric(
    fabric: &Fabric,
    routes: &Routes,
    program: &Program,
    switch: SwitchId,
) -> Result<(), Refusal> {
    let names = program.names();
    let here = fabric.switch(switch);
    if here.target.program != program.form() {
        let target = here.target.name;
        return Err(here.refuses(format!(
            "target {target} cannot run the controller's program, which is for {}; pass the program for {target} with --program (all switches of a fabric must be of one kind)",
            program.form()
        )));
    }
    table::NAMES
        .into_iter()
        .try_for_each(|table| names.table(table).map(|_| ()))?;
    (counter::BY_JOB.into_iter())
        .chain(counter::BY_SHARE)
        .chain(counter::GAPS)
        .chain(counter::BY_SOURCE)
        .try_for_each(|counter| names.counter(counter).map(|_| ()))?;
    meter::NAMES
        .into_iter()
        .try_for_each(|meter| names.meter(meter).map(|_| ()))?;
    fits_digest(here, names)?;
    let cuts = cuts(fabric, names, switch);
    fits_sessions(here, &cuts)?;
    let all = of_fabric(fabric, routes, switch);
    Usage::of(all.iter().chain(&cuts)).check(here, names)
}

impl Switch {
    /// An exceeded limit of this switch.
    fn refuses(&self, reason: impl Display) -> Refusal {
        let name = &self.name;
        Refusal::no_room(Some(name), format!("switch {name}: {reason}"))
    }
}

/// Checks that the target has the sessions that trimming needs.
fn fits_sessions(switch: &Switch, cuts: &[Entity]) -> Result<(), Refusal> {
    let highest = cuts.iter().filter_map(|entity| match entity {
        Entity::CutSession(session) => Some(session.id),
        _ => None,
    });
    let (needed, limit) = (highest.max().unwrap_or(0), switch.target.sessions);
    match needed > limit {
        false => Ok(()),
        true => Err(switch.refuses(format!(
            "{needed} mirror sessions are needed (one for loss reports and two for each port), but the target has {limit}; use fewer ports"
        ))),
    }
}

/// Checks that the target can carry the program's loss reports.
fn fits_digest(switch: &Switch, names: &Names) -> Result<(), Refusal> {
    let digest = names.digest(loss::DIGEST)?;
    let bits = |bitwidth: usize| bitwidth.next_multiple_of(8);
    let members = digest.members.iter();
    let needed: usize = members.map(|member| bits(member.bitwidth)).sum();
    match switch.target.digests.max_bits {
        Some(limit) if needed > limit as usize => {
            let target = switch.target.name;
            Err(switch.refuses(format!(
                "the program's digest has {needed} bits (its members take whole bytes), but target {target} supports at most {limit}; use the program for {target}"
            )))
        }
        _ => Ok(()),
    }
}

/// The used amounts of the limited resources of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    entries: BTreeMap<&'static str, usize>,
    groups: usize,
    nodes: usize,
}

impl Usage {
    /// The resources of these entities.
    pub fn of<'a>(entities: impl IntoIterator<Item = &'a Entity>) -> Self {
        let mut usage = Usage::default();
        for entity in entities {
            if let Some(table) = entity.table() {
                *usage.entries.entry(table).or_default() += 1;
            }
            if let Entity::Group(group) = entity {
                usage.groups += 1;
                usage.nodes += group.nodes();
            }
        }
        usage
    }

    /// The number of entries in a table.
    pub fn entries(&self, table: &str) -> usize {
        self.entries.get(table).copied().unwrap_or_default()
    }

    /// The number of multicast groups, and of their nodes.
    pub fn replication(&self) -> (usize, usize) {
        (self.groups, self.nodes)
    }

    /// Adds other entities' resources.
    pub fn add(&mut self, other: &Usage) {
        for (table, entries) in &other.entries {
            *self.entries.entry(table).or_default() += entries;
        }
        self.groups += other.groups;
        self.nodes += other.nodes;
    }

    /// Subtracts added resources.
    pub fn remove(&mut self, other: &Usage) {
        for (table, entries) in &other.entries {
            if let Entry::Occupied(mut held) = self.entries.entry(table) {
                *held.get_mut() -= entries;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
        self.groups -= other.groups;
        self.nodes -= other.nodes;
    }

    /// Checks that a job's entities fit on `switch` in addition to these: in the program's tables
    /// and counters and in the target's replication engine.
    ///
    /// # Errors
    /// The first exceeded limit.
    pub(crate) fn check_with(
        &self,
        switch: &Switch,
        names: &Names,
        plan: &SwitchPlan,
    ) -> Result<(), Refusal> {
        let mut all = Usage::of(plan.entities());
        all.add(self);
        all.check(switch, names)?;
        plan.entities()
            .try_for_each(|entity| fits(entity, switch, names))
    }

    /// Checks that `switch` has room for these resources.
    pub(crate) fn check(&self, switch: &Switch, names: &Names) -> Result<(), Refusal> {
        for (&table, &needed) in &self.entries {
            let size = names.table(table)?.size;
            if needed as u64 > size {
                return Err(switch.refuses(format!(
                    "table {table} needs {needed} entries, but its size in the program is {size}"
                )));
            }
        }
        let (groups, nodes) = (switch.limits.groups, switch.limits.nodes);
        if self.groups > groups as usize {
            return Err(switch.refuses(format!(
                "{} multicast groups are needed, but the limit is {groups} (groups); delete a job, or use `gather: unicast`",
                self.groups
            )));
        }
        if self.nodes > nodes as usize {
            return Err(switch.refuses(format!(
                "the groups need {} replication nodes, but the limit is {nodes} (nodes); delete a job, or use `gather: unicast`",
                self.nodes
            )));
        }
        Ok(())
    }
}

/// Checks the limits of a single entity.
fn fits(entity: &Entity, switch: &Switch, names: &Names) -> Result<(), Refusal> {
    let (array, index, size) = match entity {
        Entity::Group(group) => {
            let (needed, limit) = (group.replicas.len(), switch.limits.group_replicas);
            return match needed > limit as usize {
                false => Ok(()),
                true => Err(switch.refuses(format!(
                    "the group needs {needed} replicas, but the limit is {limit} (group_replicas); use fewer members there, or `gather: unicast`"
                ))),
            };
        }
        Entity::Counter(cell) => (cell.counter, cell.index, names.counter(cell.counter)?.size),
        // The share's meter is configured when ports are divided.
        Entity::Share(row) => {
            let size = names.meter(share::METER)?.size;
            (share::METER, row.index.0.into(), size)
        }
        _ => return Ok(()),
    };
    match u64::from(index) < size {
        true => Ok(()),
        false => Err(switch.refuses(format!(
            "{array} has {size} indices, but index {index} is needed; delete a job"
        ))),
    }
}
