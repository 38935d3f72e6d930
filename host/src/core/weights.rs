//! The weight of each rank's data in this rank's shard.

use super::reduce::Reduce;

/// Number of operations in the moving average.
const OPERATIONS: u32 = 64;

/// By rank: its weight in this rank's shard, 1/m in a slot that counts it among m and 0 in one that does not,
/// averaged over the slots and over recent operations. Without loss it is 1/N for each of N ranks. A rank
/// that is always late has 0, and the others 1/(N−1).
#[derive(Default)]
pub(super) struct Weights {
    /// Empty while all ranks have the same weight.
    weights: Vec<f32>,
    equal: f32,
    operations: u32,
}

impl Weights {
    /// Notes an operation whose slots of this rank's shard have all closed with at least one contribution.
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
