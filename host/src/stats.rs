//! Outcomes of operations, and counters over a run.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cause::{Losses, TrimmedByHops};
use crate::exact::ExactCounters;
use crate::operation::OperationId;
use crate::recycling::RecyclingCounters;

/// The cause that ended a wait. Later variants are worse.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ClosedBy {
    /// Everything arrived.
    #[default]
    Complete,
    /// Everything arrived or was known to be lost.
    KnownLoss,
    /// t_C: every rank's last packets had begun to arrive, and missing ones took too long.
    Early,
    /// t_S: an owner sent its aggregates without the missing contributions.
    Flush,
    /// t_B: the operation's end.
    Deadline,
}

impl ClosedBy {
    /// All variants, the best first.
    pub const ALL: [ClosedBy; 5] = [
        ClosedBy::Complete,
        ClosedBy::KnownLoss,
        ClosedBy::Early,
        ClosedBy::Flush,
        ClosedBy::Deadline,
    ];

    /// The name in reports, metrics and traces.
    pub fn name(self) -> &'static str {
        match self {
            ClosedBy::Complete => "complete",
            ClosedBy::KnownLoss => "known-loss",
            ClosedBy::Early => "early",
            ClosedBy::Flush => "flush",
            ClosedBy::Deadline => "deadline",
        }
    }
}

/// Packets that arrived from one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromRank {
    /// Its contributions to this rank's shard.
    pub contributions: u32,
    /// Aggregates of its shard.
    pub aggregates: u32,
}

/// The times at which the last packets of an operation's phases were sent and arrived at one rank, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastPackets {
    /// The time at which this rank's last contribution was sent. None if a bound passed first.
    pub contribution_sent: Option<Duration>,
    /// The time at which the last counted contribution arrived: zero before the start, none if none did.
    pub contribution_came: Option<Duration>,
    /// The rank that sent it.
    pub contribution_from: Option<u16>,
    /// The same for the last counted contribution of any other rank than that one.
    pub others_last_came: Option<Duration>,
    /// The same for the last counted aggregate.
    pub aggregate_came: Option<Duration>,
}

/// One phase's packets at one rank.
///
/// Over a run, while no operation is in progress: `slots = sent + never_sent`, and every received datagram of
/// the phase is counted once, as in time, trimmed, late, duplicate or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCounters {
    /// Packets that this rank owed: one SCATTER for each slot of the others' shards; one GATHER for each slot
    /// of its own shard (with unicast, for each slot and receiver).
    pub slots: u64,
    /// Packets handed to the driver.
    pub sent: u64,
    /// Receivers of sent packets: a multicast packet counts once per receiver.
    pub copies: u64,
    /// Packets that were still owed when a bound passed.
    pub never_sent: u64,
    /// Datagrams received that counted.
    pub in_time: u64,
    /// Headers received in time without their payload; [`Losses`] has the causes.
    pub trimmed: u64,
    /// Datagrams received after their slot had closed or their operation had ended.
    pub late: u64,
    /// Datagrams received again.
    pub duplicates: u64,
    /// Datagrams of operations not started here that the bounds left no room for.
    pub refused: u64,
}

impl AddAssign for FromRank {
    fn add_assign(&mut self, other: Self) {
        self.contributions += other.contributions;
        self.aggregates += other.aggregates;
    }
}

impl LastPackets {
    /// The rank whose contributions arrived last, and the time for which this rank waited for them alone: after it had
    /// sent its own, and received those of all others. None if that is no time.
    pub fn waited_for(&self) -> Option<(u16, Duration)> {
        let others = self.others_last_came.max(self.contribution_sent)?;
        let waited = self.contribution_came?.checked_sub(others)?;
        Some((self.contribution_from?, waited)).filter(|_| !waited.is_zero())
    }
}

impl AddAssign for PhaseCounters {
    fn add_assign(&mut self, other: Self) {
        self.slots += other.slots;
        self.sent += other.sent;
        self.copies += other.copies;
        self.never_sent += other.never_sent;
        self.in_time += other.in_time;
        self.trimmed += other.trimmed;
        self.late += other.late;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
    }
}

/// Counters of both phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Contributions to the owners.
    pub scatter: PhaseCounters,
    /// Aggregates to all ranks.
    pub gather: PhaseCounters,
}

impl AddAssign for Phases {
    fn add_assign(&mut self, other: Self) {
        self.scatter += other.scatter;
        self.gather += other.gather;
    }
}

/// The outcome of one operation at this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The operation.
    pub id: OperationId,
    /// The cause that ended it: [`ClosedBy::Deadline`] for t_B, else the worst cause among the slots of this rank's
    /// shard and the loss of aggregates.
    pub closed_by: ClosedBy,
    /// The cause that closed this rank's own shard: the worst over its slots.
    pub shard_closed_by: ClosedBy,
    /// From the start to the end.
    pub duration: Duration,
    /// From the start to the close of the last slot in this rank's shard.
    pub shard_duration: Duration,
    /// The times of each phase's last packets.
    pub last: LastPackets,
    /// The operation's t_S.
    pub t_s: Duration,
    /// The operation's t_B.
    pub t_b: Duration,
    /// Slots of this rank's shard by number of contributions: element *m* counts slots with *m*, from 0 (a
    /// shard that lapsed, [`crate::recycling`]) to the number of ranks.
    pub contributions: Vec<u32>,
    /// Slots of each rank's shard, by rank: what every rank owed.
    pub slots: Vec<u32>,
    /// Packets that arrived in time, by rank. Zero for this rank itself.
    pub arrived: Vec<FromRank>,
    /// Slots of the others' shards that were replaced by zero.
    pub missed_aggregates: u32,
    /// Values that were replaced by zero.
    pub missed_values: usize,
    /// Slots of the others' shards whose aggregate arrived without some contributions.
    pub incomplete_aggregates: u32,
    /// Ranks that were silent in this operation and at least the two before. They are not waited for, unless
    /// all are suspected.
    pub suspected: Vec<u16>,
    /// Ranks that have left the job ([`Core::left`](crate::Core::left)) and are not waited for.
    pub left: Vec<u16>,
    /// The newest step in any rank's packets: how far this rank is behind.
    pub newest_step: Option<u32>,
    /// Number of other ranks whose values were rejected because they were coded differently: see
    /// [`crate::safeguards::CodingInUse`].
    pub coded_otherwise: u16,
    /// Other ranks whose packets did not fit this operation, such as those of a bucket with another length, or of an exact operation with
    /// this id. In a job without a key, any host can send such packets in a rank's name.
    pub different: Vec<u16>,
    /// The weight of each rank's data, by rank, in this rank's shard over about 64 operations. Without loss
    /// 1/N for each of N ranks. A rank that is always late has 0, and the others its share. Empty before the
    /// first operation with slots.
    pub weights: Vec<f32>,
    /// Packets that others owed for this operation: contributions to this rank's shard, and aggregates.
    pub owed: u64,
    /// Missing contributions and aggregates by cause. The scatter's causes add up to the contributions
    /// missing from this rank's shard, the gather's to `missed_aggregates`.
    pub lost: Losses,
    /// Payloads that switches removed while this rank waited, by hops.
    pub trimmed_by_hops: Vec<TrimmedByHops>,
    /// Packet counters at the end of the operation. Later packets count in [`Totals`] only.
    pub phases: Phases,
}

impl Outcome {
    /// The share of [`Outcome::owed`] that did not arrive in time, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        let lost = self.lost.scatter.total() + self.lost.gather.total();
        match self.owed {
            0 => 0.0,
            owed => lost as f64 / owed as f64,
        }
    }

    /// The outcome of operation `id`, whose bucket was averaged in parts: that of each, with the time from the first
    /// one's start to its own. [`Outcome::last`] is that of the part which waited the longest for a single rank.
    pub fn of_parts(
        id: OperationId,
        parts: impl IntoIterator<Item = (Duration, Outcome)>,
    ) -> Option<Self> {
        let parts = parts.into_iter().map(|(after, part)| Self {
            id,
            duration: after + part.duration,
            shard_duration: after + part.shard_duration,
            t_s: after + part.t_s,
            t_b: after + part.t_b,
            ..part
        });
        parts.reduce(Self::and)
    }

    fn and(mut self, part: Self) -> Self {
        self.closed_by = self.closed_by.max(part.closed_by);
        self.shard_closed_by = self.shard_closed_by.max(part.shard_closed_by);
        self.duration = self.duration.max(part.duration);
        self.shard_duration = self.shard_duration.max(part.shard_duration);
        let waited = |last: &LastPackets| last.waited_for().map(|(_, time)| time);
        if waited(&part.last) > waited(&self.last) {
            self.last = part.last;
        }
        self.t_s = self.t_s.max(part.t_s);
        self.t_b = self.t_b.max(part.t_b);
        add(&mut self.contributions, &part.contributions);
        add(&mut self.slots, &part.slots);
        add(&mut self.arrived, &part.arrived);
        self.missed_aggregates += part.missed_aggregates;
        self.missed_values += part.missed_values;
        self.incomplete_aggregates += part.incomplete_aggregates;
        include(&mut self.suspected, &part.suspected);
        include(&mut self.left, &part.left);
        self.newest_step = self.newest_step.max(part.newest_step);
        self.coded_otherwise = self.coded_otherwise.max(part.coded_otherwise);
        include(&mut self.different, &part.different);
        self.weights = part.weights;
        self.owed += part.owed;
        self.lost += part.lost;
        for other in part.trimmed_by_hops {
            let hops = |trimmed: &TrimmedByHops| trimmed.hops.cmp(&other.hops);
            match self.trimmed_by_hops.binary_search_by(hops) {
                Ok(at) => self.trimmed_by_hops[at] += other,
                Err(at) => self.trimmed_by_hops.insert(at, other),
            }
        }
        self.phases += part.phases;
        self
    }

    /// True if the result includes every contribution of every rank, as far as their senders reported.
    pub fn is_whole(&self) -> bool {
        self.closed_by == ClosedBy::Complete && self.incomplete_aggregates == 0
    }

    /// From the close of this rank's shard to the end: the additional wait for aggregates.
    pub fn gather_duration(&self) -> Duration {
        self.duration.saturating_sub(self.shard_duration)
    }

    /// Other ranks with missing packets, and their numbers, at this `rank`.
    pub fn missing_from(&self, rank: u16) -> impl Iterator<Item = (u16, FromRank)> + '_ {
        let owed = self.slots[usize::from(rank)];
        let others = (0u16..)
            .zip(&self.arrived)
            .filter(move |(other, _)| *other != rank);
        others.filter_map(move |(other, arrived)| {
            let missing = FromRank {
                contributions: owed - arrived.contributions,
                aggregates: self.slots[usize::from(other)] - arrived.aggregates,
            };
            (missing != FromRank::default()).then_some((other, missing))
        })
    }

    /// Packets that rank `other` owed this `rank`: contributions to its shard, and aggregates.
    pub fn owed_by(&self, other: u16, rank: u16) -> u64 {
        let slots = |rank: u16| u64::from(self.slots[usize::from(rank)]);
        slots(rank) + slots(other)
    }

    /// Other ranks that owed this `rank` data and sent none: no contribution and no aggregate arrived.
    pub fn nothing_from(&self, rank: u16) -> impl Iterator<Item = u16> + '_ {
        let missing = self.missing_from(rank).map(|(other, _)| other);
        missing.filter(|other| self.arrived[usize::from(*other)] == FromRank::default())
    }
}

fn add<T: AddAssign + Copy>(sums: &mut [T], others: &[T]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum += *other;
    }
}

/// Adds ranks to a list in order.
fn include(ranks: &mut Vec<u16>, others: &[u16]) {
    ranks.extend(others);
    ranks.sort_unstable();
    ranks.dedup();
}

/// Ranks in [`Outcome::weights`] whose data weigh less than half of their share, with their relative weight.
pub fn underweight(weights: &[f32]) -> impl Iterator<Item = (u16, f32)> + '_ {
    let half = 0.5 / weights.len() as f32;
    let weights = (0u16..).zip(weights.iter().copied());
    weights.filter(move |(_, weight)| *weight < half)
}

/// The reason that a datagram was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// Not a version 1 header.
    Malformed,
    /// No tag, or a wrong one; or a tag in a job without a key.
    Seal,
    /// A packet of a sealed job that has arrived before.
    Repeated,
    /// A kind that the collective does not use.
    Kind,
    /// Another job.
    Job,
    /// Another membership epoch.
    Epoch,
    /// A step far ahead, which later packets of the same rank contradict, as when another host sends packets in the rank's name. They
    /// count elsewhere, too.
    Step,
    /// A rank outside the job.
    Source,
    /// This rank's own packet, returned.
    Own,
    /// A SCATTER for another owner, or a GATHER or FEEDBACK about a shard that its source does not own.
    Owner,
    /// A slot outside the shard, or another number of slots.
    Slot,
    /// Another element type than the job's.
    Dtype,
    /// A transformed payload instead of a plain one, or the reverse.
    Coding,
    /// A payload of the wrong length, or with a bitmap that contradicts the header.
    Length,
    /// An exact operation that is bounded here, or the reverse, or another kind of exact operation.
    Exact,
    /// A contribution to an operation that only gathers here, or an aggregate of one that only scatters
    /// ([`crate::Part`]).
    Part,
}

impl Rejection {
    /// Every reason.
    pub const ALL: [Rejection; 16] = [
        Rejection::Malformed,
        Rejection::Seal,
        Rejection::Repeated,
        Rejection::Kind,
        Rejection::Job,
        Rejection::Epoch,
        Rejection::Step,
        Rejection::Source,
        Rejection::Own,
        Rejection::Owner,
        Rejection::Slot,
        Rejection::Dtype,
        Rejection::Coding,
        Rejection::Length,
        Rejection::Exact,
        Rejection::Part,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Rejection::Malformed => "malformed",
            Rejection::Seal => "seal",
            Rejection::Repeated => "repeated",
            Rejection::Kind => "kind",
            Rejection::Job => "job",
            Rejection::Epoch => "epoch",
            Rejection::Step => "step",
            Rejection::Source => "source",
            Rejection::Own => "own",
            Rejection::Owner => "owner",
            Rejection::Slot => "slot",
            Rejection::Dtype => "dtype",
            Rejection::Coding => "coding",
            Rejection::Length => "length",
            Rejection::Exact => "exact",
            Rejection::Part => "part",
        }
    }
}

/// Rejected datagrams by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejections([u64; Rejection::ALL.len()]);

impl Rejections {
    pub(crate) fn count(&mut self, reason: Rejection) {
        self.add(reason, 1);
    }

    pub(crate) fn add(&mut self, reason: Rejection, count: u64) {
        self.0[reason as usize] += count;
    }

    /// Datagrams rejected for `reason`.
    pub fn of(&self, reason: Rejection) -> u64 {
        self.0[reason as usize]
    }

    /// Datagrams rejected for any reason. Those of [`Rejection::Step`] count elsewhere, too, and not here.
    pub fn total(&self) -> u64 {
        self.0.iter().sum::<u64>() - self.of(Rejection::Step)
    }
}

/// Counters over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Finished operations.
    pub operations: u64,
    /// Packets of the two phases, including operations in progress.
    pub phases: Phases,
    /// Missing slots of finished operations.
    pub lost: Losses,
    /// FEEDBACK packets sent.
    pub feedback_sent: u64,
    /// FEEDBACK packets received.
    pub feedback_received: u64,
    /// CONTROL packets sent.
    pub control_sent: u64,
    /// CONTROL packets received.
    pub control_received: u64,
    /// Counters of recycling. Its packets count here only.
    pub recycling: RecyclingCounters,
    /// Counters of exact operations. Their SCATTER and GATHER also count in the phases.
    pub exact: ExactCounters,
    /// Rejected datagrams.
    pub rejected: Rejections,
}
