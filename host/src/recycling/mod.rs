//! Recycling: values that one operation could not deliver are part of a later one of the same bucket.
//!
//! Let g_i be rank *i*'s gradient in one operation, e_i its *residual* from earlier ones, y_i = g_i + e_i its
//! contribution, and for a slot *A* the ranks that its owner counted, *m* their number and a =
//! (1/*m*)·Σ_{i∈A} y_i the owner's aggregate ([`crate::Estimation::ArrivedMean`]).
//!
//! **Rule 1, for a source.** An uncounted contribution stays with its source, minus the aggregate that the
//! others applied:
//!
//! > e_i ← Σ over the slots with i ∉ A of (y_i − a)
//!
//! **Rule 2, for a receiver.** A missed aggregate, which was replaced by zero, is repaired by the owner and
//! added to the receiver's next *output* x_r, never to its contribution:
//!
//! > x_r ← mean of the operation + Σ over the slots repaired meanwhile of a
//!
//! Of a slot's *N* ranks *m* were counted, so *N*·a + Σ_{i∉A}(y_i − a) = *m*·a + Σ_{i∉A} y_i = Σ_i y_i.
//! Summed over operations, for every rank *r*, with o_r the aggregates still owed to it,
//!
//! > Σ applied + Σ residual = Σ exact:  Σ x_r + Σ o_r + (1/*N*)·Σ_i e_i = Σ (1/*N*)·Σ_i g_i
//!
//! up to f32's rounding. **Elements of 16 bits** ([`crate::Element`]) round sent values to ŷ_i and â. The
//! rank that knows a rounding error carries it: a source adds y_i − ŷ_i of every slot that counted it; an
//! owner adds, for all counted ranks, *m*·(a − â) with a = (1/*m*)·Σ_{i∈A} ŷ_i and its own ŷ_j = y_j, which
//! is not sent. Then *N*·â + Σ_{i∉A}(y_i − â) + Σ_{i∈A}(y_i − ŷ_i) + *m*·(a − â) = Σ_i y_i again.
//!
//! Signs and transform are linear, so the equation holds for decoded buckets too. Every part is decoded with
//! the signs of its own operation, including the residual.
//!
//! **Skipped updates and averaged replicas** ([`crate::safeguards`]) keep the sum. A skipped update h_r is
//! held and part of the next output; in the sum it counts with the owed aggregates: x_r + h_r + o_r is the
//! same for all r. When replicas are averaged, Σ x_r becomes its mean over the ranks, and all lack the mean
//! of h_r + o_r. So each rank contributes its own h_r, and each o_r when it arrives, instead of applying it:
//!
//! > e_r ← e_r + h_r + o_r
//!
//! of which the next operation applies (1/*N*)·Σ_r (h_r + o_r) at every rank.
//!
//! # Knowledge of a rank, and assumptions without it
//!
//! The set of counted ranks is in the same packet as a (`docs/packet.md`, "Counted ranks"), so a rank has
//! both or neither. With neither the slot is *unresolved*: the rank keeps its own y_i, sends requests to the
//! owner (`ledger.rs`), and concludes nothing. A late aggregate answers as well as a repair. The owner stores
//! its aggregates (`store.rs`). In the equation above an unresolved slot counts with its owner's knowledge.
//!
//! An unresolved slot that is [`Recycling::keep`] steps old *lapses*: the rank assumes that the owner counted no rank
//! and sent nothing, so e_i ← e_i + y_i. An owner that is half of that behind another rank makes this true:
//! it closes its shard without contributions, sends nothing of it, and keeps its own y_j as its residual. An
//! owner that has ended counts no rank either. The remaining case is an owner that one rank cannot reach for so
//! long although others can: [`RecyclingCounters::lapsed`] counts those slots, and ranks may differ by them.

mod carry;
mod counters;
mod ledger;
mod round_trip;
mod sent;
mod sparse;
mod store;

pub use carry::Carry;
pub use counters::RecyclingCounters;
pub use sparse::Sparse;

pub(crate) use ledger::{FinishedOperation, Known, Ledger, Request};
pub(crate) use round_trip::RoundTrips;
pub(crate) use store::{Asking, Repair, Store};

/// The time for which an operation can still be completed, in steps. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recycling {
    /// Number of steps for which aggregates are stored and requested, 2 or more. In each, an owner stores its shard, and
    /// other ranks their contributions to unresolved slots: at most `keep` times the bucket in all.
    pub keep: u32,
}

impl Default for Recycling {
    /// Eight steps. An owner lets its shard lapse after half of them, which is one more than the steps of
    /// silence before a suspicion. It sends notices then, so it is not suspected.
    fn default() -> Self {
        Self { keep: 8 }
    }
}

impl Recycling {
    /// Number of steps behind another rank after which an owner lets its shard lapse. The other half of
    /// [`Recycling::keep`] is for propagation: when the others assume the lapse, it has happened.
    pub(crate) fn owner_lapses_after(self) -> u32 {
        self.keep / 2
    }
}

/// Values of one operation that arrived after its result, encoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// The operation, whose signs the values have.
    pub id: crate::OperationId,
    /// Length of its encoded bucket.
    pub len: usize,
    /// Its coding.
    pub coding: crate::Coding,
    /// By rule 1, for this rank's next contribution to the bucket.
    pub residual: Sparse,
    /// By rule 2, for this rank's next output of the bucket.
    pub output: Sparse,
}
