//! Recycling: what one operation could not deliver comes in a later one of the same bucket.
//!
//! Let g_i be rank *i*'s gradient in one operation, e_i what it carries from earlier ones (its *residual*),
//! y_i = g_i + e_i what it contributes, and for a slot *A* the ranks that its owner counted, *m* their number and
//! a = (1/*m*)·Σ_{i∈A} y_i what the owner sent ([`crate::Estimation::ArrivedMean`]).
//!
//! **Rule 1, for a source.** What was not counted stays with its source, less what the others applied for it:
//!
//! > e_i ← Σ over the slots with i ∉ A of (y_i − a)
//!
//! **Rule 2, for a receiver.** An aggregate that it missed, for which it took zero, is repaired by the owner and added to
//! its own next *output* x_r, never to its contribution:
//!
//! > x_r ← mean of the operation + Σ over the slots repaired meanwhile of a
//!
//! Of a slot's *N* ranks *m* were counted, so that *N*·a + Σ_{i∉A}(y_i − a) = *m*·a + Σ_{i∉A} y_i = Σ_i y_i: summed over
//! operations, for every rank *r*, with o_r the aggregates still owed to it,
//!
//! > Σ applied + Σ residual = Σ exact:  Σ x_r + Σ o_r + (1/*N*)·Σ_i e_i = Σ (1/*N*)·Σ_i g_i
//!
//! up to f32's rounding. **Elements of 16 bits** ([`crate::Element`]) round what is sent, to ŷ_i and â; what that takes is
//! known where it happens, and carried: a source adds y_i − ŷ_i of every slot that counted it, an owner, for all that it
//! counted, *m*·(a − â) with a = (1/*m*)·Σ_{i∈A} ŷ_i and its own ŷ_j = y_j, which is not sent. Then
//! *N*·â + Σ_{i∉A}(y_i − â) + Σ_{i∈A}(y_i − ŷ_i) + *m*·(a − â) = Σ_i y_i again.
//!
//! Signs and transform are linear, so that this holds of decoded buckets too; every part is decoded
//! with the signs of the operation that it is of, the residual included.
//!
//! **Skipped updates and replicas that are averaged** ([`crate::safeguards`]) keep the sum. An update that no rank applies
//! is held, h_r, and part of the next output: in the sum it stands with what is owed, x_r + h_r + o_r = the same for all
//! r. When replicas are averaged, Σ x_r becomes its mean over the ranks, and with it the mean of h_r + o_r is what all
//! lack: so each rank contributes its own h_r, and each o_r as it comes, instead of applying it:
//!
//! > e_r ← e_r + h_r + o_r
//!
//! of which the next operation applies (1/*N*)·Σ_r (h_r + o_r), at every rank.
//!
//! # What a rank knows, and what it assumes when it hears nothing
//!
//! The ranks counted travel in the same packet as a (`docs/packet.md`, "Counted ranks"): who has one has both. Who has
//! neither is *in doubt* of the slot: it keeps its own y_i, asks the owner (`ledger.rs`), and concludes nothing; the
//! late aggregate answers as well as the repair does. The owner keeps what it sent (`store.rs`). In the equation above
//! a slot in doubt stands with what its owner knows.
//!
//! A doubt that is [`Recycling::keep`] steps old *lapses*: the rank takes it that the owner counted nobody and sent
//! nothing, so that e_i ← e_i + y_i. An owner that finds itself half of that behind another rank makes this true: it
//! closes its shard with no contribution at all, sends nothing of it, and keeps its own y_j as its residual. An owner
//! that is gone counts nobody either. What neither covers is an owner that a rank does not reach for so long although
//! others do: [`RecyclingCounters::lapsed`] counts those slots, and ranks may differ by them.

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

pub(crate) use ledger::{Ended, Known, Ledger, Request};
pub(crate) use round_trip::RoundTrips;
pub(crate) use store::{Asking, Repair, Store};

/// How long an operation can still be made whole; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recycling {
    /// Steps for which aggregates are kept and doubts last, 2 or more. An owner keeps its shard for each, a rank in
    /// doubt as much of its bucket as it is in doubt of: at most `keep` times the bucket in all.
    pub keep: u32,
}

impl Default for Recycling {
    /// Eight steps: half of them, after which an owner lets its shard lapse, is one more than a rank may be silent
    /// before it is suspected.
    fn default() -> Self {
        Self { keep: 8 }
    }
}

impl Recycling {
    /// How many steps behind another rank an owner lets its shard lapse. The other half of [`Recycling::keep`] is
    /// for the news to arrive: until the others take it to be so, it is.
    pub(crate) fn owner_lapses_after(self) -> u32 {
        self.keep / 2
    }
}

/// What of one operation came out later than its result, in the encoded domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// The operation, whose signs the values carry.
    pub id: crate::OperationId,
    /// Values in its encoded bucket.
    pub len: usize,
    /// How it was encoded.
    pub coding: crate::Coding,
    /// By rule 1, for this rank's next contribution to the bucket.
    pub residual: Sparse,
    /// By rule 2, for this rank's next output of the bucket.
    pub output: Sparse,
}
