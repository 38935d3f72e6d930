//! Why a slot did not come, and what is known of where.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operation::OperationId;

/// Why a contribution or an aggregate is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// A switch cut its payload because the queue onward was full; its header came (TRIMMED).
    Trimmed,
    /// A switch cut its payload because its budget had run out; its header came (LATE).
    Late,
    /// Something came that its sender sent later: it was lost, and nobody said where.
    Overtaken,
    /// Its sender was silent for several operations and was not waited for.
    Silent,
    /// A bound passed before anything was known of it.
    Overdue,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 5] = [
        Cause::Trimmed,
        Cause::Late,
        Cause::Overtaken,
        Cause::Silent,
        Cause::Overdue,
    ];

    /// As reports and metrics have it.
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

/// Which way a slot was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// A contribution, to the owner.
    Scatter,
    /// An aggregate, from the owner.
    Gather,
}

/// A slot of which a switch said that it will not come: what, why and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGone {
    /// The operation.
    pub id: OperationId,
    /// Contribution or aggregate.
    pub phase: Phase,
    /// Who sent it.
    pub source: u16,
    /// Whose shard it belongs to.
    pub owner: u16,
    /// The slot in that shard.
    pub slot: u32,
    /// [`Cause::Trimmed`] or [`Cause::Late`].
    pub cause: Cause,
    /// Switches that its header passed: one of them cut it.
    pub hops: u8,
    /// The longest time that it spent in one queue on the way.
    pub path_queue: Duration,
}

/// What switches cut of an operation's packets to this rank, of those whose headers passed so many switches on their
/// way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOnTheWay {
    /// Switches that the headers passed.
    pub hops: u8,
    /// Cut because a queue was full.
    pub trimmed: u64,
    /// Cut because their budget had run out.
    pub late: u64,
    /// The longest that any of them spent in one queue.
    pub longest_queue: Duration,
}

/// An operation's [`CutOnTheWay`], by hops; the header's field bounds how many there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways(Vec<CutOnTheWay>);

impl Ways {
    /// A switch said that a slot is gone.
    pub(crate) fn count(&mut self, gone: &SlotGone) {
        let at = self.0.partition_point(|way| way.hops < gone.hops);
        if self.0.get(at).is_none_or(|way| way.hops != gone.hops) {
            let way = CutOnTheWay {
                hops: gone.hops,
                ..CutOnTheWay::default()
            };
            self.0.insert(at, way);
        }
        let way = &mut self.0[at];
        match gone.cause {
            Cause::Late => way.late += 1,
            _ => way.trimmed += 1,
        }
        way.longest_queue = way.longest_queue.max(gone.path_queue);
    }

    /// All of them, fewest hops first.
    pub(crate) fn take(&mut self) -> Vec<CutOnTheWay> {
        std::mem::take(&mut self.0)
    }
}

/// Missing slots by cause.
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

/// What a rank missed, by phase and cause. Every slot that did not come before it was needed is
/// counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Contributions that slots of this rank's own shard closed without.
    pub scatter: Causes,
    /// Aggregates of the others for which zero was taken.
    pub gather: Causes,
}

impl AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.scatter += other.scatter;
        self.gather += other.gather;
    }
}
