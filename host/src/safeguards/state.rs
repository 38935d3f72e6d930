//! What rules remember from vote to vote.

use super::coding::CodingState;

/// Sent with every vote: the same at all ranks that counted the same votes. A vote may end incomplete at a rank and not at
/// the others, whose memory is then newer; all go on from the newest that any vote brings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Votes counted, modulo 2^16.
    pub(super) votes: u16,
    /// Updates in a row that lost too much for [`super::Rules::stop`].
    pub(super) high: u32,
    pub(super) coding: CodingState,
}

impl State {
    /// Values that it is sent as.
    pub(super) const LEN: usize = 4;

    pub(super) fn values(self) -> [f32; Self::LEN] {
        let Self {
            votes,
            high,
            coding,
        } = self;
        // Up to 2^24, which is exact and months of bad updates.
        [
            f32::from(votes),
            high as f32,
            coding.loss,
            f32::from(u8::from(coding.on)),
        ]
    }

    /// The state with these values; none if they are not [`State::LEN`].
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

    /// The one that counted more votes; `self` where both counted as many.
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
