//! How long the others still wait for an operation, by what they said.

use crate::time::Time;

use super::Destination;

/// Until when each rank waits. What a sender stamps as a packet's budget is the longest wait among
/// its receivers; of one that has not told (FEEDBACK carries it), the sender's own.
pub(super) struct Waits {
    /// This rank's own end of the operation.
    deadline: Time,
    /// By rank.
    until: Vec<Option<Time>>,
    /// Others that have not told.
    unknown: u16,
    longest: Time,
}

impl Waits {
    pub(super) fn new(ranks: u16, deadline: Time) -> Self {
        Self {
            deadline,
            until: vec![None; usize::from(ranks)],
            unknown: ranks - 1,
            longest: Time::ZERO,
        }
    }

    /// `rank`, which is not this one, waits until `until`, by this rank's clock; the way here makes
    /// that a little too long.
    pub(super) fn advertised(&mut self, rank: u16, until: Time) {
        let known = &mut self.until[usize::from(rank)];
        // Repeats would only lengthen it by what they took longer on the way.
        if known.is_none() {
            *known = Some(until);
            self.unknown -= 1;
            self.longest = self.longest.max(until);
        }
    }

    /// Until when anyone at `to` waits.
    pub(super) fn until(&self, to: Destination) -> Time {
        match to {
            Destination::Rank(rank) => self.until[usize::from(rank)].unwrap_or(self.deadline),
            Destination::Group if self.unknown > 0 => self.longest.max(self.deadline),
            Destination::Group => self.longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_counts() {
        let at = Time::from_nanos;
        let mut waits = Waits::new(3, at(100));
        assert_eq!(waits.until(Destination::Rank(2)), at(100));
        waits.advertised(2, at(50));
        assert_eq!(waits.until(Destination::Rank(2)), at(50));
        assert_eq!(waits.until(Destination::Rank(1)), at(100));
        // Rank 1 has not told: it may wait as long as this rank does.
        assert_eq!(waits.until(Destination::Group), at(100));
        waits.advertised(1, at(70));
        waits.advertised(1, at(71));
        assert_eq!(waits.until(Destination::Group), at(70));
    }
}
