//! The order in which a source sends its slots.

use crate::operation::OperationId;
use crate::seed::{self, Purpose};

/// Where a source starts in every shard of one operation: it sends slots start, start + 1, … modulo
/// their number.
///
/// The start is drawn from the job's seed, the operation and the source, so that all ranks know it.
/// Equal tails of several sources then miss different slots, and a receiver sees from a slot's
/// place in the order which ones were sent before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The start as a share of the shard, in units of 2^-32.
    start: u32,
}

impl Rotation {
    /// The rotation of `source` in operation `id` of the job with `seed`.
    pub fn new(seed: u64, id: OperationId, source: u16) -> Self {
        let start = seed::derive(seed, Purpose::Rotation, id, u64::from(source)) >> 32;
        Self {
            start: start as u32,
        }
    }

    fn start(self, slots: u32) -> u32 {
        ((u64::from(self.start) * u64::from(slots)) >> 32) as u32
    }

    /// The slot that is sent as number `position` of a shard with `slots`; `position` is under
    /// `slots`.
    pub fn slot(self, position: u32, slots: u32) -> u32 {
        debug_assert!(position < slots);
        let slot = u64::from(self.start(slots)) + u64::from(position);
        (slot % u64::from(slots)) as u32
    }

    /// The place of `slot` in the order: the reverse of [`Rotation::slot`].
    pub fn position(self, slot: u32, slots: u32) -> u32 {
        debug_assert!(slot < slots);
        let start = self.start(slots);
        if slot >= start {
            slot - start
        } else {
            slots - start + slot
        }
    }
}

/// The order in which a source goes through all owners' slots: position by position, at each one
/// owner after the other, starting behind itself, so that at no time all sources send to the same
/// owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tour {
    position: u32,
    /// Owners passed at this position; the owner is `source + 1 + passed`, modulo the ranks.
    passed: u16,
}

impl Tour {
    pub(crate) const START: Tour = Tour {
        position: 0,
        passed: 0,
    };

    /// The next (owner, position), if any shard has one; `slots` tells how many an owner's shard
    /// has.
    pub(crate) fn next(
        &mut self,
        source: u16,
        ranks: u16,
        slots: impl Fn(u16) -> u32,
    ) -> Option<(u16, u32)> {
        // Shards differ by at most one slot, so that one round without a slot means that there are
        // no more.
        for _ in 0..ranks {
            if self.passed == ranks - 1 {
                self.passed = 0;
                self.position += 1;
            }
            let owner = (u32::from(source) + 1 + u32::from(self.passed)) % u32::from(ranks);
            let owner = owner as u16;
            let position = self.position;
            self.passed += 1;
            if position < slots(owner) {
                return Some((owner, position));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: OperationId = OperationId { step: 9, bucket: 2 };

    #[test]
    fn positions_and_slots_are_each_others_reverse() {
        for source in 0..50 {
            let rotation = Rotation::new(7, ID, source);
            for slots in [1, 2, 3, 17, 1000] {
                let mut seen = vec![false; slots as usize];
                for position in 0..slots {
                    let slot = rotation.slot(position, slots);
                    assert_eq!(rotation.position(slot, slots), position);
                    assert!(!std::mem::replace(&mut seen[slot as usize], true));
                }
            }
        }
    }

    #[test]
    fn starts_are_spread() {
        let mut quarter = [0; 4];
        for source in 0..1000 {
            let start = Rotation::new(7, ID, source).slot(0, 4000);
            quarter[start as usize / 1000] += 1;
        }
        assert!(
            quarter.iter().all(|n| (200..300).contains(n)),
            "{quarter:?}"
        );
    }

    #[test]
    fn a_tour_visits_every_slot_of_the_others_once() {
        for ranks in [2, 3, 8] {
            for source in 0..ranks {
                let slots = |owner: u16| if owner.is_multiple_of(2) { 3 } else { 2 };
                let mut tour = Tour::START;
                let mut seen = Vec::new();
                while let Some(next) = tour.next(source, ranks, slots) {
                    seen.push(next);
                }
                assert_eq!(seen[0].0, (source + 1) % ranks);
                seen.sort_unstable();
                let all: Vec<_> = (0..ranks)
                    .filter(|&owner| owner != source)
                    .flat_map(|owner| (0..slots(owner)).map(move |p| (owner, p)))
                    .collect();
                assert_eq!(seen, all);
                assert_eq!(tour.next(source, ranks, slots), None);
            }
        }
    }
}
