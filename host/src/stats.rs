//! What happened: in one operation, and over a run.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cause::{CutOnTheWay, Losses};
use crate::exact::ExactCounters;
use crate::layout::Layout;
use crate::operation::OperationId;
use crate::recycling::RecyclingCounters;

/// What ended a wait. The later ones are the worse.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ClosedBy {
    /// Everything that this rank waited for came.
    #[default]
    Complete,
    /// Everything came or was known to be gone.
    KnownLoss,
    /// t_C: everyone's last packets had begun to come, and what was missing took too long.
    Early,
    /// t_S: an owner sent what it had.
    Flush,
    /// t_B: the operation's end.
    Deadline,
}

impl ClosedBy {
    /// All of them, the best first.
    pub const ALL: [ClosedBy; 5] = [
        ClosedBy::Complete,
        ClosedBy::KnownLoss,
        ClosedBy::Early,
        ClosedBy::Flush,
        ClosedBy::Deadline,
    ];

    /// As reports, metrics and traces have it.
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

/// Packets of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromRank {
    /// Its contributions to this rank's shard.
    pub contributions: u32,
    /// Aggregates of its shard.
    pub aggregates: u32,
}

/// When the last packets of an operation's phases passed at one rank, from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastPackets {
    /// This rank's last contribution left; none where a bound passed before all of them had.
    pub contribution_sent: Option<Duration>,
    /// The last contribution that counted came; zero if it came before the start, none if none did.
    pub contribution_came: Option<Duration>,
    /// The last aggregate that counted came; as above.
    pub aggregate_came: Option<Duration>,
}

/// One phase's packets at one rank.
///
/// Over a run, once no operation is under way: `slots = sent + never_sent`, and every datagram of
/// the phase that this rank received as its own is counted once, as in time, cut, late, duplicate
/// or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCounters {
    /// Packets that this rank owed: SCATTER one for each slot of the others' shards; GATHER one for
    /// each slot of its own shard (with unicast, one for each slot and receiver).
    pub slots: u64,
    /// Packets handed to the driver.
    pub sent: u64,
    /// Receivers of what was sent: with multicast every packet counts as often as it has receivers.
    pub copies: u64,
    /// Packets that were still owed when a bound passed.
    pub never_sent: u64,
    /// Datagrams received that counted.
    pub in_time: u64,
    /// Headers received in time whose payload a switch had cut; [`Losses`] says why.
    pub cut: u64,
    /// Datagrams received after their slot had closed or their operation had ended.
    pub late: u64,
    /// Datagrams received again.
    pub duplicates: u64,
    /// Datagrams for an operation not yet started here that the bounds left no room for.
    pub refused: u64,
}

impl AddAssign for PhaseCounters {
    fn add_assign(&mut self, other: Self) {
        self.slots += other.slots;
        self.sent += other.sent;
        self.copies += other.copies;
        self.never_sent += other.never_sent;
        self.in_time += other.in_time;
        self.cut += other.cut;
        self.late += other.late;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
    }
}

/// Both phases of the collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Contributions on the way to the owners.
    pub scatter: PhaseCounters,
    /// Aggregates on the way to everyone.
    pub gather: PhaseCounters,
}

impl AddAssign for Phases {
    fn add_assign(&mut self, other: Self) {
        self.scatter += other.scatter;
        self.gather += other.gather;
    }
}

/// How one operation ended at this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Which one.
    pub id: OperationId,
    /// What ended it: [`ClosedBy::Deadline`] if t_B did, else the worst of what closed a slot of
    /// this rank's shard and of whether an aggregate was lost.
    pub closed_by: ClosedBy,
    /// What closed this rank's own shard: the worst over its slots.
    pub shard_closed_by: ClosedBy,
    /// From the start to the end.
    pub duration: Duration,
    /// From the start until the last slot of this rank's shard had closed.
    pub shard_duration: Duration,
    /// When each phase's last packets passed.
    pub last: LastPackets,
    /// How long this rank would have waited for contributions.
    pub t_s: Duration,
    /// How long it would have waited in all.
    pub t_b: Duration,
    /// Slots of this rank's shard by how many contributions they average: element *m* counts those
    /// with *m*, from 0, a shard that lapsed ([`crate::recycling`]), to the number of ranks.
    pub contributions: Vec<u32>,
    /// How the encoded bucket was cut: what each rank owed.
    pub layout: Layout,
    /// What of each rank came in time, by rank; nothing of this one itself.
    pub arrived: Vec<FromRank>,
    /// Slots of the others' shards for which zero was taken.
    pub missed_aggregates: u32,
    /// Values for which zero was taken.
    pub missed_values: usize,
    /// Slots of the others' shards whose aggregate came and lacks contributions.
    pub incomplete_aggregates: u32,
    /// Ranks that were silent in this operation and at least the two before: they are not waited for, unless all are.
    pub suspected: Vec<u16>,
    /// The newest step that any rank has sent something of, this operation's or a later one: how far this rank is
    /// behind.
    pub newest_step: Option<u32>,
    /// Other ranks whose values came coded otherwise than this rank's, and were refused: see
    /// [`crate::safeguards::CodingInUse`].
    pub coded_otherwise: u16,
    /// What each rank's data weigh, by rank, in the slots of this rank's shard over the last 64 operations or so: without
    /// loss 1/N for each of N ranks, 0 for one that is late every time, whose part the others have then. Empty before the
    /// first operation with slots.
    pub weights: Vec<f32>,
    /// Packets that others were to send for this operation: contributions to this rank's shard, and aggregates.
    pub owed: u64,
    /// Why contributions and aggregates are missing. The scatter's causes add up to the
    /// contributions that slots of this rank's shard lack, the gather's to `missed_aggregates`.
    pub lost: Losses,
    /// Where switches cut packets while this rank waited, by the switches that their headers passed.
    pub cut: Vec<CutOnTheWay>,
    /// Packets until now; what is sent or arrives later counts in [`Totals`] only.
    pub phases: Phases,
}

impl Outcome {
    /// The share of [`Outcome::owed`] that did not come in time, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        let lost = self.lost.scatter.total() + self.lost.gather.total();
        match self.owed {
            0 => 0.0,
            owed => lost as f64 / owed as f64,
        }
    }

    /// Whether everything came that this operation was to have, as far as those say who sent it: every contribution of
    /// every rank is in the result.
    pub fn is_whole(&self) -> bool {
        self.closed_by == ClosedBy::Complete && self.incomplete_aggregates == 0
    }

    /// From the close of this rank's shard to the end: what the others' aggregates were waited for, beyond.
    pub fn gather_duration(&self) -> Duration {
        self.duration.saturating_sub(self.shard_duration)
    }

    /// Other ranks of which something did not come in time, with what that was, at `rank`, whose outcome this is.
    pub fn missing_from(&self, rank: u16) -> impl Iterator<Item = (u16, FromRank)> + '_ {
        let owed = self.layout.slots(rank);
        let others = (0u16..)
            .zip(&self.arrived)
            .filter(move |(other, _)| *other != rank);
        others.filter_map(move |(other, arrived)| {
            let missing = FromRank {
                contributions: owed - arrived.contributions,
                aggregates: self.layout.slots(other) - arrived.aggregates,
            };
            (missing != FromRank::default()).then_some((other, missing))
        })
    }
}

/// Of [`Outcome::weights`], the ranks whose data weigh less than half of what they should, and how much.
pub fn underweight(weights: &[f32]) -> impl Iterator<Item = (u16, f32)> + '_ {
    let half = 0.5 / weights.len() as f32;
    let weights = (0u16..).zip(weights.iter().copied());
    weights.filter(move |(_, weight)| *weight < half)
}

/// Why a datagram was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// Not a version 1 header.
    Malformed,
    /// No tag, or another one than the packet has under the job's key; a tag in a job without a key.
    Seal,
    /// A kind that the collective doesn't use.
    Kind,
    /// Another job's.
    Job,
    /// Another membership epoch's.
    Epoch,
    /// From a rank that the job hasn't.
    Source,
    /// This rank's own packet came back.
    Own,
    /// A SCATTER for another owner, or a GATHER or FEEDBACK of a shard that its source doesn't own.
    Owner,
    /// A slot that the shard hasn't, or another number of slots.
    Slot,
    /// Not the element type of this job.
    Dtype,
    /// A transformed payload where plain ones are expected, or the reverse.
    Coding,
    /// A payload of the wrong length, or with a bitmap of other ranks than the header says.
    Length,
    /// Of an exact operation where this rank runs a bounded one, or the reverse, or of another kind of exact one.
    Exact,
    /// A contribution to an operation that only gathers here, or an aggregate of one that only scatters
    /// ([`crate::Part`]).
    Part,
}

impl Rejection {
    /// Every reason.
    pub const ALL: [Rejection; 14] = [
        Rejection::Malformed,
        Rejection::Seal,
        Rejection::Kind,
        Rejection::Job,
        Rejection::Epoch,
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

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Rejection::Malformed => "malformed",
            Rejection::Seal => "seal",
            Rejection::Kind => "kind",
            Rejection::Job => "job",
            Rejection::Epoch => "epoch",
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

/// Ignored datagrams by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejections([u64; Rejection::ALL.len()]);

impl Rejections {
    pub(crate) fn count(&mut self, reason: Rejection) {
        self.0[reason as usize] += 1;
    }

    /// Datagrams ignored for `reason`.
    pub fn of(&self, reason: Rejection) -> u64 {
        self.0[reason as usize]
    }

    /// Datagrams ignored for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// What happened over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Operations that ended.
    pub operations: u64,
    /// Packets of the two phases, those of operations under way included.
    pub phases: Phases,
    /// What operations that ended missed.
    pub lost: Losses,
    /// FEEDBACK packets sent.
    pub feedback_sent: u64,
    /// FEEDBACK packets received.
    pub feedback_received: u64,
    /// CONTROL packets sent.
    pub control_sent: u64,
    /// CONTROL packets received.
    pub control_received: u64,
    /// What was recycled; its packets count here only.
    pub recycling: RecyclingCounters,
    /// Exact operations; their SCATTER and GATHER are among the phases' packets.
    pub exact: ExactCounters,
    /// Datagrams ignored.
    pub rejected: Rejections,
}
