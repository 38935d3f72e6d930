//! Checks that entities fit, before any is written.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ultima_p4::names::{counter, loss, share};
use ultima_p4runtime::names::{NameError, Names};

use super::{CounterCell, Entity, SwitchPlan, cuts, meter, of_fabric, table};
use crate::fabric::{Fabric, Switch, SwitchId};
use crate::program::Program;
use crate::routing::Routes;
use crate::target::ProgramForm;

/// A limit of a switch that is exceeded, with the numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The program lacks a table, counter or meter.
    #[error("{0}; use Ultima's program and P4Info, or a program derived from it")]
    Name(#[from] NameError),
    /// Too many entries in a table.
    #[error(
        "switch {switch}: table {table} needs {needed} entries, but its size in the program is {size}"
    )]
    Table {
        /// The switch's name.
        switch: String,
        /// The table's name.
        table: &'static str,
        /// The entries, including the new job's.
        needed: usize,
        /// The table's size.
        size: u64,
    },
    /// Too many replicas in a job's group.
    #[error(
        "switch {switch}: the group needs {needed} replicas, but the limit is {limit} (group_replicas); use fewer members there, or `gather: unicast`"
    )]
    Replicas {
        /// The switch's name.
        switch: String,
        /// The replicas of the job's group.
        needed: usize,
        /// The limit of replicas of a group.
        limit: u32,
    },
    /// Too many groups.
    #[error(
        "switch {switch}: {needed} multicast groups are needed, but the limit is {limit} (groups); delete a job, or use `gather: unicast`"
    )]
    Groups {
        /// The switch's name.
        switch: String,
        /// The groups, including the new job's.
        needed: usize,
        /// The limit of groups.
        limit: u32,
    },
    /// Too many nodes over all groups.
    #[error(
        "switch {switch}: the groups need {needed} replication nodes, but the limit is {limit} (nodes); delete a job, or use `gather: unicast`"
    )]
    Nodes {
        /// The switch's name.
        switch: String,
        /// The nodes, including the new job's.
        needed: usize,
        /// The limit of nodes.
        limit: u32,
    },
    /// The program is for other targets.
    #[error(
        "switch {switch}: target {target} cannot run the controller's program, which is for {program}; pass the program for {target} with --program (all switches of a fabric must be of one kind)"
    )]
    Program {
        /// The switch's name.
        switch: String,
        /// Its target.
        target: &'static str,
        /// The program's target.
        program: ProgramForm,
    },
    /// The program's digest is too long for the target.
    #[error(
        "switch {switch}: the program's digest has {needed} bits (its members take whole bytes), but target {target} supports at most {limit}; use the program for {target}"
    )]
    Digest {
        /// The switch's name.
        switch: String,
        /// Its target.
        target: &'static str,
        /// The bits of the digest's members, each in whole bytes.
        needed: usize,
        /// The limit of bits.
        limit: u32,
    },
    /// Too many ports with mirror sessions.
    #[error(
        "switch {switch}: {needed} mirror sessions are needed (one for loss reports and two for each port), but the target has {limit}; use fewer ports"
    )]
    Sessions {
        /// The switch's name.
        switch: String,
        /// The highest session id needed.
        needed: u32,
        /// The target's highest session id.
        limit: u32,
    },
    /// A counter or meter array of the program is full.
    #[error(
        "switch {switch}: {array} has {size} indices, but index {index} is needed; delete a job"
    )]
    Index {
        /// The switch's name.
        switch: String,
        /// The array's name.
        array: &'static str,
        /// The index needed.
        index: u32,
        /// The array's size; indices start at 0.
        size: u64,
    },
}

impl LimitError {
    /// The name of the switch; none if the program lacks something.
    pub fn switch(&self) -> Option<&str> {
        match self {
            LimitError::Name(_) => None,
            LimitError::Table { switch, .. }
            | LimitError::Replicas { switch, .. }
            | LimitError::Groups { switch, .. }
            | LimitError::Nodes { switch, .. }
            | LimitError::Program { switch, .. }
            | LimitError::Digest { switch, .. }
            | LimitError::Sessions { switch, .. }
            | LimitError::Index { switch, .. } => Some(switch),
        }
    }
}

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
) -> Result<(), LimitError> {
    let names = program.names();
    let Switch { name, target, .. } = fabric.switch(switch);
    if target.program != program.form() {
        return Err(LimitError::Program {
            switch: name.clone(),
            target: target.name,
            program: program.form(),
        });
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
    fits_digest(fabric.switch(switch), names)?;
    let cuts = cuts(fabric, names, switch);
    fits_sessions(fabric.switch(switch), &cuts)?;
    let all = of_fabric(fabric, routes, switch);
    Usage::of(all.iter().chain(&cuts)).check(fabric.switch(switch), names)
}

/// Checks that the target has a session for each way of trimming.
fn fits_sessions(switch: &Switch, cuts: &[Entity]) -> Result<(), LimitError> {
    let highest = cuts.iter().filter_map(|entity| match entity {
        Entity::CutSession(session) => Some(session.id),
        _ => None,
    });
    let (needed, limit) = (highest.max().unwrap_or(0), switch.target.sessions);
    match needed > limit {
        false => Ok(()),
        true => Err(LimitError::Sessions {
            switch: switch.name.clone(),
            needed,
            limit,
        }),
    }
}

/// Checks that the target can carry the program's loss reports.
fn fits_digest(switch: &Switch, names: &Names) -> Result<(), LimitError> {
    let digest = names.digest(loss::DIGEST)?;
    let bits = |bitwidth: usize| bitwidth.next_multiple_of(8);
    let members = digest.members.iter();
    let needed: usize = members.map(|member| bits(member.bitwidth)).sum();
    match switch.target.digests.max_bits {
        Some(limit) if needed > limit as usize => Err(LimitError::Digest {
            switch: switch.name.clone(),
            target: switch.target.name,
            needed,
            limit,
        }),
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
    ) -> Result<(), LimitError> {
        let mut all = Usage::of(plan.entities());
        all.add(self);
        all.check(switch, names)?;
        plan.entities()
            .try_for_each(|entity| fits(entity, switch, names))
    }

    /// Checks that `switch` has room for these resources.
    pub(crate) fn check(&self, switch: &Switch, names: &Names) -> Result<(), LimitError> {
        for (&table, &needed) in &self.entries {
            let size = names.table(table)?.size;
            if needed as u64 > size {
                return Err(LimitError::Table {
                    switch: switch.name.clone(),
                    table,
                    needed,
                    size,
                });
            }
        }
        let name = || switch.name.clone();
        if self.groups > switch.limits.groups as usize {
            let limit = switch.limits.groups;
            return Err(LimitError::Groups {
                switch: name(),
                needed: self.groups,
                limit,
            });
        }
        if self.nodes > switch.limits.nodes as usize {
            let limit = switch.limits.nodes;
            return Err(LimitError::Nodes {
                switch: name(),
                needed: self.nodes,
                limit,
            });
        }
        Ok(())
    }
}

/// Checks the limits of a single entity.
fn fits(entity: &Entity, switch: &Switch, names: &Names) -> Result<(), LimitError> {
    match entity {
        Entity::Group(group) if group.copies.len() > switch.limits.group_replicas as usize => {
            Err(LimitError::Replicas {
                switch: switch.name.clone(),
                needed: group.copies.len(),
                limit: switch.limits.group_replicas,
            })
        }
        Entity::Counter(CounterCell { counter, index }) => {
            has_place(switch, counter, *index, names.counter(counter)?.size)
        }
        // The share's meter is configured when ports are divided.
        Entity::Share(row) => {
            let size = names.meter(share::METER)?.size;
            has_place(switch, share::METER, row.index.0.into(), size)
        }
        _ => Ok(()),
    }
}

fn has_place(
    switch: &Switch,
    array: &'static str,
    index: u32,
    size: u64,
) -> Result<(), LimitError> {
    match u64::from(index) < size {
        true => Ok(()),
        false => Err(LimitError::Index {
            switch: switch.name.clone(),
            array,
            index,
            size,
        }),
    }
}
