//! What each rank's data weigh.

use super::reduce::Reduce;

/// Operations that the average is over.
const OPERATIONS: u32 = 64;

/// By rank: its weight in this rank's shard, 1/m where a slot counts it among m and 0 where it does not, averaged over
/// the slots and over the last operations, the older ones less. Without loss it is 1/N for each of N ranks; one that is
/// late every time has 0, and the others 1/(N−1).
#[derive(Default)]
pub(super) struct Weights {
    /// Empty while all have the same.
    weights: Vec<f32>,
    equal: f32,
    operations: u32,
}

impl Weights {
    /// An operation ended of which every slot of this rank's shard has closed with one contribution or more.
    pub(super) fn operation_ended(&mut self, reduce: &Reduce, ranks: u16) {
        let slots = reduce.slots();
        if slots == 0 || reduce.open() > 0 || reduce.is_lapsed() {
            return;
        }
        self.operations = (self.operations + 1).min(OPERATIONS);
        let share = 1.0 / self.operations as f32;
        let all = |weights: &mut Self, change: &dyn Fn(&mut f32)| {
            weights.weights.iter_mut().for_each(change);
            change(&mut weights.equal);
        };
        all(self, &|weight| *weight *= 1.0 - share);
        if reduce.whole() == slots {
            let equal = share / f32::from(ranks);
            return all(self, &|weight| *weight += equal);
        }
        if self.weights.is_empty() {
            self.weights.resize(ranks.into(), self.equal);
        }
        for slot in 0..slots {
            let counted = |rank: &u16| reduce.counts(slot, *rank);
            let contributions = (0..ranks).filter(counted).count() as f32;
            for rank in (0..ranks).filter(counted) {
                self.weights[usize::from(rank)] += share / contributions / slots as f32;
            }
        }
    }

    /// By rank; empty before the first operation.
    pub(super) fn of_ranks(&self, ranks: u16) -> Vec<f32> {
        match (self.operations, self.weights.is_empty()) {
            (0, _) => Vec::new(),
            (_, true) => vec![self.equal; ranks.into()],
            (_, false) => self.weights.clone(),
        }
    }
}
