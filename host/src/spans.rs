//! [`tracing`]'s spans and events of operations, with the target [`TARGET`]: on the caller's thread, which waits anyway.
//!
//! A span `allreduce` or `exact` stands for each operation, with `rank`, `step`, `bucket` and `values`. In it one event
//! says how it ended: at DEBUG level, at INFO where t_B ended it.

use tracing::{Span, debug, info, info_span};

use crate::operation::OperationId;
use crate::stats::{ClosedBy, Outcome};

/// What filters such as `ULTIMA_LOG` call them: `ULTIMA_LOG=ultima::operation=debug`.
pub(crate) const TARGET: &str = "ultima::operation";

/// An AllReduce runs.
pub(crate) fn allreduce(rank: u16, id: OperationId, values: usize) -> Span {
    let OperationId { step, bucket } = id;
    info_span!(target: TARGET, "allreduce", rank, step, bucket, values)
}

/// An exact operation runs.
pub(crate) fn exact(rank: u16, id: OperationId, values: usize) -> Span {
    let OperationId { step, bucket } = id;
    info_span!(target: TARGET, "exact", rank, step, bucket, values)
}

/// How an AllReduce ended, in its span.
pub(crate) fn ended(outcome: &Outcome) {
    let closed_by = outcome.closed_by.name();
    let shard_closed_by = outcome.shard_closed_by.name();
    let us = outcome.duration.as_micros() as u64;
    let shard_us = outcome.shard_duration.as_micros() as u64;
    let contributions_lost = outcome.lost.scatter.total();
    let aggregates_lost = outcome.lost.gather.total();
    macro_rules! tell {
        ($level:ident) => {
            $level!(target: TARGET, closed_by, us, shard_closed_by, shard_us, contributions_lost, aggregates_lost, "ended")
        };
    }
    match outcome.closed_by {
        ClosedBy::Deadline => tell!(info),
        _ => tell!(debug),
    }
}
