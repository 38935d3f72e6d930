//! Decisions that ranks make together: to skip an update, to stop, to average replicas, to switch coding.
//!
//! Each rank has its own losses and would decide differently. So a small exact operation
//! ([`crate::Exact::AllGather`]) carries every rank's *vote* to all ranks: its share of lost packets and, if
//! drift is to be measured, a digest of its parameters. All count the same votes, bit by bit, by the same
//! rules, and get the same [`Verdict`].
//!
//! | file | rule |
//! | --- | --- |
//! | `skip.rs` | no rank applies an update that lost too much at any rank |
//! | `stop.rs` | a job whose loss stays high ends with a message |
//! | `drift.rs` | replicas that drift too far apart are averaged |
//! | `coding.rs` | updates are Hadamard-coded while loss is high |
//! | `sketch.rs` | distance between parameters, from 65 values of each |
//! | `state.rs` | state of the rules; votes carry it, so a rank that missed votes gets it again |
//!
//! The price is that a vote waits for every rank: with a vote after every step ([`Rules::skip`],
//! [`Rules::stop`]) every step waits for the slowest rank. Drift is measured less often.

mod coding;
mod drift;
mod sketch;
mod skip;
mod state;
mod stop;

pub use coding::{CodingInUse, CodingRule};
pub use drift::DriftRule;
pub use sketch::{Digest, Sketch};
pub use skip::SkipRule;
pub use stop::{StopError, StopRule};

use state::State;

use serde::{Deserialize, Serialize};

use crate::operation::OperationId;

/// The safeguards of a job. The same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The rule that skips updates.
    pub skip: Option<SkipRule>,
    /// The rule that stops the job.
    pub stop: Option<StopRule>,
    /// The rule that averages replicas.
    pub drift: Option<DriftRule>,
    /// The rule that codes gradients. None: as configured.
    pub coding: Option<CodingRule>,
}

/// A job's safeguards at one rank.
#[derive(Clone, Debug)]
pub struct Safeguards {
    rules: Rules,
    seed: u64,
    state: State,
}

/// The result of a vote, the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// By rank: the share of the update's packets that it lost.
    pub lost: Vec<f32>,
    /// True if no rank applies the update.
    pub skip: bool,
    /// The spread of replicas, if it was measured: see [`Sketch::spread`].
    pub spread: Option<f64>,
    /// True if the parameters are to be averaged.
    pub heal: bool,
    /// The coding from the next step on: true for Hadamard. None if the vote decided nothing and this rank missed no
    /// earlier decision.
    pub code: Option<bool>,
}

impl Safeguards {
    /// Creates the safeguards of a job with `seed`, from which digests are drawn.
    pub fn new(rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            seed,
            state: State::default(),
        }
    }

    /// True if ranks vote after this step.
    pub fn is_due(&self, step: u32) -> bool {
        let codes = self.codes(step).is_some();
        self.rules.skip.is_some() || self.rules.stop.is_some() || self.measures(step) || codes
    }

    /// True if the vote after this step decides on coding.
    pub(crate) fn decides_coding(&self, step: u32) -> bool {
        self.codes(step).is_some()
    }

    /// True if any rule has a state.
    fn remembers(&self) -> bool {
        self.rules.stop.is_some() || self.rules.coding.is_some()
    }

    fn codes(&self, step: u32) -> Option<CodingRule> {
        self.rules.coding.filter(|coding| coding.is_due(step))
    }

    fn measures(&self, step: u32) -> bool {
        self.rules.drift.is_some_and(|drift| drift.is_due(step))
    }

    /// This rank's vote in the operation `id`, with the same number of values on every rank. `lost` is its
    /// share of lost packets ([`crate::Outcome::lost_share`], the largest if an update has several buckets).
    pub fn vote(&self, id: OperationId, lost: f64, parameters: &[f32]) -> Vec<f32> {
        let mut vote = vec![lost as f32];
        if self.remembers() {
            vote.extend(self.state.values());
        }
        if self.measures(id.step) {
            vote.extend(self.digest(id, parameters));
        }
        vote
    }

    /// The values of a digest of `parameters`.
    pub(crate) fn digest(&self, id: OperationId, parameters: &[f32]) -> Vec<f32> {
        let digest = Sketch::new(self.seed, id).digest(parameters);
        digest.values().collect()
    }

    /// The spread from the values of all digests, concatenated.
    pub(crate) fn spread(digests: &[f32]) -> f64 {
        let digests = digests.chunks(Digest::LEN).filter_map(Digest::from_values);
        Sketch::spread(&digests.collect::<Vec<_>>())
    }

    /// Counts the `votes` of all `ranks`, concatenated.
    ///
    /// # Errors
    /// [`StopError`]: all ranks stop the job.
    ///
    /// # Panics
    /// If the votes do not have the length of [`Safeguards::vote`].
    pub fn count(
        &mut self,
        id: OperationId,
        votes: &[f32],
        ranks: u16,
    ) -> Result<Verdict, StopError> {
        let measures = self.measures(id.step);
        let remembered = if self.remembers() { State::LEN } else { 0 };
        let digest = if measures { Digest::LEN } else { 0 };
        let len = 1 + remembered + digest;
        assert_eq!(
            votes.len(),
            len * usize::from(ranks),
            "values of {ranks} votes"
        );
        let lost: Vec<f32> = votes.chunks(len).map(|vote| vote[0]).collect();
        let coded = self.state.coding.on;
        if self.remembers() {
            let states = votes.chunks(len).map(|vote| &vote[1..1 + remembered]);
            self.state = states
                .filter_map(State::from_values)
                .fold(self.state, State::newer);
            self.state.votes = self.state.votes.wrapping_add(1);
        }
        let decided = (self.codes(id.step))
            .map(|coding| coding.decide(&mut self.state.coding, &lost))
            .or_else(|| (self.state.coding.on != coded).then_some(self.state.coding.on));
        if let Some(stop) = self.rules.stop {
            self.state.high = stop.high(self.state.high, &lost);
            stop.check(id.step, self.state.high, &lost)?;
        }
        let spread = measures.then(|| {
            let digests: Vec<f32> = votes
                .chunks(len)
                .flat_map(|vote| &vote[1 + remembered..])
                .copied()
                .collect();
            Self::spread(&digests)
        });
        Ok(Verdict {
            skip: self.rules.skip.is_some_and(|skip| skip.skips(&lost)),
            heal: (self.rules.drift.zip(spread)).is_some_and(|(drift, spread)| drift.heals(spread)),
            spread,
            code: decided,
            lost,
        })
    }
}

/// The largest share and its rank. NaN counts as 1.
fn worst(lost: &[f32]) -> (usize, f64) {
    let share = |share: &f32| match share.is_nan() {
        true => 1.0,
        false => f64::from(*share),
    };
    let shares = lost.iter().map(share).enumerate();
    shares.fold((0, 0.0), |worst, next| match next.1 > worst.1 {
        true => next,
        false => worst,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(step: u32) -> OperationId {
        OperationId { step, bucket: 1 }
    }

    #[test]
    fn all_count_alike() {
        let rules = Rules {
            skip: Some(SkipRule { share: 0.2 }),
            stop: None,
            drift: Some(DriftRule {
                bound: 0.01,
                every: 2,
            }),
            coding: None,
        };
        let mut safeguards = Safeguards::new(rules, 7);
        let parameters = vec![1.0; 1000];
        let mut parted = parameters.clone();
        parted[..500].fill(1.1);
        let mut votes = |step, lost: [f64; 2]| {
            let mut votes = safeguards.vote(id(step), lost[0], &parameters);
            votes.extend(safeguards.vote(id(step), lost[1], &parted));
            safeguards
                .count(id(step), &votes, 2)
                .expect("no rule to stop")
        };
        let verdict = votes(0, [0.1, 0.3]);
        assert!(verdict.skip && !verdict.heal);
        assert_eq!((verdict.lost, verdict.spread), (vec![0.1, 0.3], None));
        let verdict = votes(1, [0.1, 0.2]);
        assert!(!verdict.skip && verdict.heal);
        // ‖0.1·1₅₀₀‖/‖1₁₀₀₀‖, within the accuracy of 64 sums.
        let spread = verdict.spread.expect("measured");
        assert!((0.05..0.1).contains(&spread), "{spread}");
    }

    /// Two of three ranks vote while the third misses votes. Its next complete vote restores its state.
    #[test]
    fn a_rank_that_missed_votes_agrees_from_the_next_one() {
        let rules = Rules {
            stop: Some(StopRule {
                share: 0.5,
                updates: 4,
            }),
            coding: Some(CodingRule {
                above: 0.1,
                every: 2,
            }),
            ..Rules::default()
        };
        let mut ranks = vec![Safeguards::new(rules, 7); 3];
        let mut vote = |step, lost: f64, present: usize| {
            let votes: Vec<f32> = (ranks.iter())
                .flat_map(|rank| rank.vote(id(step), lost, &[]))
                .collect();
            (ranks[..present].iter_mut())
                .map(|rank| rank.count(id(step), &votes, 3))
                .collect::<Vec<_>>()
        };
        for (step, present) in [(0, 3), (1, 2), (2, 2)] {
            let verdicts = vote(step, 0.9, present);
            assert_eq!(verdicts.len(), present);
            let code = verdicts[0].as_ref().expect("not four in a row").code;
            assert_eq!(code, (step == 1).then_some(true));
        }
        // The third learns in one vote that updates are now coded, and that this is the fourth bad one.
        let late = vote(3, 0.0, 3);
        let late: Vec<_> = late
            .into_iter()
            .map(|v| v.expect("a good one").code)
            .collect();
        assert_eq!(late, [Some(true); 3]);
        let verdicts: Vec<_> = (4..8).map(|step| vote(step, 0.9, 3)).collect();
        assert!(verdicts[..3].iter().flatten().all(Result::is_ok));
        assert!(verdicts[3].iter().all(Result::is_err), "{verdicts:?}");
    }

    #[test]
    fn a_vote_that_is_no_number_is_the_worst() {
        assert_eq!(worst(&[0.5, f32::NAN, 0.7]), (1, 1.0));
        assert_eq!(worst(&[0.5, 0.2]), (0, 0.5));
    }
}
