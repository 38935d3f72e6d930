//! A member's side of a membership change: the operations that it begins in its epoch.

use std::time::Duration;

/// Time for which a member that acknowledged waits for the decision. It covers a slow disk, and the
/// restart or replacement of a controller that crashed in between.
pub const DECISION_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of operations that a member may still begin in the old epoch after it acknowledged.
/// They cover the time of the decision, about one write to the controller's disk.
const MARGIN: u32 = 2;

/// The operations that a rank may begin in its epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationGate {
    /// The next operation.
    next: u32,
    state: State,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// Begins no operation from `until` on before the decision.
    Acknowledged { change: u16, until: u32 },
    /// Operations from `first` on belong to the next epoch.
    Decided { change: u16, first: u32 },
}

/// The epoch of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The operation begins in this epoch.
    Begin,
    /// The operation's epoch is not decided yet.
    Wait,
    /// The operation belongs to the next epoch.
    NextEpoch,
}

impl OperationGate {
    /// Starts an epoch with the first operation `first`.
    pub fn from(first: u32) -> Self {
        let mut gate = OperationGate::default();
        gate.start_at(first);
        gate
    }

    /// Skips operations before `first`. An acknowledgement stays.
    pub fn start_at(&mut self, first: u32) {
        self.next = self.next.max(first);
    }

    /// Acknowledges a change, identified by the new epoch's id in packets. Returns the operation
    /// that does not begin before the decision or cancellation; the same one if called again for
    /// the same change. None if an earlier change is decided, which must complete first.
    pub fn acknowledge(&mut self, change: u16) -> Option<u32> {
        match self.state {
            State::Decided { .. } => None,
            State::Acknowledged { change: of, until } if of == change => Some(until),
            _ => {
                // No operation runs before all members are there.
                let margin = if self.next == 0 { 0 } else { MARGIN };
                let until = self.next.saturating_add(margin);
                self.state = State::Acknowledged { change, until };
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
        if let State::Acknowledged { .. } = self.state {
            self.state = State::Idle;
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
            State::Idle => None,
            State::Acknowledged { change, .. } | State::Decided { change, .. } => Some(change),
        }
    }

    /// Returns the epoch of an operation. Call it for operations in their order.
    pub fn admit(&mut self, operation: u32) -> Admission {
        let admission = match self.state {
            State::Acknowledged { until, .. } if operation >= until => Admission::Wait,
            State::Decided { first, .. } if operation >= first => Admission::NextEpoch,
            _ => Admission::Begin,
        };
        if admission == Admission::Begin {
            self.next = operation.saturating_add(1);
        }
        admission
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_operation_keeps_the_acknowledgement() {
        let mut gate = OperationGate::default();
        assert_eq!(gate.acknowledge(7), Some(0));
        gate.start_at(20);
        assert_eq!(gate.admit(20), Admission::Wait);
        gate.cancel();
        assert_eq!(gate.acknowledge(8), Some(20 + MARGIN));
        gate.start_at(10);
        gate.cancel();
        assert_eq!(
            gate.acknowledge(9),
            Some(20 + MARGIN),
            "skipped operations do not return"
        );
    }

    #[test]
    fn acknowledgements_hold_until_decision_or_cancellation() {
        let mut gate = OperationGate::default();
        assert_eq!(gate.acknowledge(7), Some(0), "nothing has begun");
        assert_eq!(gate.admit(0), Admission::Wait);
        gate.cancel();
        assert_eq!(gate.admit(0), Admission::Begin);
        assert_eq!(gate.acknowledge(8), Some(1 + MARGIN));
        assert_eq!(
            [1, 2, 3].map(|n| gate.admit(n)),
            [Admission::Begin, Admission::Begin, Admission::Wait]
        );
        assert_eq!(gate.acknowledge(8), Some(3), "a repeated request");
        gate.decide(8, 5);
        assert_eq!(
            [3, 4, 5].map(|n| gate.admit(n)),
            [Admission::Begin, Admission::Begin, Admission::NextEpoch]
        );
        gate.cancel();
        assert_eq!(
            gate.admit(5),
            Admission::NextEpoch,
            "a decided change is not cancelled"
        );
        assert_eq!((gate.acknowledge(9), gate.change()), (None, Some(8)));
    }
}
