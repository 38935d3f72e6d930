//! Causes of missing slots, and the place of a loss where a switch reported it.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operation::OperationId;

/// The cause of a missing contribution or aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// A switch removed its payload because the queue was full; its header arrived (TRIMMED).
    Trimmed,
    /// A switch removed its payload because its budget was used up; its header arrived (LATE).
    Late,
    /// A packet arrived that its sender sent later: it was dropped without a report.
    Overtaken,
    /// Its sender was silent for several operations, so this rank did not wait for it.
    Silent,
    /// A bound passed while it was outstanding.
    Overdue,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 5] = [
        Cause::Trimmed,
        Cause::Late,
        Cause::Overtaken,
        Cause::Silent,
        Cause::Overdue,
    ];

    /// The name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Trimmed => "trimmed",
            Cause::Late => "late",
            Cause::Overtaken => "overtaken",
            Cause::Silent => "silent",
            Cause::Overdue => "overdue",
        }
    }
}

/// The direction of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// A contribution, on its way to the owner.
    Scatter,
    /// An aggregate, on its way from the owner.
    Gather,
}

/// A slot that a switch reported as dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTrimmed {
    /// The operation.
    pub id: OperationId,
    /// Contribution or aggregate.
    pub phase: Phase,
    /// The rank that sent it.
    pub source: u16,
    /// The owner of its shard.
    pub owner: u16,
    /// The slot's number in that shard.
    pub slot: u32,
    /// [`Cause::Trimmed`] or [`Cause::Late`].
    pub cause: Cause,
    /// Number of switches that its header passed; one of them removed the payload.
    pub hops: u8,
    /// The longest time that it spent in one queue.
    pub path_queue: Duration,
}

/// Payloads of one operation that switches removed on the way to this rank, for one number of hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimmedByHops {
    /// Number of switches that the headers passed.
    pub hops: u8,
    /// Removed because a queue was full.
    pub trimmed: u64,
    /// Removed because the budget was used up.
    pub late: u64,
    /// The longest time that any of them spent in one queue.
    pub longest_queue: Duration,
}

impl AddAssign for TrimmedByHops {
    /// Adds those of another part of the operation, for the same number of hops.
    fn add_assign(&mut self, other: Self) {
        self.trimmed += other.trimmed;
        self.late += other.late;
        self.longest_queue = self.longest_queue.max(other.longest_queue);
    }
}

/// An operation's [`TrimmedByHops`] by hops. The width of the header field bounds their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByHops(Vec<TrimmedByHops>);

impl ByHops {
    /// Counts a slot that a switch reported as dropped.
    pub(crate) fn count(&mut self, trimmed: &SlotTrimmed) {
        let at = self.0.partition_point(|entry| entry.hops < trimmed.hops);
        if self
            .0
            .get(at)
            .is_none_or(|entry| entry.hops != trimmed.hops)
        {
            let entry = TrimmedByHops {
                hops: trimmed.hops,
                ..TrimmedByHops::default()
            };
            self.0.insert(at, entry);
        }
        let entry = &mut self.0[at];
        match trimmed.cause {
            Cause::Late => entry.late += 1,
            _ => entry.trimmed += 1,
        }
        entry.longest_queue = entry.longest_queue.max(trimmed.path_queue);
    }

    /// Takes all entries, fewest hops first.
    pub(crate) fn take(&mut self) -> Vec<TrimmedByHops> {
        std::mem::take(&mut self.0)
    }
}

/// Number of missing slots by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Causes([u64; Cause::ALL.len()]);

impl Causes {
    pub(crate) fn count(&mut self, cause: Cause, slots: u64) {
        self.0[cause as usize] += slots;
    }

    /// Slots missing for `cause`.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Slots missing for any cause.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl AddAssign for Causes {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}

/// Slots that a rank missed, by phase and cause. Every slot that was not there in time counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Contributions missing from closed slots of this rank's own shard.
    pub scatter: Causes,
    /// Aggregates of other ranks that were replaced by zero.
    pub gather: Causes,
}

impl AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.scatter += other.scatter;
        self.gather += other.gather;
    }
}
