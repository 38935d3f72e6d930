//! The owner's aggregates of the last steps, and the requests for them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ultima_wire::{RepairRequest, bitmap};

use crate::layout::Shape;
use crate::operation::OperationId;
use crate::time::Time;

use super::sent::SentAgain;
use super::{Recycling, RecyclingCounters};

/// An aggregate to send again.
pub(crate) struct Repair<'a> {
    pub(crate) to: u16,
    pub(crate) id: OperationId,
    pub(crate) slot: u32,
    /// Number of slots in the shard.
    pub(crate) slots: u32,
    pub(crate) contributions: u16,
    pub(crate) shape: Shape,
    pub(crate) values: &'a [f32],
    /// Number of values in the slot.
    pub(crate) count: usize,
    /// The ranks that it counts; none for all.
    pub(crate) counted: Option<&'a [u8]>,
}

/// A rank that requests repairs.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) rank: u16,
    /// The round trip to it.
    pub(crate) round_trip: Duration,
}

/// This rank's shard of the last operations, bounded in steps. Requests are bounded in ranks times
/// operations.
///
/// A slot is sent to a rank at most once per round trip, however often the rank requests it: before that, the
/// request cannot be an answer to the repair.
pub(crate) struct Store {
    rank: u16,
    ranks: u16,
    recycling: Recycling,
    kept: Vec<KeptShard>,
    /// Ranks with slots left to send, the oldest request first.
    asked: VecDeque<Asked>,
    /// True if no asking rank had room at the last call of [`Store::next`].
    held: bool,
    /// Slots sent again recently, by rank and operation.
    sent: HashMap<(u16, OperationId), SentAgain>,
    spare: Vec<KeptShard>,
    counters: RecyclingCounters,
}

struct KeptShard {
    id: OperationId,
    shape: Shape,
    values: Vec<f32>,
    /// By slot, a bitmap of the counted ranks each.
    counted: Vec<u8>,
}

struct Asked {
    to: u16,
    id: OperationId,
    slots: Vec<u8>,
    /// No slot before this one is requested.
    next: usize,
}

impl Store {
    pub(crate) fn new(recycling: Recycling, rank: u16, ranks: u16) -> Self {
        Self {
            rank,
            ranks,
            recycling,
            kept: Vec::new(),
            asked: VecDeque::new(),
            held: false,
            sent: HashMap::new(),
            spare: Vec::new(),
            counters: RecyclingCounters::default(),
        }
    }

    pub(crate) fn counters(&self) -> RecyclingCounters {
        self.counters
    }

    /// Starts a step: removes old operations.
    pub(crate) fn enter_step(&mut self, step: u32) {
        let keep = self.recycling.keep;
        let old = |id: OperationId| step.saturating_sub(id.step) >= keep;
        self.asked.retain(|asked| !old(asked.id));
        self.sent.retain(|(_, id), _| !old(*id));
        let forgotten = self.kept.extract_if(.., |kept| old(kept.id));
        self.spare.extend(forgotten);
    }

    /// Stores this rank's aggregates of an operation: its shard's `values`, and the ranks that each slot
    /// counts.
    pub(crate) fn keep(
        &mut self,
        id: OperationId,
        shape: Shape,
        values: &[f32],
        counted: impl Fn(u32, u16) -> bool,
    ) {
        let mut kept = self.spare.pop().unwrap_or_else(|| KeptShard {
            id,
            shape,
            values: Vec::new(),
            counted: Vec::new(),
        });
        (kept.id, kept.shape) = (id, shape);
        kept.values.clear();
        kept.values.extend_from_slice(values);
        let slots = shape.layout.slots(self.rank);
        let each = bitmap::len(self.ranks.into());
        kept.counted.clear();
        kept.counted.resize(each * slots as usize, 0);
        for (slot, bits) in (0..slots).zip(kept.counted.chunks_exact_mut(each)) {
            (0..self.ranks)
                .filter(|&rank| counted(slot, rank))
                .for_each(|rank| bitmap::insert(bits, rank.into()));
        }
        self.kept.push(kept);
    }

    /// The ranks that a slot counts, for a stored operation.
    pub(crate) fn counted(&self, id: OperationId, slot: u32) -> Option<&[u8]> {
        let kept = self.kept.iter().find(|kept| kept.id == id)?;
        Some(kept.counted(self.ranks, slot))
    }

    /// Handles a rank's request. Ignores slots that
    /// are not stored, have another layout, or were sent recently.
    pub(crate) fn ask(
        &mut self,
        now: Time,
        Asking {
            rank: to,
            round_trip,
        }: Asking,
        id: OperationId,
        slots: u32,
        request: &RepairRequest<'_>,
    ) {
        let rank = self.rank;
        let known = |kept: &KeptShard| kept.id == id && kept.shape.layout.slots(rank) == slots;
        if !self.kept.iter().any(known) {
            return;
        }
        self.counters.requests_received += 1;
        let sent = self.sent.entry((to, id)).or_default();
        sent.measured(round_trip);
        let first = request.first as usize;
        let numbers = bitmap::numbers(request.wanted).map(|number| first + number);
        let mut wanted = numbers
            .take_while(|&slot| slot < slots as usize)
            .filter(|&slot| !sent.contains(now, slot))
            .peekable();
        if wanted.peek().is_none() {
            return;
        }
        let at = self
            .asked
            .iter()
            .position(|asked| (asked.to, asked.id) == (to, id));
        let at = at.unwrap_or_else(|| {
            self.asked.push_back(Asked {
                to,
                id,
                slots: vec![0; bitmap::len(slots as usize)],
                next: 0,
            });
            self.asked.len() - 1
        });
        self.held = false;
        let asked = &mut self.asked[at];
        for slot in wanted {
            bitmap::insert(&mut asked.slots, slot);
            asked.next = asked.next.min(slot);
        }
    }

    /// True if [`Store::next`] returns a repair.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Notes that a rank may have room again.
    pub(crate) fn release(&mut self) {
        self.held = false;
    }

    /// True if an aggregate can be sent again, as far as is known.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_asked() && !self.held
    }

    /// The next aggregate to send again, counted as sent, to a rank that has room.
    pub(crate) fn next(
        &mut self,
        now: Time,
        mut has_room: impl FnMut(u16) -> bool,
    ) -> Option<Repair<'_>> {
        loop {
            let first = self.asked.iter().position(|asked| has_room(asked.to));
            self.held = first.is_none() && self.is_asked();
            let first = first?;
            let asked = &mut self.asked[first];
            let (to, id, end) = (asked.to, asked.id, 8 * asked.slots.len());
            let wanted = (asked.next..end).find(|&slot| bitmap::contains(&asked.slots, slot));
            let (Some(slot), Some(at)) = (wanted, self.kept.iter().position(|k| k.id == id)) else {
                self.asked.remove(first);
                continue;
            };
            asked.slots[slot / 8] &= !(1 << (slot % 8));
            asked.next = slot + 1;
            let kept = &self.kept[at];
            let slots = kept.shape.layout.slots(self.rank);
            let sent = self.sent.entry((to, id)).or_default();
            sent.insert(now, slot, slots as usize);
            let slot = slot as u32;
            let shard = kept.shape.layout.shard(self.rank);
            let place = kept.shape.layout.slot(self.rank, slot);
            let counted = kept.counted(self.ranks, slot);
            let contributions = bitmap::count(counted) as u16;
            self.counters.repairs_sent += 1;
            return Some(Repair {
                to,
                id,
                slot,
                slots,
                contributions,
                shape: kept.shape,
                values: kept
                    .values
                    .get(place.start - shard.start..place.end - shard.start)
                    .unwrap_or_default(),
                count: place.len(),
                counted: (contributions < self.ranks).then_some(counted),
            });
        }
    }

    /// Counts a received REPAIR.
    pub(crate) fn count_received(&mut self) {
        self.counters.repairs_received += 1;
    }
}

impl KeptShard {
    fn counted(&self, ranks: u16, slot: u32) -> &[u8] {
        let each = bitmap::len(ranks.into());
        &self.counted[slot as usize * each..][..each]
    }
}

#[cfg(test)]
mod tests {
    use ultima_wire::Requested;

    use super::*;
    use crate::codec::Coding;
    use crate::layout::Layout;

    fn id(step: u32) -> OperationId {
        OperationId { step, bucket: 0 }
    }

    /// Rank 1 of 3 with shards of 10 slots of 2 values; slot 4 lacks rank 2.
    fn store() -> Store {
        let mut store = Store::new(Recycling { keep: 2 }, 1, 3);
        let layout = Layout::new(60, 3, 2);
        let values: Vec<f32> = (20u8..40).map(f32::from).collect();
        let coding = Coding::Identity;
        let shape = Shape {
            layout,
            coding,
            length_check: 0,
        };
        store.keep(id(5), shape, &values, |slot, rank| (slot, rank) != (4, 2));
        store
    }

    /// Destination, slot, contributions, values, and the counted ranks if not all.
    type SentRepair = (u16, u32, u16, Vec<f32>, Option<Vec<u8>>);

    /// Slots that `rank` asks for at a time in microseconds; packets take 100 us to it and back.
    fn ask(
        store: &mut Store,
        us: u64,
        rank: u16,
        (id, slots): (OperationId, u32),
        (first, wanted): (u32, &[u8]),
    ) {
        let asking = Asking {
            rank,
            round_trip: Duration::from_micros(100),
        };
        let of = Requested::Aggregates;
        let request = RepairRequest { of, first, wanted };
        store.ask(at(us), asking, id, slots, &request);
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Duration::from_micros(us)
    }

    fn sent(store: &mut Store, us: u64) -> Vec<SentRepair> {
        std::iter::from_fn(|| {
            let repair = store.next(at(us), |_| true)?;
            let (values, counted) = (repair.values.to_vec(), repair.counted.map(<[u8]>::to_vec));
            Some((
                repair.to,
                repair.slot,
                repair.contributions,
                values,
                counted,
            ))
        })
        .collect()
    }

    #[test]
    fn every_slot_asked_for_is_sent_once() {
        let mut store = store();
        ask(&mut store, 0, 0, (id(5), 10), (3, &[0b11]));
        ask(&mut store, 0, 0, (id(5), 10), (4, &[0b1]));
        ask(&mut store, 0, 2, (id(5), 10), (9, &[0xff, 0xff]));
        assert_eq!(
            sent(&mut store, 0),
            [
                (0, 3, 3, vec![26.0, 27.0], None),
                (0, 4, 2, vec![28.0, 29.0], Some(vec![0b011])),
                (2, 9, 3, vec![38.0, 39.0], None),
            ]
        );
        assert!(!store.is_asked());
    }

    #[test]
    fn slots_in_flight_are_not_sent_again() {
        let mut store = store();
        let slots = |store: &mut Store, us| -> Vec<(u16, u32)> {
            sent(store, us)
                .iter()
                .map(|sent| (sent.0, sent.1))
                .collect()
        };
        ask(&mut store, 0, 0, (id(5), 10), (3, &[0b11]));
        // They are sent late: only then the round trip starts.
        assert_eq!(slots(&mut store, 500), [(0, 3), (0, 4)]);
        ask(&mut store, 590, 0, (id(5), 10), (3, &[0b111]));
        ask(&mut store, 590, 2, (id(5), 10), (3, &[0b1]));
        assert_eq!(slots(&mut store, 590), [(0, 5), (2, 3)]);
        ask(&mut store, 800, 0, (id(5), 10), (3, &[0b111]));
        assert_eq!(slots(&mut store, 800), [(0, 3), (0, 4), (0, 5)]);
    }

    #[test]
    fn a_flood_of_requests_is_answered_once_in_a_round_trip() {
        let mut store = store();
        let mut count = 0;
        for us in 0..10_000 {
            ask(&mut store, us, 0, (id(5), 10), (0, &[0xff; 9]));
            count += sent(&mut store, us).len();
        }
        // Ten milliseconds are a hundred round trips; a slot is known for one to two of them.
        assert!((500..=1000).contains(&count), "{count}");
    }

    #[test]
    fn slots_that_are_not_stored_are_not_sent() {
        let mut store = store();
        ask(&mut store, 0, 0, (id(4), 10), (0, &[1]));
        ask(&mut store, 0, 0, (id(5), 11), (0, &[1]));
        ask(&mut store, 0, 0, (id(5), 10), (u32::MAX, &[1]));
        assert!(sent(&mut store, 0).is_empty());
        ask(&mut store, 0, 0, (id(5), 10), (0, &[1]));
        store.enter_step(7);
        assert!(sent(&mut store, 0).is_empty() && store.counted(id(5), 0).is_none());
        assert!(store.sent.is_empty());
    }
}
