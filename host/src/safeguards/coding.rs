//! The rule that switches the Hadamard transform on and off by loss.

use serde::{Deserialize, Serialize};

/// Gradients are Hadamard-coded while ranks lose more than a share of an update's packets. Coding costs time,
/// and is useless without loss (OptiReduce, NSDI 2025: on if loss exceeds 2 %).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodingRule {
    /// On if the ranks' mean loss exceeds this share, off again below half of it. The hysteresis is our
    /// choice.
    pub above: f64,
    /// Interval of decisions in steps, 1 or more. The default 10 is our choice: a vote waits for every rank,
    /// and a shorter loss is over before coding would help.
    pub every: u32,
}

/// Weight of the newest vote in the average. Our choice: one vote of twice the share turns coding on, one
/// vote without loss does not turn it off.
const NEWEST: f64 = 0.5;

impl Default for CodingRule {
    fn default() -> Self {
        Self {
            above: 0.02,
            every: 10,
        }
    }
}

/// The state of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CodingState {
    /// Moving average of the ranks' mean loss.
    pub(super) loss: f32,
    pub(super) on: bool,
}

/// The coding of a rank's updates, for jobs that vote on it.
///
/// A vote is an exact operation, which may be complete at some ranks and incomplete at another. A rank without the result
/// keeps its coding, and does not know whether the others change theirs. If it then has to reject values because another
/// rank coded them differently, it changes its coding from its next operation on. A rank that has the result never follows
/// one without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodingInUse {
    on: bool,
    missed_vote: bool,
}

impl CodingInUse {
    /// Creates the state at a job's start, the same on all ranks.
    pub fn new(on: bool) -> Self {
        Self {
            on,
            missed_vote: false,
        }
    }

    /// True if updates are Hadamard-coded.
    pub fn is_on(self) -> bool {
        self.on
    }

    /// Sets the coding that all ranks agreed on.
    pub fn agreed(&mut self, on: bool) {
        *self = Self::new(on);
    }

    /// Notes that a vote on coding was incomplete at this rank.
    pub fn missed(&mut self) {
        self.missed_vote = true;
    }

    /// Notes that an operation ended with values of `others` ranks that were coded differently
    /// ([`crate::Outcome::coded_otherwise`]). Returns the new coding if it changes.
    pub fn heard(&mut self, others: u16) -> Option<bool> {
        if !self.missed_vote || others == 0 {
            return None;
        }
        self.agreed(!self.on);
        Some(self.on)
    }
}

impl CodingRule {
    pub(super) fn is_due(self, step: u32) -> bool {
        (u64::from(step) + 1).is_multiple_of(u64::from(self.every.max(1)))
    }

    /// Decides on the coding of the next updates, from the reported shares `lost`. Returns true for Hadamard.
    pub(super) fn decide(self, state: &mut CodingState, lost: &[f32]) -> bool {
        let share = |lost: &f32| match lost.is_nan() {
            true => 1.0,
            false => f64::from(*lost).clamp(0.0, 1.0),
        };
        let mean = lost.iter().map(share).sum::<f64>() / lost.len() as f64;
        let loss = f64::from(state.loss);
        let loss = loss + (mean - loss) * NEWEST;
        state.loss = loss as f32;
        state.on = match state.on {
            false => loss > self.above,
            true => loss >= self.above / 2.0,
        };
        state.on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_without_the_result_follows_once_and_others_never() {
        let mut coding = CodingInUse::new(true);
        assert_eq!(coding.heard(3), None);
        coding.missed();
        assert_eq!(coding.heard(0), None);
        assert_eq!((coding.heard(1), coding.is_on()), (Some(false), false));
        assert_eq!(coding.heard(1), None);
        coding.missed();
        coding.agreed(true);
        assert_eq!((coding.heard(1), coding.is_on()), (None, true));
    }

    #[test]
    fn on_above_and_off_under_half() {
        let rule = CodingRule {
            above: 0.02,
            every: 5,
        };
        let mut state = CodingState::default();
        let mut coded = |lost: f32| rule.decide(&mut state, &[lost, lost]);
        assert!(!coded(0.0) && !coded(0.03) && coded(0.05));
        assert!(coded(0.015), "0.024 on average");
        assert!(coded(0.0), "0.012");
        assert!(!coded(0.0), "0.006");
        assert!(coded(f32::NAN));
        let due: Vec<u32> = (0..12).filter(|step| rule.is_due(*step)).collect();
        assert_eq!(due, [4, 9]);
    }
}
