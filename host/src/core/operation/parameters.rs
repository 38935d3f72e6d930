//! The parameters of an operation.

use crate::operation::{OperationId, Piece};
use crate::time::Time;
use crate::timeout::Bounds;

/// The start of an operation.
#[derive(Clone, Copy)]
pub(in crate::core) struct Start {
    pub(in crate::core) id: OperationId,
    pub(in crate::core) piece: Piece,
    pub(in crate::core) now: Time,
    pub(in crate::core) bounds: Bounds,
    /// See [`Members::operation_starts`](crate::core::members::Members::operation_starts).
    pub(in crate::core) number: u32,
    /// Number of owners that get contributions at a time.
    pub(in crate::core) incast: u16,
}
