//! Copies that switches ordered for a job and egress never saw: their queues dropped them.
//!
//! Ingress counts packets and egress copies, so what was ordered is known only with how many copies the job's group makes of a packet,
//! and that changes when its tree moves. What was ordered before is therefore reckoned no more: from the first look after a
//! move on, a switch's drops are added to those that were known before it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::controller::lock;
use crate::api;
use crate::fabric::SwitchId;

/// What is known of a job's, by switch.
#[derive(Debug, Default)]
pub struct TailDrops(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Moves that have begun, and those that have ended.
    moves: [u64; 2],
    at: BTreeMap<SwitchId, Reckoned>,
}

/// What is known of those at one switch.
#[derive(Debug, Default)]
struct Reckoned {
    /// Moves that had ended when [`since`](Self::since) was counted.
    moves: u64,
    /// From where on copies are reckoned.
    since: Balance,
    /// Those before.
    before: u64,
    /// All, when it was last looked.
    told: u64,
}

/// When somebody began to count: what is counted while the tree moves cannot be reckoned.
#[derive(Clone, Copy, Debug)]
pub struct Look([u64; 2]);

/// The job's tree moves until this is dropped.
#[derive(Debug)]
pub struct Moving(Arc<TailDrops>);

impl Drop for Moving {
    fn drop(&mut self) {
        lock(&self.0.0).moves[1] += 1;
    }
}

/// What has been counted of what was ordered, and of what came of it.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    /// Packets of which the group makes copies.
    replicated: u64,
    /// Packets that leave once.
    single: u64,
    /// Copies and packets that egress saw.
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

    /// What was counted since then; none if the switch has begun anew.
    fn since(self, then: Balance) -> Option<Balance> {
        Some(Balance {
            replicated: self.replicated.checked_sub(then.replicated)?,
            single: self.single.checked_sub(then.single)?,
            seen: self.seen.checked_sub(then.seen)?,
        })
    }

    /// Copies that are missing where a group makes so many. What is under way while the counters are read can make them less than nothing.
    fn missing(self, copies: u64) -> u64 {
        let ordered = self.replicated.saturating_mul(copies);
        let ordered = ordered.saturating_add(self.single);
        ordered.saturating_sub(self.seen)
    }
}

impl TailDrops {
    /// The job's tree begins to move.
    pub fn begin_move(self: &Arc<Self>) -> Moving {
        lock(&self.0).moves[0] += 1;
        Moving(Arc::clone(self))
    }

    /// To be asked for before counters are read.
    pub fn look(&self) -> Look {
        Look(lock(&self.0).moves)
    }

    /// How many copies `switch` is known to have dropped by now, whose counters were read after `look`, and whose group makes so many
    /// copies of a packet.
    pub fn reckon(
        &self,
        look: Look,
        switch: SwitchId,
        counters: &api::SwitchCounters,
        copies: u64,
    ) -> u64 {
        let known = &mut *lock(&self.0);
        let moves = known.moves;
        let here = known.at.entry(switch).or_default();
        if look.0 != moves || moves[0] != moves[1] {
            return here.told;
        }
        let now = Balance::new(counters);
        if here.moves != moves[1] {
            (here.moves, here.since, here.before) = (moves[1], now, here.told);
        }
        let missing = now.since(here.since).unwrap_or_else(|| {
            (here.since, here.before) = (Balance::default(), 0);
            now
        });
        here.told = here.before.saturating_add(missing.missing(copies));
        here.told
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
    fn what_was_ordered_and_not_seen_was_dropped() {
        let drops = TailDrops::default();
        let reckon = |counters, copies| drops.reckon(drops.look(), HERE, &counters, copies);
        assert_eq!(reckon(counters(5, 5, 15), 4), 10);
        // Copies that egress had seen when ingress was read already.
        assert_eq!(reckon(counters(5, 5, 26), 4), 0);
        assert_eq!(reckon(counters(u64::MAX, 1, 1), u64::MAX), u64::MAX - 1);
        assert_eq!(reckon(counters(0, 0, u64::MAX), 0), 0);
    }

    #[test]
    fn copies_are_reckoned_with_those_of_their_time() {
        let drops = Arc::new(TailDrops::default());
        let reckon = |counters, copies| drops.reckon(drops.look(), HERE, &counters, copies);
        assert_eq!(reckon(counters(100, 0, 399), 4), 1);
        let old = drops.look();
        let moving = drops.begin_move();
        // By both trees, and then by the new one.
        assert_eq!(reckon(counters(110, 0, 450), 2), 1);
        let amid = drops.look();
        drop(moving);
        for look in [old, amid] {
            assert_eq!(drops.reckon(look, HERE, &counters(120, 0, 470), 2), 1);
        }
        assert_eq!(reckon(counters(130, 0, 490), 2), 1);
        assert_eq!(reckon(counters(140, 0, 507), 2), 4);
        // One that was started again counts from nothing.
        assert_eq!(reckon(counters(10, 0, 18), 2), 2);
    }

    #[test]
    fn a_second_move_in_the_middle_of_one_counts() {
        let drops = Arc::new(TailDrops::default());
        let [first, second] = [drops.begin_move(), drops.begin_move()];
        drop(first);
        assert_eq!(drops.reckon(drops.look(), HERE, &counters(9, 0, 0), 2), 0);
        drop(second);
        assert_eq!(drops.reckon(drops.look(), HERE, &counters(9, 0, 0), 2), 0);
        assert_eq!(drops.reckon(drops.look(), HERE, &counters(10, 0, 0), 2), 2);
    }
}
