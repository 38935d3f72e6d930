//! The others' shards: aggregates come in.

use crate::bits::Bits;
use crate::layout::Layout;

use super::packet;
use super::reduce::Verdict;

/// Which aggregates are here, and how many are still awaited.
///
/// Slots close in an order that depends on the data's arrival, so that a gap among an owner's
/// aggregates says nothing; its notice that the last one is out does, and any packet that it sent
/// for a later step.
#[derive(Default)]
pub(super) struct Collect {
    reorder: u32,
    received: Bits,
    owners: Vec<Owner>,
    /// Aggregates neither here nor known to be gone.
    awaited: u32,
}

#[derive(Clone, Copy)]
struct Owner {
    /// The number of its first slot, counted over all shards.
    first: u32,
    /// Slots that are not here.
    missing: u32,
    given_up: bool,
    /// Packets heard that were sent after its last aggregate.
    sent_after: u32,
}

impl Collect {
    /// Prepares for an operation. Allocates only for the largest one so far.
    pub(super) fn reset(&mut self, layout: &Layout, (rank, ranks): (u16, u16), reorder: u32) {
        self.reorder = reorder;
        self.owners.clear();
        let mut first = 0;
        self.awaited = 0;
        for owner in 0..ranks {
            let slots = layout.slots(owner);
            let missing = if owner == rank { 0 } else { slots };
            self.owners.push(Owner {
                first,
                missing,
                given_up: false,
                sent_after: 0,
            });
            self.awaited += missing;
            first += slots;
        }
        self.received.reset(first as usize);
    }

    /// Aggregates neither here nor known to be gone.
    pub(super) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// The aggregate of `owner`'s `slot` came: its place in `result` is written.
    pub(super) fn store(
        &mut self,
        layout: &Layout,
        owner: u16,
        slot: u32,
        payload: &[u8],
        result: &mut [f32],
    ) -> Verdict {
        let state = &mut self.owners[usize::from(owner)];
        if !self.received.insert((state.first + slot) as usize) {
            return Verdict::Duplicate;
        }
        packet::read_values(payload, &mut result[layout.slot(owner, slot)]);
        state.missing -= 1;
        if !state.given_up {
            self.awaited -= 1;
        }
        Verdict::InTime
    }

    /// A packet of `owner` came that it sent after its last aggregate.
    pub(super) fn sent_after(&mut self, owner: u16) {
        let state = &mut self.owners[usize::from(owner)];
        state.sent_after = state.sent_after.saturating_add(1);
        if state.sent_after > self.reorder {
            self.give_up(owner);
        }
    }

    /// Nothing of `owner` is awaited any more; what comes nevertheless counts until the operation
    /// ends.
    pub(super) fn give_up(&mut self, owner: u16) {
        let state = &mut self.owners[usize::from(owner)];
        if !state.given_up {
            state.given_up = true;
            self.awaited -= state.missing;
        }
    }

    /// Takes zero for every aggregate of the others that is not here; returns how many slots and
    /// values that were.
    pub(super) fn zero_missing(
        &self,
        layout: &Layout,
        rank: u16,
        result: &mut [f32],
    ) -> (u32, usize) {
        let (mut slots, mut values) = (0, 0);
        for (owner, state) in (0u16..).zip(&self.owners) {
            if owner == rank || state.missing == 0 {
                continue;
            }
            for slot in 0..layout.slots(owner) {
                if !self.received.contains((state.first + slot) as usize) {
                    let range = layout.slot(owner, slot);
                    slots += 1;
                    values += range.len();
                    result[range].fill(0.0);
                }
            }
        }
        (slots, values)
    }
}
