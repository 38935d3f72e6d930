//! The event queue.

use crate::clock::Ps;

/// The next time of each of a fixed number of sources, and the earliest of them.
///
/// A tournament tree: each inner node has the earlier of its two children, the source with the smaller number
/// on a tie, so the order of events is deterministic. A change walks up until a node's winner stays the same.
/// No event allocates, and memory depends only on the number of sources.
pub(crate) struct Agenda {
    times: Vec<Ps>,
    /// Node *i* has the children 2*i* and 2*i* + 1. Sources start at `leaves`.
    winners: Vec<u32>,
    leaves: usize,
}

impl Agenda {
    /// Creates an agenda for the sources 0 to `sources` − 1, without events.
    pub(crate) fn new(sources: usize) -> Self {
        let leaves = sources.next_power_of_two();
        let mut winners: Vec<u32> = vec![0; 2 * leaves];
        for (source, leaf) in (0..).zip(&mut winners[leaves..]) {
            *leaf = source;
        }
        for node in (1..leaves).rev() {
            winners[node] = winners[2 * node];
        }
        Self {
            times: vec![Ps::NEVER; leaves],
            winners,
            leaves,
        }
    }

    /// The next time of `source`.
    pub(crate) fn of(&self, source: u32) -> Ps {
        self.times[source as usize]
    }

    /// Sets the next time of `source`; [`Ps::NEVER`] for none.
    pub(crate) fn set(&mut self, source: u32, at: Ps) {
        if std::mem::replace(&mut self.times[source as usize], at) == at {
            return;
        }
        let mut node = (self.leaves + source as usize) / 2;
        while node > 0 {
            let [left, right] = [self.winners[2 * node], self.winners[2 * node + 1]];
            let winner = if self.times[right as usize] < self.times[left as usize] {
                right
            } else {
                left
            };
            if std::mem::replace(&mut self.winners[node], winner) == winner && winner != source {
                return;
            }
            node /= 2;
        }
    }

    /// The earliest source and its time, if there is one.
    pub(crate) fn next(&self) -> Option<(Ps, u32)> {
        let source = self.winners[1.min(self.winners.len() - 1)];
        let at = self.of(source);
        (at < Ps::NEVER).then_some((at, source))
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_earliest_is_next_and_the_first_of_equals() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        for sources in [1, 2, 5, 64, 100] {
            let mut agenda = Agenda::new(sources);
            let mut times = vec![Ps::NEVER; sources];
            assert_eq!(agenda.next(), None);
            for _ in 0..2000 {
                let source = (random.next_u64() % sources as u64) as usize;
                let at = match random.next_u64() % 30 {
                    0 => Ps::NEVER,
                    at => Ps(at),
                };
                times[source] = at;
                agenda.set(source as u32, at);
                let expected = times
                    .iter()
                    .zip(0..)
                    .map(|(at, source)| (*at, source))
                    .min()
                    .filter(|(at, _)| *at < Ps::NEVER);
                assert_eq!(agenda.next(), expected);
            }
        }
    }
}
