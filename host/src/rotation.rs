//! The order in which a source sends its slots.

use crate::operation::OperationId;
use crate::seed::{Purpose, Seeds};

/// A source's first slot in every shard of one operation: it sends slots start, start + 1, … modulo their
/// number.
///
/// The start is drawn from the job's seed, the operation and the source, so all ranks know it. Equal tails of
/// several sources then hit different slots, and a receiver knows from a slot's position which ones were sent
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The start as a share of the shard, in units of 2^-32.
    start: u32,
}

impl Rotation {
    /// The rotation of `source` in operation `id` of the job with `seed`.
    pub fn new(seed: u64, id: OperationId, source: u16) -> Self {
        Rotations::new(seed, id).of(source)
    }

    fn start(self, slots: u32) -> u32 {
        ((u64::from(self.start) * u64::from(slots)) >> 32) as u32
    }

    /// The slot at `position` of a shard with `slots`; `position` is less than `slots`.
    pub fn slot(self, position: u32, slots: u32) -> u32 {
        debug_assert!(position < slots);
        let slot = u64::from(self.start(slots)) + u64::from(position);
        (slot % u64::from(slots)) as u32
    }

    /// The position of `slot`: the inverse of [`Rotation::slot`].
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

/// All sources' rotations in one operation. Drawing one is as fast as a lookup.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rotations(Seeds);

impl Rotations {
    /// Of operation `id` of the job with `seed`.
    pub(crate) fn new(seed: u64, id: OperationId) -> Self {
        Self(Seeds::new(seed, Purpose::Rotation, id))
    }

    /// The rotation of `source`.
    pub(crate) fn of(self, source: u16) -> Rotation {
        let start = self.0.of(source.into()) >> 32;
        Rotation {
            start: start as u32,
        }
    }
}

/// The order in which a source visits all owners' slots: in rounds of as many owners as the incast allows. A
/// round goes position by position, and at each position owner by owner, starting after the source.
///
/// So owners at the same distance from their sources are in the same round, and if all sources are in the
/// same round, an owner has as many senders as a round has owners. Within a shard the order of slots is that
/// of the [`Rotation`], whatever the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tour {
    /// Owners in a round.
    width: u16,
    /// Owners of the earlier rounds.
    round: u16,
    position: u32,
    /// Owners visited at this position. The owner is `source + 1 + round + passed`, modulo the ranks.
    passed: u16,
    /// True if an owner had a slot at this position.
    found: bool,
}

impl Tour {
    /// Creates a tour in rounds of `incast` owners, 1 or more.
    pub(crate) fn new(incast: u16) -> Self {
        debug_assert!(incast > 0);
        Self {
            width: incast,
            round: 0,
            position: 0,
            passed: 0,
            found: false,
        }
    }

    /// The next (owner, position), if any shard has one. `slots` returns the number of slots in an owner's
    /// shard.
    pub(crate) fn next(
        &mut self,
        source: u16,
        ranks: u16,
        slots: impl Fn(u16) -> u32,
    ) -> Option<(u16, u32)> {
        let others = ranks - 1;
        while self.round < others {
            if self.passed == self.width.min(others - self.round) {
                // If no owner of the round has a slot at this position, none has one at a later position.
                if self.found {
                    self.position += 1;
                } else {
                    self.round += self.passed;
                    self.position = 0;
                }
                self.passed = 0;
                self.found = false;
                continue;
            }
            let behind = u32::from(self.round) + u32::from(self.passed);
            let owner = ((u32::from(source) + 1 + behind) % u32::from(ranks)) as u16;
            self.passed += 1;
            if self.position < slots(owner) {
                self.found = true;
                return Some((owner, self.position));
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
        let with_incast = |ranks: u16| (1..ranks).map(move |incast| (ranks, incast));
        for (ranks, incast) in [2, 3, 8].into_iter().flat_map(with_incast) {
            for source in 0..ranks {
                let slots = |owner: u16| if owner.is_multiple_of(2) { 3 } else { 2 };
                let mut tour = Tour::new(incast);
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

    /// If all ranks send at the same pace, the senders to one owner during a round never exceed the incast.
    #[test]
    fn no_owner_has_more_senders_than_the_incast() {
        const RANKS: u16 = 12;
        const SLOTS: u32 = 5;
        for incast in 1..RANKS {
            let mut tours = [Tour::new(incast); RANKS as usize];
            let (mut owners_left, mut most) = (RANKS - 1, 0);
            while owners_left > 0 {
                let width = incast.min(owners_left);
                let mut senders = vec![std::collections::BTreeSet::new(); usize::from(RANKS)];
                for _ in 0..SLOTS * u32::from(width) {
                    for (source, tour) in (0..).zip(&mut tours) {
                        let (owner, _) = tour.next(source, RANKS, |_| SLOTS).expect("slots left");
                        senders[usize::from(owner)].insert(source);
                    }
                }
                assert!(senders.iter().all(|s| s.len() == usize::from(width)));
                most = most.max(width);
                owners_left -= width;
            }
            assert_eq!(most, incast);
        }
    }

    /// Rounds never change the order within a shard.
    #[test]
    fn rounds_leave_the_order_within_a_shard_alone() {
        for incast in [1, 2, 5, 7] {
            let mut tour = Tour::new(incast);
            let mut next = [0; 8];
            while let Some((owner, position)) = tour.next(3, 8, |_| 4) {
                let expected = &mut next[usize::from(owner)];
                assert_eq!(position, *expected);
                *expected += 1;
            }
        }
    }
}
