//! [`tracing`] spans and events of operations, with the target [`TARGET`]. They are written on the caller's
//! thread, which waits anyway.
//!
//! Each operation has a span `allreduce` or `exact`, with `rank`, `step`, `bucket` and `values`. One event in
//! it reports the outcome, at DEBUG level, or at INFO if t_B ended the operation.

use tracing::{Span, debug, info, info_span};

use crate::operation::OperationId;
use crate::stats::{ClosedBy, Outcome};

/// The target in filters such as `ULTIMA_LOG`: `ULTIMA_LOG=ultima::operation=debug`.
pub(crate) const TARGET: &str = "ultima::operation";

/// The span of an AllReduce.
pub(crate) fn allreduce(rank: u16, id: OperationId, values: usize) -> Span {
    let OperationId { step, bucket } = id;
    info_span!(target: TARGET, "allreduce", rank, step, bucket, values)
}

/// The span of an exact operation.
pub(crate) fn exact(rank: u16, id: OperationId, values: usize) -> Span {
    let OperationId { step, bucket } = id;
    info_span!(target: TARGET, "exact", rank, step, bucket, values)
}

/// Writes the event with an AllReduce's outcome, in its span.
pub(crate) fn ended(outcome: &Outcome) {
    let closed_by = outcome.closed_by.name();
    let shard_closed_by = outcome.shard_closed_by.name();
    let us = outcome.duration.as_micros() as u64;
    let shard_us = outcome.shard_duration.as_micros() as u64;
    let contributions_lost = outcome.lost.scatter.total();
    let aggregates_lost = outcome.lost.gather.total();
    macro_rules! write {
        ($level:ident) => {
            $level!(target: TARGET, closed_by, us, shard_closed_by, shard_us, contributions_lost, aggregates_lost, "ended")
        };
    }
    match outcome.closed_by {
        ClosedBy::Deadline => write!(info),
        _ => write!(debug),
    }
}
