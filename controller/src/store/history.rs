//! The order of stores: the greater one has the later commits.

use std::fmt;

use crate::p4rt::Term;

/// How far a store is. One primary counts its changes, and standbys apply them in that order or copy
/// all of them at once. So two stores with equal histories hold the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct History {
    /// The term of the last change.
    pub term: Term,
    /// The number of changes so far.
    pub changes: u64,
}

impl History {
    /// True if nothing was ever changed.
    pub fn is_new(&self) -> bool {
        self.changes == 0
    }
}

/// `change 17 of term 3 of controller 1f00a2b4`.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change {} of term {}", self.changes, self.term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_compare_by_term_then_changes() {
        let history = |number, changes| History {
            term: Term { number, by: 1 },
            changes,
        };
        assert!(history(2, 1) > history(1, 99) && history(1, 99) > history(1, 98));
    }
}
