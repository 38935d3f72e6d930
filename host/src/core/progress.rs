//! The steps that the other ranks have reached, as far as their packets show.
//!
//! A packet of a later step shows that its source has sent all of the earlier ones. In a job without a key
//! anyone on the network can forge such a packet. So a later step is a claim: it counts once enough packets of the
//! source support it, and a packet of an earlier step refutes it. With a key, one packet suffices for the next step.

use std::collections::BTreeMap;

/// Packets that support the claim of a step after the next one, the first included.
const SUPPORT: u8 = 4;
/// The same for the next step: with a key, and without.
const SUPPORT_OF_NEXT: [u8; 2] = [1, 2];
/// Packets of earlier steps that refute a reached step, if no packet of that step is among them.
const REFUTES: u8 = 4;

/// The steps of all ranks. There may be thousands of ranks, and few have claims.
pub(super) struct Progress {
    /// By rank; [`NONE`] before its first packet.
    steps: Vec<u32>,
    claims: BTreeMap<u16, Claim>,
    /// Packets that support the claim of the next step.
    support_of_next: u8,
    /// Packets of claims that later packets have refuted, since the last call of [`Progress::take_refuted`].
    refuted: u64,
}

const NONE: u32 = u32::MAX;

/// Packets that disagree with a rank's step.
#[derive(Clone, Copy, Default)]
struct Claim {
    /// A larger step.
    step: u32,
    /// Packets that support it.
    support: u8,
    /// Packets of earlier steps.
    refuting: u8,
}

impl Progress {
    pub(super) fn new(ranks: u16, is_sealed: bool) -> Self {
        let [sealed, unsealed] = SUPPORT_OF_NEXT;
        Self {
            steps: vec![NONE; ranks.into()],
            claims: BTreeMap::new(),
            support_of_next: if is_sealed { sealed } else { unsealed },
            refuted: 0,
        }
    }

    /// The number of packets whose step later packets have refuted since the last call.
    pub(super) fn take_refuted(&mut self) -> u64 {
        std::mem::take(&mut self.refuted)
    }

    /// The step that `rank` has reached. None before its first packet.
    pub(super) fn of(&self, rank: u16) -> Option<u32> {
        Some(self.steps[usize::from(rank)]).filter(|step| *step != NONE)
    }

    /// The newest step that a rank has reached.
    pub(super) fn newest(&self) -> Option<u32> {
        let steps = self.steps.iter().filter(|step| **step != NONE);
        steps.max().copied()
    }

    /// Notes a packet of `rank` in `step`, at a rank that has itself started `own`. Returns true if `rank` has
    /// reached `step`.
    pub(super) fn heard(&mut self, rank: u16, step: u32, own: Option<u32>) -> bool {
        let reached = self.of(rank);
        if Some(step) == reached && self.claims.is_empty() {
            return true;
        }
        let mut claim = self.claims.remove(&rank).unwrap_or_default();
        if step < claim.step {
            let support = std::mem::take(&mut claim.support);
            // Packets of neighbouring steps may just have changed places.
            if claim.step - step > 1 {
                self.refuted += u64::from(support);
            }
        }
        let next = reached.max(own).map_or(0, |step| step.saturating_add(1));
        let is_reached = match reached {
            Some(reached) if step < reached => {
                claim.refuting += 1;
                if claim.refuting < REFUTES {
                    self.claims.insert(rank, claim);
                    return true;
                }
                self.refuted += u64::from(SUPPORT);
                true
            }
            Some(reached) if step == reached => {
                claim.refuting = 0;
                if claim.support > 0 {
                    self.claims.insert(rank, claim);
                }
                return true;
            }
            _ => {
                let supports = claim.support > 0 && step - claim.step <= 1;
                claim.support = if supports { claim.support + 1 } else { 1 };
                claim.step = step;
                let needed = match step <= next {
                    true => self.support_of_next,
                    false => SUPPORT,
                };
                claim.support >= needed
            }
        };
        match is_reached {
            true => self.steps[usize::from(rank)] = step,
            false => {
                self.claims.insert(rank, claim);
            }
        }
        is_reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_moves_one_step_with_a_key() {
        let mut progress = Progress::new(1, true);
        assert!(progress.heard(0, 0, None));
        assert!(progress.heard(0, 1, Some(0)));
        assert!(!progress.heard(0, 200, Some(1)));
        assert_eq!(progress.of(0), Some(1));
        // A straggler hears of all the steps that it has missed.
        assert!(progress.heard(0, 8, Some(7)));
        assert_eq!(progress.of(0), Some(8));
    }

    #[test]
    fn no_single_packet_moves_a_step_without_a_key() {
        let mut progress = Progress::new(1, false);
        assert!(!progress.heard(0, 0, None));
        assert!(progress.heard(0, 0, None));
        for _ in 0..100 {
            assert!(!progress.heard(0, 1, Some(0)));
            assert!(progress.heard(0, 0, Some(0)), "refutes the claim");
        }
        // One packet for each step suffices, too: it supports the claim of the step before.
        assert!(!progress.heard(0, 1, Some(0)));
        assert!(progress.heard(0, 2, Some(1)));
        assert_eq!(progress.of(0), Some(2));
    }

    #[test]
    fn a_claim_needs_support_without_contradiction() {
        let mut progress = Progress::new(1, true);
        progress.heard(0, 5, Some(5));
        for _ in 0..100 {
            assert!(!progress.heard(0, 200, Some(5)));
            assert!(!progress.heard(0, 200, Some(5)));
            assert!(progress.heard(0, 5, Some(5)), "refutes the claim");
        }
        assert_eq!(progress.of(0), Some(5));
        assert_eq!(progress.take_refuted(), 2 * 100);
        let reached: Vec<bool> = [200, 200, 201, 201]
            .map(|step| progress.heard(0, step, Some(5)))
            .into();
        assert_eq!(reached, [false, false, false, true]);
        assert_eq!(progress.of(0), Some(201));
    }

    #[test]
    fn a_false_step_is_taken_back() {
        let mut progress = Progress::new(1, true);
        for _ in 0..SUPPORT {
            progress.heard(0, 50_000, Some(5));
        }
        assert_eq!(progress.of(0), Some(50_000));
        for _ in 0..REFUTES {
            progress.heard(0, 6, Some(5));
        }
        assert_eq!(progress.of(0), Some(6));
    }
}
