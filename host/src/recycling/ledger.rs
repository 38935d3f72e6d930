//! The ledger of unresolved slots, whose aggregate this rank lacks, and of the corrections that result.

use std::time::Duration;

use ultima_wire::bitmap;

use crate::element::Element;
use crate::layout::Shape;
use crate::operation::OperationId;
use crate::time::Time;
use crate::values::ValueStore;

use super::{Correction, Recycling, RecyclingCounters, Sparse};

/// Number of requests for an unresolved slot, per step.
const TRIES: u8 = 5;
/// The first two requests are t_B divided by this apart, like notices. Each further interval doubles.
const FIRST_SPACING: u32 = 16;

/// The state of one slot of another rank's shard when the operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its aggregate arrived and includes this rank's contribution.
    Counted,
    /// Its aggregate arrived without this rank's contribution.
    Uncounted,
    /// Its aggregate is lost.
    Lost,
    /// Its aggregate may be on its way.
    Overdue,
}

/// An operation that ended at this rank.
pub(crate) struct FinishedOperation<'a, V> {
    pub(crate) id: OperationId,
    pub(crate) shape: Shape,
    /// This rank's contribution; in its own shard, unless that lapsed, its aggregates.
    pub(crate) own: &'a V,
    /// The aggregates that arrived.
    pub(crate) result: &'a V,
    /// The operation's t_B.
    pub(crate) t_b: Duration,
    /// True if this rank let its own shard lapse.
    pub(crate) lapsed: bool,
    /// Rounding error in the sums of this rank's own shard, by value. Empty if elements are not rounded.
    pub(crate) rounding: &'a [f32],
    /// State of the others' slots.
    pub(crate) known: &'a dyn Fn(u16, u32) -> Known,
}

/// A repair request to send.
pub(crate) struct Request<'a> {
    pub(crate) id: OperationId,
    pub(crate) owner: u16,
    /// Number of slots in the owner's shard.
    pub(crate) slots: u32,
    pub(crate) first: u32,
    pub(crate) wanted: &'a [u8],
}

/// Unresolved slots by operation, and corrections until they are taken. Whatever the network does, a slot is entered
/// once and leaves once, repaired or lapsed.
pub(crate) struct Ledger {
    rank: u16,
    ranks: u16,
    recycling: Recycling,
    element: Element,
    spacing: Duration,
    entries: Vec<Entry>,
    corrections: Vec<Correction>,
    counters: RecyclingCounters,
    /// The last request's bitmap.
    wanted: Vec<u8>,
}

struct Entry {
    id: OperationId,
    shape: Shape,
    /// By owner and slot, increasing.
    slots: Vec<Unresolved>,
    open: usize,
    /// This rank's contributions to `slots`, concatenated.
    own: Vec<f32>,
    tries: u8,
    due: Time,
    spacing: Duration,
    /// The first of `slots` that this round of requests has not covered.
    cursor: usize,
    /// No requests before: the aggregates may be on their way, and their repairs would only lengthen the queue they are in.
    not_before: Time,
    /// True if its corrections go into contributions instead of outputs.
    healed: bool,
}

struct Unresolved {
    owner: u16,
    slot: u32,
    /// Start of the contribution in the entry's.
    at: usize,
    open: bool,
}

impl Ledger {
    pub(crate) fn new(recycling: Recycling, rank: u16, ranks: u16, element: Element) -> Self {
        Self {
            rank,
            ranks,
            recycling,
            element,
            spacing: Duration::ZERO,
            entries: Vec::new(),
            corrections: Vec::new(),
            counters: RecyclingCounters::default(),
            wanted: Vec::new(),
        }
    }

    pub(crate) fn counters(&self) -> RecyclingCounters {
        self.counters
    }

    /// Starts a step: old slots lapse, and requests for the others repeat.
    pub(crate) fn enter_step(&mut self, step: u32, now: Time) {
        let keep = self.recycling.keep;
        let old = |entry: &Entry| step.saturating_sub(entry.id.step) >= keep;
        while let Some(at) = self.entries.iter().position(old) {
            self.lapse(at);
        }
        for entry in &mut self.entries {
            if step.saturating_sub(entry.id.step) >= keep / 2 {
                entry.not_before = now;
            }
            entry.ask_from(now, self.spacing);
        }
    }

    /// Applies rule 1 with a = 0.
    fn lapse(&mut self, at: usize) {
        let entry = self.entries.swap_remove(at);
        let correction = correction(&mut self.corrections, entry.id, entry.shape);
        for slot in entry.slots.iter().filter(|slot| slot.open) {
            let place = entry.shape.layout.slot(slot.owner, slot.slot);
            let own = entry.own[slot.at..].iter().copied();
            correction.residual.push(place, own);
            self.counters.lapsed += 1;
        }
    }

    /// Notes the end of an operation: applies rule 1 to slots with an aggregate, and enters the others as
    /// unresolved. Requests for overdue aggregates wait for another t_B, or half of [`Recycling::keep`] steps.
    pub(crate) fn operation_ended(
        &mut self,
        ended: &FinishedOperation<'_, impl ValueStore>,
        now: Time,
    ) {
        let layout = ended.shape.layout;
        self.spacing = ended.t_b / FIRST_SPACING;
        let mut residual = Sparse::default();
        let [mut lost, mut overdue] = [now, now + ended.t_b].map(|not_before| Entry {
            id: ended.id,
            shape: ended.shape,
            slots: Vec::new(),
            open: 0,
            own: Vec::new(),
            tries: 0,
            due: now,
            spacing: self.spacing,
            cursor: 0,
            not_before,
            healed: false,
        });
        for owner in 0..self.ranks {
            for slot in 0..layout.slots(owner) {
                let place = layout.slot(owner, slot);
                let own = ended.own.get(place.clone());
                if owner == self.rank {
                    let shard = layout.shard(owner).start;
                    let within = place.start - shard..place.end - shard;
                    match (ended.lapsed, ended.rounding.get(within)) {
                        (true, _) => residual.push(place, own.iter().copied()),
                        (false, Some(taken)) => residual.push(place, taken.iter().copied()),
                        (false, None) => {}
                    }
                    continue;
                }
                match (ended.known)(owner, slot) {
                    Known::Counted => {
                        if self.element.rounds() {
                            residual.push(place, rounded_off(self.element, own));
                        }
                    }
                    Known::Uncounted => {
                        self.counters.uncounted += 1;
                        let sent = ended.result.get(place.clone());
                        residual.push(place, own.iter().zip(sent).map(|(y, a)| y - a));
                    }
                    Known::Lost => lost.add(owner, slot, own),
                    Known::Overdue => overdue.add(owner, slot, own),
                }
            }
        }
        if !residual.is_empty() {
            let correction = correction(&mut self.corrections, ended.id, ended.shape);
            correction.residual = residual;
        }
        for mut entry in [lost, overdue].into_iter().filter(|entry| entry.open > 0) {
            self.counters.unresolved += entry.open as u64;
            entry.ask_from(now, self.spacing);
            self.entries.push(entry);
        }
    }

    /// Layout and coding of an operation with unresolved slots.
    pub(crate) fn shape(&self, id: OperationId) -> Option<Shape> {
        let entry = self.entries.iter().find(|entry| entry.id == id)?;
        Some(entry.shape)
    }

    /// Applies both rules to a checked aggregate that arrived after its operation's end, by GATHER or REPAIR.
    /// `counted` lists the ranks in it; none for all.
    pub(crate) fn repair(
        &mut self,
        id: OperationId,
        owner: u16,
        slot: u32,
        values: &[f32],
        counted: Option<&[u8]>,
    ) {
        let place = |slot: &Unresolved| (slot.owner, slot.slot);
        let of_operation = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.id == id);
        let mut found = of_operation.filter_map(|(at, entry)| {
            let index = entry.slots.binary_search_by_key(&(owner, slot), place);
            Some((at, index.ok()?))
        });
        let Some((at, index)) = found.next() else {
            return;
        };
        let entry = &mut self.entries[at];
        let unresolved = &mut entry.slots[index];
        if !std::mem::take(&mut unresolved.open) {
            return;
        }
        entry.open -= 1;
        self.counters.repaired += 1;
        let place = entry.shape.layout.slot(owner, slot);
        let sent = || values.iter().copied();
        let correction = correction(&mut self.corrections, id, entry.shape);
        match entry.healed {
            true => correction.residual.push(place.clone(), sent()),
            false => correction.output.push(place.clone(), sent()),
        }
        let own = &entry.own[unresolved.at..];
        if counted.is_some_and(|counted| !bitmap::contains(counted, self.rank.into())) {
            self.counters.uncounted += 1;
            let rest = own.iter().zip(sent()).map(|(y, a)| y - a);
            correction.residual.push(place, rest);
        } else if self.element.rounds() {
            let taken = rounded_off(self.element, own);
            correction.residual.push(place, taken);
        }
        if entry.open == 0 {
            self.entries.swap_remove(at);
        }
    }

    /// Directs corrections of earlier operations to contributions, because every rank's parameters were
    /// replaced by their mean.
    pub(crate) fn heal(&mut self) {
        self.entries
            .iter_mut()
            .for_each(|entry| entry.healed = true);
        for Correction {
            residual, output, ..
        } in &mut self.corrections
        {
            residual.append(output);
        }
    }

    /// The time at which [`Ledger::request`] returns a request.
    pub(crate) fn due(&self) -> Option<Time> {
        let asking = self.entries.iter().filter(|entry| entry.tries > 0);
        asking.map(|entry| entry.due).min()
    }

    /// The next request to send, counted as sent. Its bitmap takes at most `room` bytes, one or more.
    pub(crate) fn request(&mut self, now: Time, room: usize) -> Option<Request<'_>> {
        let due = |entry: &&mut Entry| entry.tries > 0 && entry.due <= now;
        let entry = self.entries.iter_mut().find(due)?;
        let open = |from: usize| (from..entry.slots.len()).find(|&at| entry.slots[at].open);
        // An entry without an open slot is removed.
        let start = open(entry.cursor).or_else(|| open(0))?;
        let Unresolved {
            owner, slot: first, ..
        } = entry.slots[start];
        self.wanted.clear();
        let mut end = start;
        let of_owner = |other: &&Unresolved| {
            other.owner == owner && ((other.slot - first) as usize) < 8 * room
        };
        for other in entry.slots[start..].iter().take_while(of_owner) {
            if other.open {
                let number = (other.slot - first) as usize;
                self.wanted.resize(bitmap::len(number + 1), 0);
                bitmap::insert(&mut self.wanted, number);
            }
            end += 1;
        }
        entry.cursor = end;
        if entry.slots[end..].iter().all(|slot| !slot.open) {
            entry.cursor = 0;
            entry.tries -= 1;
            entry.due = now + entry.spacing;
            entry.spacing *= 2;
        }
        self.counters.requests_sent += 1;
        Some(Request {
            id: entry.id,
            owner,
            slots: entry.shape.layout.slots(owner),
            first,
            wanted: &self.wanted,
        })
    }

    /// Takes the corrections of the bucket's earlier operations since the last call.
    pub(crate) fn take(&mut self, bucket: u16) -> Vec<Correction> {
        let of_bucket = |correction: &mut Correction| correction.id.bucket == bucket;
        self.corrections.extract_if(.., of_bucket).collect()
    }
}

impl Entry {
    /// Adds an unresolved slot, to which this rank contributed `own`.
    fn add(&mut self, owner: u16, slot: u32, own: &[f32]) {
        self.slots.push(Unresolved {
            owner,
            slot,
            at: self.own.len(),
            open: true,
        });
        self.own.extend_from_slice(own);
        self.open += 1;
    }

    /// Schedules requests from `now` if it is time, as many as in every step. A step takes longer than a round trip, so
    /// repairs that were requested in the one before would have arrived.
    fn ask_from(&mut self, now: Time, spacing: Duration) {
        self.due = now.max(self.not_before);
        self.cursor = 0;
        self.tries = TRIES;
        self.spacing = spacing;
    }
}

/// Rounding error of contributions that were counted: the owner read the rounded ones.
fn rounded_off(element: Element, own: &[f32]) -> impl Iterator<Item = f32> {
    own.iter().map(move |y| element.rounded_off(*y, 1))
}

/// The entry that collects corrections of operation `id`.
fn correction(corrections: &mut Vec<Correction>, id: OperationId, shape: Shape) -> &mut Correction {
    let known = corrections.iter().position(|c| c.id == id);
    let at = known.unwrap_or_else(|| {
        corrections.push(Correction {
            id,
            len: shape.layout.len(),
            coding: shape.coding,
            residual: Sparse::default(),
            output: Sparse::default(),
        });
        corrections.len() - 1
    });
    &mut corrections[at]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Coding;
    use crate::layout::Layout;
    use crate::values::Values;

    const ID: OperationId = OperationId { step: 3, bucket: 1 };
    const T_B: Duration = Duration::from_millis(16);

    /// Rank 0 of 3, shards of 40 slots of one value, contribution 5. All of rank 2's odd slots are unresolved.
    fn ledger() -> Ledger {
        ledger_lacking(2, Known::Lost)
    }

    fn ledger_lacking(keep: u32, lacking: Known) -> Ledger {
        ledger_where(keep, &|owner, slot| match (owner, slot % 2) {
            (2, 1) => lacking,
            _ => Known::Counted,
        })
    }

    fn ledger_where(keep: u32, known: &dyn Fn(u16, u32) -> Known) -> Ledger {
        let mut ledger = Ledger::new(Recycling { keep }, 0, 3, Element::F32);
        let layout = Layout::new(120, 3, 1);
        let ended = FinishedOperation {
            id: ID,
            shape: Shape {
                layout,
                coding: Coding::Identity,
                length_check: 0,
            },
            own: &Values::from(vec![5.0; 120]),
            result: &Values::from(vec![1.0; 120]),
            t_b: T_B,
            lapsed: false,
            rounding: &[],
            known,
        };
        ledger.operation_ended(&ended, Time::ZERO);
        ledger
    }

    fn dense(sparse: &Sparse) -> Vec<f32> {
        let mut values = vec![0.0; 120];
        sparse.add_to(&mut values);
        values
    }

    #[test]
    fn a_slot_is_repaired_once() {
        let mut ledger = ledger();
        for _ in 0..2 {
            ledger.repair(ID, 2, 1, &[2.0], None);
            ledger.repair(ID, 2, 3, &[2.0], Some(&[0b110]));
            // Never unresolved.
            ledger.repair(ID, 2, 4, &[2.0], None);
        }
        let corrections = ledger.take(ID.bucket);
        let [correction] = &corrections[..] else {
            panic!("one operation's: {corrections:?}");
        };
        let mut expected = vec![0.0; 120];
        (expected[81], expected[83]) = (2.0, 2.0);
        assert_eq!(dense(&correction.output), expected);
        expected.fill(0.0);
        expected[83] = 3.0;
        assert_eq!(dense(&correction.residual), expected);
        assert!(ledger.take(ID.bucket).is_empty());
        let counters = ledger.counters();
        assert_eq!((counters.unresolved, counters.repaired), (20, 2));
    }

    #[test]
    fn old_slots_lapse_to_the_whole_contribution() {
        let mut ledger = ledger();
        ledger.enter_step(4, Time::ZERO);
        assert!(ledger.take(ID.bucket).is_empty());
        ledger.enter_step(5, Time::ZERO);
        let corrections = ledger.take(ID.bucket);
        let odd: Vec<f32> = (0..120)
            .map(|at| if at > 80 && at % 2 == 1 { 5.0 } else { 0.0 })
            .collect();
        assert_eq!(dense(&corrections[0].residual), odd);
        assert!(corrections[0].output.is_empty());
        assert_eq!((ledger.due(), ledger.counters().lapsed), (None, 20));
    }

    #[test]
    fn requests_cover_every_slot_and_come_to_an_end() {
        let mut ledger = ledger();
        let mut rounds = Vec::new();
        while let Some(due) = ledger.due() {
            let mut slots = Vec::new();
            while let Some(request) = ledger.request(due, 2) {
                assert_eq!((request.owner, request.slots), (2, 40));
                let wanted = bitmap::numbers(request.wanted);
                slots.extend(wanted.map(|number| request.first + number as u32));
            }
            assert!(
                slots
                    .iter()
                    .copied()
                    .eq((0..40).filter(|slot| slot % 2 == 1))
            );
            rounds.push(due.since(Time::ZERO).as_millis());
        }
        assert_eq!(rounds, [0, 1, 3, 7, 15]);
        ledger.enter_step(4, Time::from_nanos(1));
        assert_eq!(ledger.due(), Some(Time::from_nanos(1)));
    }

    /// A late aggregate is not requested before another t_B has passed, or half of the steps in which it can be.
    #[test]
    fn aggregates_on_their_way_are_not_requested() {
        let mut ledger = ledger_lacking(4, Known::Overdue);
        let after_t_b = Time::ZERO + T_B;
        assert_eq!(ledger.due(), Some(after_t_b));
        let soon = Time::from_nanos(1);
        ledger.enter_step(4, soon);
        assert!(ledger.request(soon, 2).is_none());
        assert_eq!(ledger.due(), Some(after_t_b));
        ledger.enter_step(5, soon);
        assert!(ledger.request(soon, 2).is_some());
        // Those that are lost are requested at once.
        let mixed = |owner, slot| match (owner, slot) {
            (1, 7) => Known::Lost,
            (2, 1) => Known::Overdue,
            _ => Known::Counted,
        };
        let mut ledger = ledger_where(4, &mixed);
        let request = ledger
            .request(Time::ZERO, 2)
            .map(|request| (request.owner, request.first));
        assert_eq!(request, Some((1, 7)));
        assert!(ledger.request(Time::ZERO, 2).is_none());
        ledger.repair(ID, 2, 1, &[2.0], None);
        ledger.repair(ID, 1, 7, &[2.0], None);
        assert_eq!((ledger.due(), ledger.counters().repaired), (None, 2));
    }
}
