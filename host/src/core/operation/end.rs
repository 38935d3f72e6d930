//! The end of an operation: its outcome.

use crate::cause::Losses;
use crate::core::recycler::Recycler;
use crate::operation::Part;
use crate::recycling;
use crate::stats::{ClosedBy, FromRank, Outcome};
use crate::time::Time;
use crate::timeout::{Ended, Policy, Stage};
use crate::values::ValueStore;

use super::{Buffers, Operation, Waiting};

impl<V: ValueStore> Operation<V> {
    /// Ends the operation because `bound` passed or nothing is outstanding. None if it had ended. Closed
    /// slots may still be sent, unless the outbox has abandoned them.
    pub(in crate::core) fn end(
        &mut self,
        rank: u16,
        now: Time,
        bound: Option<ClosedBy>,
        recycler: Option<&mut Recycler>,
        timeouts: &mut dyn Policy,
    ) -> Option<(Outcome, V, Buffers<V>)> {
        let waiting = self.waiting.take()?;
        if let Some(recycler) = recycler {
            self.recycle(rank, now, &waiting, recycler);
        }
        let Waiting {
            reduce,
            sums,
            collect,
            shard_duration,
        } = waiting;
        self.outbox.stop_scatter(now);
        self.outbox.end_turn_delay();
        let unsent = self.outbox.unsent();
        let mut result = (self.bucket).end(unsent.map(|slot| self.shape.layout.slot(rank, slot)));
        let missing = collect.zero_missing(&self.shape.layout, rank, &mut result);
        if self.part == Part::Scatter {
            self.zero_others_shards(rank, &mut result);
        }
        let duration = now.since(self.started);
        let closed_by = match (bound, missing.slots) {
            (Some(ClosedBy::Deadline), _) => ClosedBy::Deadline,
            (_, 0) => reduce.closed_by(),
            (bound, _) => reduce.closed_by().max(bound.unwrap_or(ClosedBy::KnownLoss)),
        };
        let shard_duration = shard_duration.unwrap_or(duration);
        let (scatter, gather) = (reduce.lost(), missing.causes);
        let phases = *self.outbox.counters();
        timeouts.ended(&Ended {
            step: self.id.step,
            bucket: self.id.bucket,
            stages: [
                Stage {
                    after: shard_duration,
                    closed_by: reduce.closed_by(),
                    owed: reduce.owed(),
                    missing: scatter,
                },
                Stage {
                    after: duration,
                    closed_by,
                    owed: collect.owed(),
                    missing: gather,
                },
            ],
            never_sent: [phases.scatter.never_sent, phases.gather.never_sent],
            overdue: &|rank| reduce.is_overdue(rank),
        });
        let arrived = |(other, contributions)| match other == rank {
            true => FromRank::default(),
            false => FromRank {
                contributions,
                aggregates: collect.came(other),
            },
        };
        let outcome = Outcome {
            id: self.id,
            closed_by,
            shard_closed_by: reduce.closed_by(),
            duration,
            shard_duration,
            last: self.last,
            t_s: self.bounds.t_s,
            t_b: self.bounds.t_b,
            contributions: reduce.histogram(),
            slots: self.shape.layout.all_slots().collect(),
            arrived: (0..).zip(reduce.came()).map(arrived).collect(),
            missed_aggregates: missing.slots,
            missed_values: missing.values,
            incomplete_aggregates: collect.incomplete(),
            suspected: Vec::new(),
            left: Vec::new(),
            newest_step: None,
            coded_otherwise: self.coded_otherwise.count,
            different: self.different.to_vec(),
            weights: Vec::new(),
            owed: reduce.owed() + collect.owed(),
            lost: Losses { scatter, gather },
            trimmed_by_hops: self.by_hops.take(),
            phases,
        };
        let buffers = Buffers {
            reduce,
            sums,
            collect,
        };
        Some((outcome, result, buffers))
    }
    /// Hands what is recycled to `recycler`: what was lost, and this rank's shard if nothing is open there, for ranks
    /// that ask for it again.
    fn recycle(&self, rank: u16, now: Time, waiting: &Waiting<V>, recycler: &mut Recycler) {
        let (reduce, collect) = (&waiting.reduce, &waiting.collect);
        let ended = recycling::FinishedOperation {
            id: self.id,
            shape: self.shape,
            own: self.bucket.own(),
            result: self.bucket.result(),
            t_b: self.bounds.t_b,
            lapsed: reduce.is_lapsed(),
            rounding: waiting.sums.rounding(),
            known: &|owner, slot| collect.known(owner, slot),
        };
        recycler.ledger.operation_ended(&ended, now);
        if !reduce.is_lapsed() && reduce.open() == 0 {
            let shard = self.bucket.aggregates(self.shape.layout.shard(rank));
            let counted = |slot, rank| reduce.counts(slot, rank);
            (recycler.store).keep(self.id, self.shape, shard, counted);
        }
    }

    /// The result of [`Part::Scatter`] is this rank's shard alone.
    fn zero_others_shards(&self, rank: u16, result: &mut V) {
        let shard = self.shape.layout.shard(rank);
        for others in [0..shard.start, shard.end..self.shape.layout.len()] {
            result.get_mut(others).fill(0.0);
        }
    }
}
