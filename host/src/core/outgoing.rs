//! A packet and its contents.

use std::ops::Range;
use std::time::Duration;

use crate::layout::Shape;

use super::outbox::Packet;
use super::reduce::Reduce;

/// A packet and its contents.
pub(super) struct Outgoing<'a> {
    pub(super) packet: Packet,
    /// None if they stay in the bucket until the packet leaves.
    pub(super) values: Option<&'a [f32]>,
    /// The place of its values in the bucket.
    pub(super) range: Range<usize>,
    pub(super) shape: Shape,
    /// The ranks that its aggregate counts. None after the operation has ended.
    pub(super) reduce: Option<&'a Reduce>,
    /// Slots of the owner's shard.
    pub(super) slots: u32,
    /// The time for which its receivers will still wait for it.
    pub(super) budget: Duration,
    /// The time for which this rank will still wait.
    pub(super) remaining: Duration,
    /// This rank's t_C; zero for none.
    pub(super) t_c: Duration,
}
