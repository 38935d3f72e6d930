//! Limit on all descendants of one received packet.
//!
//! `Limits::passes` bounds the depth of descent, but each pass may make many copies. So the copies, resubmits and
//! recirculations of a received packet and all its descendants are also counted together.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The count that a packet and its relatives have in common.
///
/// Most packets order their copies in one pass and nothing comes of these: then the count is a number
/// of the packet's own, and nothing is allocated for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Family {
    /// The count as long as there are no relatives.
    own: u32,
    shared: OnceLock<Arc<AtomicU32>>,
}

impl Family {
    /// Counts up to `wanted` more, as long as there are no more than `most` in all. How many of them
    /// may be.
    pub fn admit(&mut self, wanted: u32, most: u32) -> u32 {
        let admitted = |count: u32| wanted.min(most.saturating_sub(count));
        match self.shared.get() {
            Some(shared) => {
                let add = |count| Some(count + admitted(count));
                let before = shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                // `add` always has an answer.
                before.map_or(0, admitted)
            }
            None => {
                let admitted = admitted(self.own);
                self.own += admitted;
                admitted
            }
        }
    }

    /// The same family, for another packet of it.
    pub fn join(&self) -> Family {
        let shared = self
            .shared
            .get_or_init(|| Arc::new(AtomicU32::new(self.own)));
        Family {
            own: 0,
            shared: shared.clone().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatives_count_together_and_strangers_do_not() {
        let mut first = Family::default();
        assert_eq!(first.admit(3, 10), 3);
        let mut second = first.join();
        let mut third = second.join();
        assert_eq!(second.admit(4, 10), 4);
        assert_eq!(third.admit(9, 10), 3, "what is left of 10");
        assert_eq!([first.admit(1, 10), second.admit(1, 10)], [0, 0]);
        assert_eq!(Family::default().admit(20, 10), 10);
    }
}
