//! How an encoded bucket is cut: shards by owner, slots within a shard.

use std::ops::Range;

/// The cut of one bucket, the same on all ranks.
///
/// Rank *j* owns the values ⌊*jL*/*N*⌋ to ⌊(*j*+1)*L*/*N*⌋ of the *L* encoded ones (Transpose
/// AllReduce, OptiReduce, NSDI 2025); a slot is what one packet carries of a shard, the last one
/// may be shorter. Buckets smaller than the number of ranks leave some shards empty: they have no
/// slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    len: usize,
    ranks: u16,
    slot_len: usize,
}

impl Layout {
    /// Cuts `len` values among `ranks` owners into slots of `slot_len` values.
    ///
    /// # Panics
    /// If there are no ranks, slots would be empty, or there are 2^48 values.
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

    /// Owners of shards.
    pub fn ranks(&self) -> u16 {
        self.ranks
    }

    /// Values in the bucket.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the bucket has no values.
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

    /// Slots of `owner`'s shard.
    pub fn slots(&self, owner: u16) -> u32 {
        u32::try_from(self.shard(owner).len().div_ceil(self.slot_len)).expect("under 2^32 slots")
    }

    /// How slots are numbered over all shards.
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

/// The numbers of slots where those of all shards are counted, one shard after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotNumbers {
    /// Slots of a shard. All have as many,
    slots: u32,
    /// but where the slots of the shortest are full: some are longer by a value, which begins another slot.
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
