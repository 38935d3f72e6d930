//! What each rank's data weigh.

use super::reduce::Reduce;

/// Operations that the average is over.
const OPERATIONS: u32 = 64;

/// By rank: its weight in this rank's shard, 1/m where a slot counts it among m and 0 where it does not, averaged over
/// the slots and over the last operations, the older ones less. Without loss it is 1/N for each of N ranks; one that is
/// late every time has 0, and the others 1/(N−1).
#[derive(Default)]
pub(super) struct Weights {
    weights: Vec<f32>,
    operations: u32,
}

impl Weights {
    /// An operation ended of which every slot of this rank's shard has closed with one contribution or more.
    pub(super) fn operation_ended(&mut self, reduce: &Reduce, ranks: u16) {
        let slots = reduce.slots();
        if slots == 0 || reduce.open() > 0 || reduce.histogram()[0] > 0 {
            return;
        }
        self.weights.resize(ranks.into(), 0.0);
        self.operations = (self.operations + 1).min(OPERATIONS);
        let share = 1.0 / self.operations as f32;
        self.weights
            .iter_mut()
            .for_each(|weight| *weight *= 1.0 - share);
        let whole = reduce.histogram()[usize::from(ranks)];
        if whole == slots {
            let equal = share / f32::from(ranks);
            return self.weights.iter_mut().for_each(|weight| *weight += equal);
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
    pub(super) fn get(&self) -> &[f32] {
        &self.weights
    }
}
