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

    /// The first slot of a shard with `slots`.
    pub(crate) fn start(self, slots: u32) -> u32 {
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
    /// The rotations in operation `id` of the job with `seed`.
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

/// The flow control's answer to a packet for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Its receive buffer has room.
    Open,
    /// Its receive buffer may be full.
    Blocked,
    /// Its receive buffer may be full for so long that no other rank should wait for it.
    Stalled,
}

/// The next stop of a [`Tour`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// A slot to send.
    Slot {
        /// The owner.
        owner: u16,
        /// The position in the source's rotation.
        position: u32,
    },
    /// All remaining owners of the round lack room, for now.
    Blocked,
    /// All remaining owners are stalled.
    Stalled,
    /// No slot is left.
    Done,
}

/// The order in which a source visits all owners' slots: in rounds of as many owners as the incast allows. A
/// round visits owner after owner, starting after the source, for a run of slots each, until all have had
/// their slots.
///
/// So owners at the same distance from their sources are in the same round, and if all sources are in the
/// same round, an owner has as many senders as a round has owners. Within a shard the order of slots is that
/// of the [`Rotation`], whatever the rounds. An owner without room is passed over; the next round waits for
/// it until it stalls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tour {
    /// Owners in a round.
    width: u16,
    /// Slots of one owner that follow each other.
    run: u16,
    /// Number of owners in the earlier rounds.
    earlier: u16,
    /// Number of owners of this round before the visited one. The owner is `source + 1 + earlier + in_round`, modulo the
    /// ranks.
    in_round: u16,
    /// Slots of the visited owner's run so far.
    in_run: u16,
    /// By distance from the source, less one: the next position.
    positions: Vec<u32>,
}

impl Tour {
    /// Creates a tour of a job with `ranks`, in rounds of `incast` owners and runs of `run` slots, each 1 or
    /// more.
    pub(crate) fn new(ranks: u16, incast: u16, run: u16) -> Self {
        debug_assert!(incast > 0 && run > 0);
        Self {
            width: incast,
            run,
            earlier: 0,
            in_round: 0,
            in_run: 0,
            positions: vec![0; usize::from(ranks - 1)],
        }
    }

    /// Number of slots that all owners have had.
    pub(crate) fn least(&self) -> u32 {
        self.positions.iter().copied().min().unwrap_or_default()
    }

    /// The next slot that may be sent. `slots` returns the number of slots in an owner's shard, which may grow.
    pub(crate) fn next(
        &mut self,
        source: u16,
        slots: impl Fn(u16) -> u32,
        mut flow: impl FnMut(u16) -> Flow,
    ) -> Visit {
        let others = self.positions.len() as u16;
        let (mut again, mut stalled) = (true, false);
        loop {
            if self.earlier >= others {
                // Slots of stalled owners, or new ones.
                if !std::mem::take(&mut again) {
                    return if stalled { Visit::Stalled } else { Visit::Done };
                }
                (self.earlier, stalled) = (0, false);
            }
            let owners = self.width.min(others - self.earlier);
            let mut blocked = false;
            // The first owner comes again at the end: its run may be over.
            for _ in 0..=owners {
                let distance = self.earlier + self.in_round;
                let owner = (u32::from(source) + 1 + u32::from(distance)) % (u32::from(others) + 1);
                let position = &mut self.positions[usize::from(distance)];
                if self.in_run < self.run && *position < slots(owner as u16) {
                    match flow(owner as u16) {
                        Flow::Open => {
                            self.in_run += 1;
                            *position += 1;
                            return Visit::Slot {
                                owner: owner as u16,
                                position: *position - 1,
                            };
                        }
                        Flow::Blocked => blocked = true,
                        Flow::Stalled => stalled = true,
                    }
                }
                self.in_round = (self.in_round + 1) % owners;
                self.in_run = 0;
            }
            if blocked {
                return Visit::Blocked;
            }
            self.earlier += owners;
            self.in_round = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: OperationId = OperationId { step: 9, bucket: 2 };

    /// The next slot if all owners have room.
    fn open(tour: &mut Tour, source: u16, slots: impl Fn(u16) -> u32) -> Option<(u16, u32)> {
        match tour.next(source, slots, |_| Flow::Open) {
            Visit::Slot { owner, position } => Some((owner, position)),
            Visit::Done => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn runs_stay_with_one_owner() {
        let mut tour = Tour::new(4, 3, 2);
        let mut next = || open(&mut tour, 0, |_| 3);
        let order: Vec<_> = std::iter::from_fn(&mut next).collect();
        let expected = [
            (1, 0),
            (1, 1),
            (2, 0),
            (2, 1),
            (3, 0),
            (3, 1),
            (1, 2),
            (2, 2),
            (3, 2),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn owners_without_room_are_passed_over() {
        let mut tour = Tour::new(4, 2, 1);
        let mut visit = |flow_of_1| {
            tour.next(
                0,
                |_| 2,
                |owner| if owner == 1 { flow_of_1 } else { Flow::Open },
            )
        };
        let slot = |owner, position| Visit::Slot { owner, position };
        // The first round has owners 1 and 2. It waits for 1 until that stalls.
        assert_eq!(visit(Flow::Open), slot(1, 0));
        assert_eq!(visit(Flow::Open), slot(2, 0));
        assert_eq!(visit(Flow::Blocked), slot(2, 1));
        assert_eq!(visit(Flow::Blocked), Visit::Blocked);
        assert_eq!(visit(Flow::Stalled), slot(3, 0));
        assert_eq!(visit(Flow::Stalled), slot(3, 1));
        assert_eq!(visit(Flow::Stalled), Visit::Stalled);
        assert_eq!(visit(Flow::Open), slot(1, 1));
        assert_eq!(visit(Flow::Open), Visit::Done);
    }

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
                let mut tour = Tour::new(ranks, incast, 1);
                let mut seen = Vec::new();
                while let Some(next) = open(&mut tour, source, slots) {
                    seen.push(next);
                }
                assert_eq!(seen[0].0, (source + 1) % ranks);
                seen.sort_unstable();
                let all: Vec<_> = (0..ranks)
                    .filter(|&owner| owner != source)
                    .flat_map(|owner| (0..slots(owner)).map(move |p| (owner, p)))
                    .collect();
                assert_eq!(seen, all);
                assert_eq!(open(&mut tour, source, slots), None);
            }
        }
    }

    /// If all ranks send at the same pace, the senders to one owner during a round never exceed the incast.
    #[test]
    fn no_owner_has_more_senders_than_the_incast() {
        const RANKS: u16 = 12;
        const SLOTS: u32 = 5;
        for incast in 1..RANKS {
            let mut tours = vec![Tour::new(RANKS, incast, 1); RANKS.into()];
            let (mut owners_left, mut most) = (RANKS - 1, 0);
            while owners_left > 0 {
                let width = incast.min(owners_left);
                let mut senders = vec![std::collections::BTreeSet::new(); usize::from(RANKS)];
                for _ in 0..SLOTS * u32::from(width) {
                    for (source, tour) in (0..).zip(&mut tours) {
                        let (owner, _) = open(tour, source, |_| SLOTS).expect("slots left");
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
            let mut tour = Tour::new(8, incast, 1);
            let mut next = [0; 8];
            while let Some((owner, position)) = open(&mut tour, 3, |_| 4) {
                let expected = &mut next[usize::from(owner)];
                assert_eq!(position, *expected);
                *expected += 1;
            }
        }
    }
}
