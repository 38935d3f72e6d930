//! The transform, where loss is worth it.

use serde::{Deserialize, Serialize};

/// Gradients are Hadamard-coded while ranks lose more than a share of an update's packets: coding costs time, and without
/// loss it is for nothing (OptiReduce, NSDI 2025: on when loss exceeds 2 %).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodingRule {
    /// On when the ranks' mean loss exceeds this share, off again when it is under half of it: ours, so that a loss close
    /// to it does not switch back and forth.
    pub above: f64,
    /// Decided after every so many steps, 1 or more. By default 10, ours: a vote waits for everyone, and loss that lasts no longer
    /// is over before coding would help.
    pub every: u32,
}

/// What the newest votes weigh in the average. Ours: one vote of twice the share turns coding on, one without loss does not turn it off.
const NEWEST: f64 = 0.5;

impl Default for CodingRule {
    fn default() -> Self {
        Self {
            above: 0.02,
            every: 10,
        }
    }
}

/// Where a rule stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CodingState {
    /// The average of the ranks' mean loss.
    pub(super) loss: f32,
    pub(super) on: bool,
}

/// How a rank codes its updates, where ranks vote on it.
///
/// A vote is an exact operation, which may end with all votes at some ranks and incomplete at another: that one does not
/// know whether the others code otherwise from then on. It goes on as it is, *in doubt*; and if in an operation after that
/// anyone's values come coded otherwise, which it has to refuse, it codes as they do from its next operation on. Who knows
/// what was agreed never follows one who does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodingInUse {
    on: bool,
    in_doubt: bool,
}

impl CodingInUse {
    /// As all ranks begin.
    pub fn new(on: bool) -> Self {
        Self {
            on,
            in_doubt: false,
        }
    }

    /// Whether updates are Hadamard-coded.
    pub fn is_on(self) -> bool {
        self.on
    }

    /// All ranks agreed on it.
    pub fn agreed(&mut self, on: bool) {
        *self = Self::new(on);
    }

    /// A vote in which coding was decided ended incomplete at this rank.
    pub fn missed(&mut self) {
        self.in_doubt = true;
    }

    /// An operation ended here in which values of `others` ranks came coded otherwise ([`crate::Outcome::coded_otherwise`]);
    /// tells how updates are coded from now on if that is another way.
    pub fn heard(&mut self, others: u16) -> Option<bool> {
        if !self.in_doubt || others == 0 {
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

    /// Whether the next updates are coded, now that `lost` was told.
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
    fn who_is_in_doubt_follows_once_and_who_knows_does_not() {
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
