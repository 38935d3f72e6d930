//! Replicas that switches ordered for a job and egress never saw: their queues dropped them.
//!
//! Ingress counts packets and egress counts replicas. The expected replicas follow from the size of
//! the job's group, which changes when its tree is rerouted. After a reroute the count therefore
//! starts again, and the drops from before are added to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ultima_api::v1 as api;
use ultima_planner::fabric::SwitchId;

use super::lock::lock;

/// The known drops of a job, by switch.
#[derive(Debug, Default)]
pub struct TailDrops(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Reroutes that have begun, and reroutes that have ended.
    moves: [u64; 2],
    at: BTreeMap<SwitchId, SwitchDrops>,
}

/// The known drops at one switch.
#[derive(Debug, Default)]
struct SwitchDrops {
    /// Reroutes that had ended when [`since`](Self::since) was read.
    moves: u64,
    /// The counters from which drops are computed.
    since: Balance,
    /// The drops before that.
    before: u64,
    /// All drops at the last read.
    total: u64,
}

/// The start of a read. Counters that are read across a reroute cannot be evaluated.
#[derive(Clone, Copy, Debug)]
pub struct ReadStart([u64; 2]);

/// A reroute of the job's tree in progress, until this is dropped.
#[derive(Debug)]
pub struct Rerouting(Arc<TailDrops>);

impl Drop for Rerouting {
    fn drop(&mut self) {
        lock(&self.0.0).moves[1] += 1;
    }
}

/// The counters of ordered and seen packets.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    /// Packets that the group replicates.
    replicated: u64,
    /// Packets that leave once.
    single: u64,
    /// Replicas and packets that egress saw.
    seen: u64,
}

impl Balance {
    fn new(counters: &api::SwitchCounters) -> Self {
        let packets = |count: &Option<api::Count>| count.map_or(0, |count| count.packets);
        let api::SwitchCounters {
            replicated,
            unicast,
            reflected,
            delivered,
            own_copy,
            unknown_rank,
            ..
        } = counters;
        let sum = |counts: &[&Option<api::Count>]| {
            let counts = counts.iter().map(|count| packets(count));
            counts.fold(0, u64::saturating_add)
        };
        Balance {
            replicated: packets(replicated),
            single: sum(&[unicast, reflected]),
            seen: sum(&[delivered, own_copy, unknown_rank]),
        }
    }

    /// The difference to an earlier read; none if the switch has restarted.
    fn since(self, then: Balance) -> Option<Balance> {
        Some(Balance {
            replicated: self.replicated.checked_sub(then.replicated)?,
            single: self.single.checked_sub(then.single)?,
            seen: self.seen.checked_sub(then.seen)?,
        })
    }

    /// The missing replicas, for a group of `replicas`. Packets in flight during the read can make
    /// egress appear ahead.
    fn missing(self, replicas: u64) -> u64 {
        let ordered = self.replicated.saturating_mul(replicas);
        let ordered = ordered.saturating_add(self.single);
        ordered.saturating_sub(self.seen)
    }
}

impl TailDrops {
    /// Begins a reroute of the job's tree.
    pub fn begin_reroute(self: &Arc<Self>) -> Rerouting {
        lock(&self.0).moves[0] += 1;
        Rerouting(Arc::clone(self))
    }

    /// Begins a read of counters.
    pub fn begin_read(&self) -> ReadStart {
        ReadStart(lock(&self.0).moves)
    }

    /// The drops at `switch` so far, from counters that were read after `start`, for a group of
    /// `replicas`.
    pub fn drops_at(
        &self,
        start: ReadStart,
        switch: SwitchId,
        counters: &api::SwitchCounters,
        replicas: u64,
    ) -> u64 {
        let known = &mut *lock(&self.0);
        let moves = known.moves;
        let here = known.at.entry(switch).or_default();
        if start.0 != moves || moves[0] != moves[1] {
            return here.total;
        }
        let now = Balance::new(counters);
        if here.moves != moves[1] {
            (here.moves, here.since, here.before) = (moves[1], now, here.total);
        }
        let missing = now.since(here.since).unwrap_or_else(|| {
            (here.since, here.before) = (Balance::default(), 0);
            now
        });
        here.total = here.before.saturating_add(missing.missing(replicas));
        here.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: SwitchId = SwitchId(1);

    fn counters(replicated: u64, unicast: u64, delivered: u64) -> api::SwitchCounters {
        let [replicated, unicast, delivered] =
            [replicated, unicast, delivered].map(|packets| Some(api::Count { packets, bytes: 0 }));
        api::SwitchCounters {
            replicated,
            unicast,
            delivered,
            ..api::SwitchCounters::default()
        }
    }

    #[test]
    fn replicas_that_egress_never_saw_were_dropped() {
        let drops = TailDrops::default();
        let drops_at =
            |counters, replicas| drops.drops_at(drops.begin_read(), HERE, &counters, replicas);
        assert_eq!(drops_at(counters(5, 5, 15), 4), 10);
        // Replicas that egress had already counted when ingress was read.
        assert_eq!(drops_at(counters(5, 5, 26), 4), 0);
        assert_eq!(drops_at(counters(u64::MAX, 1, 1), u64::MAX), u64::MAX - 1);
        assert_eq!(drops_at(counters(0, 0, u64::MAX), 0), 0);
    }

    #[test]
    fn drops_are_computed_with_the_group_of_their_time() {
        let drops = Arc::new(TailDrops::default());
        let drops_at =
            |counters, replicas| drops.drops_at(drops.begin_read(), HERE, &counters, replicas);
        assert_eq!(drops_at(counters(100, 0, 399), 4), 1);
        let old = drops.begin_read();
        let moving = drops.begin_reroute();
        // Replicated by both trees, and then by the new one.
        assert_eq!(drops_at(counters(110, 0, 450), 2), 1);
        let amid = drops.begin_read();
        drop(moving);
        for start in [old, amid] {
            assert_eq!(drops.drops_at(start, HERE, &counters(120, 0, 470), 2), 1);
        }
        assert_eq!(drops_at(counters(130, 0, 490), 2), 1);
        assert_eq!(drops_at(counters(140, 0, 507), 2), 4);
        // A switch that has restarted counts from zero.
        assert_eq!(drops_at(counters(10, 0, 18), 2), 2);
    }

    #[test]
    fn overlapping_reroutes_are_both_excluded() {
        let drops = Arc::new(TailDrops::default());
        let [first, second] = [drops.begin_reroute(), drops.begin_reroute()];
        drop(first);
        assert_eq!(
            drops.drops_at(drops.begin_read(), HERE, &counters(9, 0, 0), 2),
            0
        );
        drop(second);
        assert_eq!(
            drops.drops_at(drops.begin_read(), HERE, &counters(9, 0, 0), 2),
            0
        );
        assert_eq!(
            drops.drops_at(drops.begin_read(), HERE, &counters(10, 0, 0), 2),
            2
        );
    }
}
