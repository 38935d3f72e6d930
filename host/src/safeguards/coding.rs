//! The transform, where loss is worth it.

use serde::{Deserialize, Serialize};

/// Gradients are Hadamard-coded while ranks lose more than a share of an update's packets: coding costs time, and without
/// loss it is for nothing (OptiReduce, NSDI 2025: on when loss exceeds 2 %).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodingRule {
    /// On when the ranks' mean loss exceeds this share, off again when it is under half of it: ours, so that a loss close
    /// to it does not switch back and forth.
    pub above: f64,
    /// Decided after every so many steps, 1 or more.
    pub every: u32,
}

/// What the newest votes weigh in the average.
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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodingState {
    /// The average of the ranks' mean loss.
    loss: f64,
    on: bool,
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
        state.loss += (mean - state.loss) * NEWEST;
        state.on = match state.on {
            false => state.loss > self.above,
            true => state.loss >= self.above / 2.0,
        };
        state.on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
