//! Which of two stores has what was promised later.

use std::fmt;

use crate::p4rt::Term;

/// How far a store is. Two stores that are equally far hold the same, as one primary counts its changes, and others take them
/// in that order or all at once. The greater one has what was promised last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct History {
    /// In whose term its last change was made.
    pub term: Term,
    /// How many changes were made.
    pub changes: u64,
}

impl History {
    /// Whether nothing was ever changed.
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
    fn the_latest_primary_knows_best() {
        let history = |number, changes| History {
            term: Term { number, by: 1 },
            changes,
        };
        assert!(history(2, 1) > history(1, 99) && history(1, 99) > history(1, 98));
    }
}
