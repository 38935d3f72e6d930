//! How many packets came that show that what their source sent before them is lost.

/// By rank: packets heard that it sent after its last one of a phase, counted only where packets may overtake each other.
#[derive(Default)]
pub(super) struct SentAfter {
    /// Packets that may come before one that was sent before them.
    reorder: u32,
    heard: Vec<u32>,
}

impl SentAfter {
    /// Nothing was heard; allocates only when there never were as many ranks.
    pub(super) fn reset(&mut self, ranks: u16, reorder: u32) {
        self.reorder = reorder;
        self.heard.clear();
        if reorder > 0 {
            self.heard.resize(ranks.into(), 0);
        }
    }

    /// Another one came from `rank`; true if they are too many to have overtaken what is missing.
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
    fn as_many_as_may_overtake_show_nothing() {
        let mut after = SentAfter::default();
        for (reorder, expected) in [(0, [true; 3]), (2, [false, false, true]), (0, [true; 3])] {
            after.reset(3, reorder);
            assert_eq!([(); 3].map(|()| after.heard(2)), expected);
        }
    }
}
