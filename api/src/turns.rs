//! A member's side of a membership change: the operations that it begins in its epoch.

use std::time::Duration;

/// Time for which a member that acknowledged waits for the decision. It covers a slow disk, and the
/// restart or replacement of a controller that crashed in between.
pub const PLEDGED: Duration = Duration::from_secs(60);

/// The number of operations that a member may still begin in the old epoch after it acknowledged.
/// They cover the time of the decision, about one write to the controller's disk.
const MARGIN: u32 = 2;

/// The operations that a rank may begin in its epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The next operation.
    next: u32,
    state: State,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Settled,
    /// Begins no operation from `until` on before the decision.
    Pledged { change: u16, until: u32 },
    /// Operations from `first` on belong to the next epoch.
    Decided { change: u16, first: u32 },
}

/// The epoch of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The operation begins in this epoch.
    Begin,
    /// The operation's epoch is not decided yet.
    Wait,
    /// The operation belongs to the next epoch.
    Over,
}

impl Turns {
    /// Starts an epoch with the first operation `first`.
    pub fn from(first: u32) -> Self {
        let mut turns = Turns::default();
        turns.start_at(first);
        turns
    }

    /// Skips operations before `first`. An acknowledgement stays.
    pub fn start_at(&mut self, first: u32) {
        self.next = self.next.max(first);
    }

    /// Acknowledges a change, identified by the new epoch's id in packets. Returns the operation
    /// that does not begin before the decision or cancellation; the same one if called again for
    /// the same change. None if an earlier change is decided, which must complete first.
    pub fn pledge(&mut self, change: u16) -> Option<u32> {
        match self.state {
            State::Decided { .. } => None,
            State::Pledged { change: of, until } if of == change => Some(until),
            _ => {
                // No operation runs before all members are there.
                let margin = if self.next == 0 { 0 } else { MARGIN };
                let until = self.next.saturating_add(margin);
                self.state = State::Pledged { change, until };
                Some(until)
            }
        }
    }

    /// Records the decision: operations from `first` on belong to the next epoch.
    pub fn decide(&mut self, change: u16, first: u32) {
        self.state = State::Decided { change, first };
    }

    /// Cancels the pending change, if there is one.
    pub fn cancel(&mut self) {
        if let State::Pledged { .. } = self.state {
            self.state = State::Settled;
        }
    }

    /// True if a change is decided.
    pub fn is_decided(&self) -> bool {
        matches!(self.state, State::Decided { .. })
    }

    /// True if an operation is known to belong to the next epoch.
    pub fn is_over(&self, operation: u32) -> bool {
        matches!(self.state, State::Decided { first, .. } if operation >= first)
    }

    /// The acknowledged or decided change.
    pub fn change(&self) -> Option<u16> {
        match self.state {
            State::Settled => None,
            State::Pledged { change, .. } | State::Decided { change, .. } => Some(change),
        }
    }

    /// Asks whether an operation begins now. Operations are asked for in order.
    pub fn turn(&mut self, operation: u32) -> Turn {
        let turn = match self.state {
            State::Pledged { until, .. } if operation >= until => Turn::Wait,
            State::Decided { first, .. } if operation >= first => Turn::Over,
            _ => Turn::Begin,
        };
        if turn == Turn::Begin {
            self.next = operation.saturating_add(1);
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_operation_keeps_the_acknowledgement() {
        let mut turns = Turns::default();
        assert_eq!(turns.pledge(7), Some(0));
        turns.start_at(20);
        assert_eq!(turns.turn(20), Turn::Wait);
        turns.cancel();
        assert_eq!(turns.pledge(8), Some(20 + MARGIN));
        turns.start_at(10);
        turns.cancel();
        assert_eq!(turns.pledge(9), Some(20 + MARGIN), "it is not set back");
    }

    #[test]
    fn acknowledgements_hold_until_decision_or_cancellation() {
        let mut turns = Turns::default();
        assert_eq!(turns.pledge(7), Some(0), "nothing has begun");
        assert_eq!(turns.turn(0), Turn::Wait);
        turns.cancel();
        assert_eq!(turns.turn(0), Turn::Begin);
        assert_eq!(turns.pledge(8), Some(1 + MARGIN));
        assert_eq!(
            [1, 2, 3].map(|n| turns.turn(n)),
            [Turn::Begin, Turn::Begin, Turn::Wait]
        );
        assert_eq!(turns.pledge(8), Some(3), "the same again");
        turns.decide(8, 5);
        assert_eq!(
            [3, 4, 5].map(|n| turns.turn(n)),
            [Turn::Begin, Turn::Begin, Turn::Over]
        );
        turns.cancel();
        assert_eq!(
            turns.turn(5),
            Turn::Over,
            "what is decided is not called off"
        );
        assert_eq!((turns.pledge(9), turns.change()), (None, Some(8)));
    }
}
