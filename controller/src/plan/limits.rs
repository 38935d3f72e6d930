//! Whether a job fits, before anything is written.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ultima_p4::names::{counter, loss, share};
use ultima_p4runtime::names::{NameError, Names};

use super::{CounterCell, Entity, SwitchPlan, cuts, meter, of_fabric, table};
use crate::fabric::{Fabric, Switch, SwitchId};
use crate::program::Program;
use crate::routing::Routes;
use crate::target::ProgramForm;

/// What a switch has not room for, with the number that is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The program lacks a table, counter or meter.
    #[error("{0}; give the controller Ultima's program and its P4Info, or ones derived from them")]
    Name(#[from] NameError),
    /// Too many entries in a table.
    #[error(
        "switch {switch}: table {table} would hold {needed} entries, and its size in the program is {size}"
    )]
    Table {
        /// The switch's name.
        switch: String,
        /// The table's name.
        table: &'static str,
        /// Entries with the new job's.
        needed: usize,
        /// Entries that it takes.
        size: u64,
    },
    /// Too many copies in the job's group.
    #[error(
        "switch {switch}: the group would have {needed} replicas, and its limit is {limit} (group_replicas); use fewer members there, or `gather: unicast`"
    )]
    Replicas {
        /// The switch's name.
        switch: String,
        /// Replicas that the job needs.
        needed: usize,
        /// Replicas of one group.
        limit: u32,
    },
    /// Too many groups.
    #[error(
        "switch {switch}: it would hold {needed} multicast groups, and its limit is {limit} (groups); delete a job, or use `gather: unicast`"
    )]
    Groups {
        /// The switch's name.
        switch: String,
        /// Groups with the new job's.
        needed: usize,
        /// Groups that it takes.
        limit: u32,
    },
    /// Too many nodes over all groups.
    #[error(
        "switch {switch}: its groups would need {needed} nodes of the replication engine, and its limit is {limit} (nodes); delete a job, or use `gather: unicast`"
    )]
    Nodes {
        /// The switch's name.
        switch: String,
        /// Nodes with the new job's.
        needed: usize,
        /// Nodes that it has.
        limit: u32,
    },
    /// The program is for other targets.
    #[error(
        "switch {switch}: target {target} does not run the controller's program, which is for {program}; give the one for {target} with --program, and let all switches of a fabric be of one kind"
    )]
    Program {
        /// The switch's name.
        switch: String,
        /// Its target.
        target: &'static str,
        /// What the program is for.
        program: ProgramForm,
    },
    /// The program's digest is longer than the target's can be.
    #[error(
        "switch {switch}: the members of the program's digest take {needed} bits, each in whole bytes, and those of target {target} at most {limit}; give the controller the program for {target}"
    )]
    Digest {
        /// The switch's name.
        switch: String,
        /// Its target.
        target: &'static str,
        /// Bits that the digest's members take, each in whole bytes.
        needed: usize,
        /// Bits that one may have.
        limit: u32,
    },
    /// Too many ports at which packets may be cut.
    #[error(
        "switch {switch}: {needed} mirror sessions are needed, one to tell of losses and two for each port, and its target has {limit}; use fewer ports"
    )]
    Sessions {
        /// The switch's name.
        switch: String,
        /// The highest session that is needed.
        needed: u32,
        /// The highest that there is.
        limit: u32,
    },
    /// The program's arrays of counters or meters have no place left.
    #[error("switch {switch}: index {index} is needed, and {array} has {size}; delete a job")]
    Index {
        /// The switch's name.
        switch: String,
        /// The array's name.
        array: &'static str,
        /// The place needed.
        index: u32,
        /// Places that there are, from 0.
        size: u64,
    },
}

impl LimitError {
    /// The name of the switch that has not the room; none where it is the program that lacks something.
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

/// Whether the program has all tables, counters and meters, and the fabric's own entities fit on `switch`. What
/// [`uncut`](super::uncut) has to say of it is no error.
///
/// # Errors
/// What is missing, or the first limit that they are over.
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

/// Whether the target has a session for each way in which packets are cut.
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

/// Whether the target can carry what the program tells of losses.
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

/// How much is held on one switch of what there is a limit of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    entries: BTreeMap<&'static str, usize>,
    groups: usize,
    nodes: usize,
}

impl Usage {
    /// What these entities take.
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

    /// Entries in a table.
    pub fn entries(&self, table: &str) -> usize {
        self.entries.get(table).copied().unwrap_or_default()
    }

    /// Multicast groups, and the nodes of all of them.
    pub fn replication(&self) -> (usize, usize) {
        (self.groups, self.nodes)
    }

    /// Adds what something else takes.
    pub fn add(&mut self, other: &Usage) {
        for (table, entries) in &other.entries {
            *self.entries.entry(table).or_default() += entries;
        }
        self.groups += other.groups;
        self.nodes += other.nodes;
    }

    /// Takes away what was added.
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

    /// Whether a job's part of `switch` fits beside this: in the program's tables and counters, in the target's
    /// replication engine.
    ///
    /// # Errors
    /// The first limit that it is over.
    pub fn check_with(
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

    /// Whether there is so much room on `switch`.
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

/// Limits of a single entity.
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
        // Its meter is configured when ports are divided.
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
