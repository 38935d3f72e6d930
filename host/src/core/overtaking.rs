//! Counters of later packets that show that earlier ones of their source are lost.

/// By rank: packets that it sent after its last one of a phase. Counted only if packets may overtake each
/// other.
#[derive(Default)]
pub(super) struct SentAfter {
    /// Number of later packets that may arrive before an earlier one.
    reorder: u32,
    heard: Vec<u32>,
}

impl SentAfter {
    /// Resets all counters. Allocates only for the largest number of ranks so far.
    pub(super) fn reset(&mut self, ranks: u16, reorder: u32) {
        self.reorder = reorder;
        self.heard.clear();
        if reorder > 0 {
            self.heard.resize(ranks.into(), 0);
        }
    }

    /// Counts a packet from `rank`. Returns true if there are too many to have overtaken the missing ones.
    pub(super) fn heard(&mut self, rank: u16) -> bool {
        match self.heard.get_mut(usize::from(rank)) {
            Some(heard) => {
                *heard = heard.saturating_add(1);
                *heard > self.reorder
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_within_the_reorder_limit_show_no_loss() {
        let mut after = SentAfter::default();
        for (reorder, expected) in [(0, [true; 3]), (2, [false, false, true]), (0, [true; 3])] {
            after.reset(3, reorder);
            assert_eq!([(); 3].map(|()| after.heard(2)), expected);
        }
    }
}
