//! Ids and settings of a job's operations, from the order of calls.

use std::collections::BTreeSet;
use std::time::Duration;

use ultima_host::{Collective, Config, Gather, OperationId};

/// Settings of the operations that start next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The factor of gradients.
    pub(super) loss_scale: f32,
    /// This rank's delivery of its results.
    pub(super) gather: Gather,
    /// The deadline of bounded operations.
    pub(super) deadline: Duration,
}

impl Terms {
    /// Sets what operations have that start from now on.
    pub(super) fn apply(&self, collective: &mut Collective) {
        collective.set_loss_scale(self.loss_scale);
        collective.set_gather(self.gather);
        collective.set_deadline(self.deadline);
    }
}

/// Assigns ids. Ranks that make the same calls in the same order assign the same ids.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The next step.
    next: u32,
    /// Buckets of the current step; empty between steps.
    buckets: BTreeSet<u16>,
    /// Settings of the next operations.
    pub(super) terms: Terms,
}

impl Sequence {
    /// Begins at step `first`.
    pub(super) fn new(first: u32, config: &Config) -> Self {
        Self {
            next: first,
            buckets: BTreeSet::new(),
            terms: Terms {
                loss_scale: 1.0,
                gather: config.gather,
                deadline: config.t_b,
            },
        }
    }

    /// The id of an operation that is a step of its own.
    pub(super) fn step(&mut self) -> OperationId {
        self.end_step();
        let step = self.next;
        self.next += 1;
        OperationId { step, bucket: 0 }
    }

    /// Ends the current step: the next bucket begins another one.
    pub(super) fn end_step(&mut self) {
        self.buckets.clear();
    }

    /// The id of an operation of `bucket`: in the current step, unless that has had this bucket.
    pub(super) fn bucket(&mut self, bucket: u16) -> OperationId {
        if self.buckets.is_empty() || !self.buckets.insert(bucket) {
            self.next += 1;
            self.buckets = BTreeSet::from([bucket]);
        }
        let step = self.next - 1;
        OperationId { step, bucket }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_returns_begins_the_next_step() {
        let config = Config::new(1, 0, 0, 2, 42, Duration::from_secs(1));
        let mut sequence = Sequence::new(5, &config);
        let id = |step, bucket| OperationId { step, bucket };
        assert_eq!(sequence.step(), id(5, 0));
        assert_eq!(sequence.step(), id(6, 0));
        assert_eq!(sequence.bucket(1), id(7, 1));
        assert_eq!(sequence.bucket(0), id(7, 0));
        assert_eq!(sequence.bucket(1), id(8, 1));
        assert_eq!(sequence.step(), id(9, 0));
        assert_eq!(sequence.bucket(0), id(10, 0));
        sequence.end_step();
        assert_eq!(sequence.bucket(1), id(11, 1));
    }
}
