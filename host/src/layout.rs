//! Layout of an encoded bucket: shards by owner, slots within a shard.

use std::ops::Range;

use crate::codec::Coding;

/// Layout of one bucket, the same on all ranks.
///
/// Rank *j* owns the values ⌊*jL*/*N*⌋ to ⌊(*j*+1)*L*/*N*⌋ of the *L* encoded ones (Transpose AllReduce,
/// OptiReduce, NSDI 2025). A slot is the part of a shard that one packet carries; the last one may be
/// shorter. A bucket smaller than the number of ranks has empty shards, without slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    len: usize,
    ranks: u16,
    slot_len: usize,
}

impl Layout {
    /// Divides `len` values among `ranks` owners into slots of `slot_len` values.
    ///
    /// # Panics
    /// If there are no ranks, slots are empty, or there are 2^48 values.
    pub fn new(len: usize, ranks: u16, slot_len: usize) -> Self {
        assert!(
            ranks > 0 && slot_len > 0,
            "{ranks} ranks, slots of {slot_len}"
        );
        Self {
            len,
            ranks,
            slot_len,
        }
    }

    /// Number of values in the bucket.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the bucket has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values that `owner` averages.
    pub fn shard(&self, owner: u16) -> Range<usize> {
        self.boundary(owner)..self.boundary(owner + 1)
    }

    fn boundary(&self, owner: u16) -> usize {
        (self.len as u64 * u64::from(owner) / u64::from(self.ranks)) as usize
    }

    /// Number of slots in `owner`'s shard.
    pub fn slots(&self, owner: u16) -> u32 {
        u32::try_from(self.shard(owner).len().div_ceil(self.slot_len))
            .expect("a shard has fewer than 2^32 slots")
    }

    /// Number of slots in each shard, by owner.
    pub(crate) fn all_slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.ranks).map(|owner| self.slots(owner))
    }

    /// Numbers of slots over all shards.
    pub(crate) fn numbers(&self) -> SlotNumbers {
        let shortest = self.len / usize::from(self.ranks);
        SlotNumbers {
            slots: shortest.div_ceil(self.slot_len) as u32,
            full: (shortest.is_multiple_of(self.slot_len)).then_some((*self, shortest)),
        }
    }

    /// The values of one slot of `owner`'s shard.
    ///
    /// # Panics
    /// If the shard has no such slot.
    pub fn slot(&self, owner: u16, slot: u32) -> Range<usize> {
        assert!(
            slot < self.slots(owner),
            "slot {slot} of {}",
            self.slots(owner)
        );
        let shard = self.shard(owner);
        let start = shard.start + slot as usize * self.slot_len;
        start..(start + self.slot_len).min(shard.end)
    }
}

/// Numbers of slots counted over all shards, one shard after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotNumbers {
    /// Number of slots in each shard, ...
    slots: u32,
    /// ... except if the slots of the shortest shard are full: shards that are one value longer have another
    /// slot.
    full: Option<(Layout, usize)>,
}

impl SlotNumbers {
    /// The number of `owner`'s first slot.
    pub(crate) fn first(&self, owner: u16) -> u32 {
        let longer = self.full.map_or(0, |(layout, shortest)| {
            layout.boundary(owner) - usize::from(owner) * shortest
        });
        u32::from(owner) * self.slots + longer as u32
    }
}

/// The layout of a bucket, the coding of its values, and the check of its length before coding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layout: Layout,
    pub(crate) coding: Coding,
    /// See [`ultima_wire::Header::length_check`].
    pub(crate) length_check: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_slots_tile_the_bucket() {
        for len in [0, 1, 2, 31, 32, 33, 999, 1000, 123_457] {
            for ranks in [1, 2, 3, 7, 32, 1024] {
                for slot_len in [1, 3, 352, 100_000] {
                    let layout = Layout::new(len, ranks, slot_len);
                    let (mut at, mut slots) = (0, 0);
                    for owner in 0..ranks {
                        assert_eq!(layout.shard(owner).start, at);
                        assert_eq!(layout.numbers().first(owner), slots);
                        slots += layout.slots(owner);
                        for slot in 0..layout.slots(owner) {
                            let range = layout.slot(owner, slot);
                            assert_eq!(range.start, at);
                            assert!((1..=slot_len).contains(&range.len()));
                            at = range.end;
                        }
                        assert_eq!(layout.shard(owner).end, at);
                        assert!(layout.shard(owner).len().abs_diff(len / usize::from(ranks)) <= 1);
                    }
                    assert_eq!(at, len);
                }
            }
        }
    }
}
