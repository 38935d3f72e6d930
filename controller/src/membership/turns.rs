//! A member's side of a change: which operations it begins in its epoch.

/// How many operations beyond the next one a member may still begin in the old epoch after it has pledged, so that it need not wait for
/// the decision, which takes the controller about as long as a write to its disk.
const MARGIN: u32 = 2;

/// Which operations a rank begins in its epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The next one.
    next: u32,
    state: State,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Settled,
    /// It begins none from that one on before it is told.
    Pledged { change: u16, until: u32 },
    /// Those from that one on are of the next epoch.
    Decided { change: u16, first: u32 },
}

/// Whether an operation may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// In this epoch.
    Begin,
    /// It is not known yet in which epoch.
    Wait,
    /// In the next epoch.
    Over,
}

impl Turns {
    /// In an epoch whose first operation is `first`.
    pub fn from(first: u32) -> Self {
        let mut turns = Turns::default();
        turns.start_at(first);
        turns
    }

    /// The next operation is not before `first`. What was pledged stays.
    pub fn start_at(&mut self, first: u32) {
        self.next = self.next.max(first);
    }

    /// Pledges for a change, which has the number that the new epoch has in packets; the operation that does not begin before the change is
    /// decided or called off. The same for the same change, however often it is asked for. None where an earlier change is
    /// decided: that one comes first.
    pub fn pledge(&mut self, change: u16) -> Option<u32> {
        match self.state {
            State::Decided { .. } => None,
            State::Pledged { change: of, until } if of == change => Some(until),
            _ => {
                // Nothing runs before all are there.
                let margin = if self.next == 0 { 0 } else { MARGIN };
                let until = self.next.saturating_add(margin);
                self.state = State::Pledged { change, until };
                Some(until)
            }
        }
    }

    /// The change is decided: operations from `first` on are of the next epoch.
    pub fn decide(&mut self, change: u16, first: u32) {
        self.state = State::Decided { change, first };
    }

    /// Whatever change there was is called off.
    pub fn call_off(&mut self) {
        if let State::Pledged { .. } = self.state {
            self.state = State::Settled;
        }
    }

    /// Whether a change is decided.
    pub fn is_decided(&self) -> bool {
        matches!(self.state, State::Decided { .. })
    }

    /// Whether an operation is of the next epoch, as far as is known.
    pub fn is_over(&self, operation: u32) -> bool {
        matches!(self.state, State::Decided { first, .. } if operation >= first)
    }

    /// The change that it has pledged for, or that is decided.
    pub fn change(&self) -> Option<u16> {
        match self.state {
            State::Settled => None,
            State::Pledged { change, .. } | State::Decided { change, .. } => Some(change),
        }
    }

    /// Whether an operation begins now. Operations are asked for in their order.
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
    fn who_is_told_where_it_starts_keeps_its_pledge() {
        let mut turns = Turns::default();
        assert_eq!(turns.pledge(7), Some(0));
        turns.start_at(20);
        assert_eq!(turns.turn(20), Turn::Wait);
        turns.call_off();
        assert_eq!(turns.pledge(8), Some(20 + MARGIN));
        turns.start_at(10);
        turns.call_off();
        assert_eq!(turns.pledge(9), Some(20 + MARGIN), "it is not set back");
    }

    #[test]
    fn a_pledge_is_kept_until_it_is_decided_or_called_off() {
        let mut turns = Turns::default();
        assert_eq!(turns.pledge(7), Some(0), "nothing has begun");
        assert_eq!(turns.turn(0), Turn::Wait);
        turns.call_off();
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
        turns.call_off();
        assert_eq!(
            turns.turn(5),
            Turn::Over,
            "what is decided is not called off"
        );
        assert_eq!((turns.pledge(9), turns.change()), (None, Some(8)));
    }
}
