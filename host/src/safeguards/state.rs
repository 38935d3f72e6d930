//! The state of rules between votes.

use super::coding::CodingState;

/// Sent with every vote. Ranks that counted the same votes have the same state. If a vote is incomplete at a
/// rank, the others' state is newer, and all continue with the newest state in any vote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Votes counted, modulo 2^16.
    pub(super) votes: u16,
    /// Consecutive updates with too much loss for [`super::Rules::stop`].
    pub(super) high: u32,
    pub(super) coding: CodingState,
}

impl State {
    /// Number of values when sent.
    pub(super) const LEN: usize = 4;

    pub(super) fn values(self) -> [f32; Self::LEN] {
        let Self {
            votes,
            high,
            coding,
        } = self;
        // Exact up to 2^24, which is months of bad updates.
        [
            f32::from(votes),
            high as f32,
            coding.loss,
            f32::from(u8::from(coding.on)),
        ]
    }

    /// Creates a state from its values. None if their number is not [`State::LEN`].
    pub(super) fn from_values(values: &[f32]) -> Option<Self> {
        let &[votes, high, loss, on] = values else {
            return None;
        };
        Some(Self {
            votes: votes as u16,
            high: high as u32,
            coding: CodingState { loss, on: on > 0.5 },
        })
    }

    /// The state that counted more votes; `self` if both counted the same.
    pub(super) fn newer(self, other: Self) -> Self {
        match other.votes.wrapping_sub(self.votes).cast_signed() > 0 {
            true => other,
            false => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sent_as_it_is_and_the_newest_counts() {
        let state = |votes| State {
            votes,
            high: 12_345,
            coding: CodingState {
                loss: 0.1,
                on: true,
            },
        };
        let sent = State::from_values(&state(65_535).values());
        assert_eq!(sent, Some(state(65_535)));
        assert_eq!(State::from_values(&[1.0]), None);
        // It wraps.
        assert_eq!(state(65_535).newer(state(1)).votes, 1);
        assert_eq!(state(1).newer(state(65_535)).votes, 1);
    }
}
