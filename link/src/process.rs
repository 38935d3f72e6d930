//! A loss model in operation: the decision for each frame.

use rand::{Rng, RngExt};

use crate::loss::Loss;

/// A loss model in operation on one wire.
#[derive(Debug)]
pub struct LossProcess {
    model: Loss,
    chain: Chain,
    bad: bool,
}

/// Gilbert–Elliott's probabilities.
#[derive(Debug)]
struct Chain {
    to_bad: f64,
    to_good: f64,
    bad_loss: f64,
    good_loss: f64,
}

impl Chain {
    /// Models without a chain have one that never leaves its good state.
    fn of(model: &Loss) -> Chain {
        let (to_bad, to_good, bad_loss, good_loss) = match *model {
            Loss::Burst {
                probability,
                mean_length,
            } => {
                let to_bad = (probability / (1.0 - probability) / mean_length).min(1.0);
                (to_bad, 1.0 / mean_length, 1.0, 0.0)
            }
            Loss::GilbertElliott {
                to_bad,
                to_good,
                bad_loss,
                good_loss,
            } => (to_bad, to_good, bad_loss, good_loss),
            Loss::Independent { probability } => (0.0, 1.0, 0.0, probability),
            Loss::Field { .. } => (0.0, 1.0, 0.0, 0.0),
        };
        Chain {
            to_bad,
            to_good,
            bad_loss,
            good_loss,
        }
    }
}

/// Draws only if the result is open.
fn happens(probability: f64, rng: &mut impl Rng) -> bool {
    probability > 0.0 && rng.random_bool(probability)
}

impl LossProcess {
    /// Starts in the stationary distribution, so that the first frames have the same loss as later ones.
    pub fn new(model: Loss, rng: &mut impl Rng) -> Self {
        let chain = Chain::of(&model);
        let bad = happens(chain.to_bad / (chain.to_bad + chain.to_good), rng);
        LossProcess { model, chain, bad }
    }

    /// The model.
    pub fn model(&self) -> &Loss {
        &self.model
    }

    /// True if the next frame is lost. A field model reads `frame`.
    pub fn loses(&mut self, frame: &[u8], rng: &mut impl Rng) -> bool {
        if let Loss::Field {
            offset,
            bytes,
            ref range,
        } = self.model
        {
            return offset
                .checked_add(bytes)
                .and_then(|end| frame.get(offset..end))
                .is_some_and(|field| {
                    let value = field.iter().fold(0, |v, &byte| v << 8 | u64::from(byte));
                    range.contains(&value)
                });
        }
        let (loss, change) = if self.bad {
            (self.chain.bad_loss, self.chain.to_good)
        } else {
            (self.chain.good_loss, self.chain.to_bad)
        };
        let lost = happens(loss, rng);
        self.bad ^= happens(change, rng);
        lost
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn run(model: Loss, frames: usize, seed: u64) -> Vec<bool> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut process = LossProcess::new(model, &mut rng);
        (0..frames).map(|_| process.loses(&[], &mut rng)).collect()
    }

    fn share(losses: &[bool]) -> f64 {
        losses.iter().filter(|&&lost| lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn independent_loss_has_its_probability() {
        // 200,000 draws at 2 %: the standard deviation of the share is 0.0003.
        let losses = run(Loss::Independent { probability: 0.02 }, 200_000, 1);
        assert!((share(&losses) - 0.02).abs() < 0.0015, "{}", share(&losses));
        assert_eq!(
            share(&run(Loss::Independent { probability: 0.0 }, 1000, 1)),
            0.0
        );
        assert_eq!(
            share(&run(Loss::Independent { probability: 1.0 }, 1000, 1)),
            1.0
        );
    }

    #[test]
    fn bursts_have_their_share_and_mean_length() {
        let losses = run("0.05:8".parse().expect("valid"), 400_000, 2);
        assert!((share(&losses) - 0.05).abs() < 0.006, "{}", share(&losses));
        let bursts = losses.windows(2).filter(|w| !w[0] && w[1]).count();
        let mean = losses.iter().filter(|&&lost| lost).count() as f64 / bursts as f64;
        assert!((mean - 8.0).abs() < 0.6, "{mean}");
    }

    #[test]
    fn both_states_of_the_chain_lose_their_share() {
        // In the long run p/(p+r) = 1/5 of the frames are bad: 0.2·0.5 + 0.8·0.01 are lost.
        let losses = run("ge:0.02:0.08:0.5:0.01".parse().expect("valid"), 400_000, 3);
        assert!((share(&losses) - 0.108).abs() < 0.01, "{}", share(&losses));
        // The simple form is a special case, draw by draw.
        let simple = run("0.2:10".parse().expect("valid"), 10_000, 4);
        assert_eq!(
            simple,
            run("ge:0.025:0.1".parse().expect("valid"), 10_000, 4)
        );
    }

    #[test]
    fn a_field_in_range_is_lost_and_a_short_frame_is_not() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(0);
        let mut process = LossProcess::new(
            Loss::Field {
                offset: 2,
                bytes: 2,
                range: 256..258,
            },
            &mut rng,
        );
        assert!(process.loses(&[0, 0, 1, 0], &mut rng));
        assert!(process.loses(&[0, 0, 1, 1, 9], &mut rng));
        assert!(!process.loses(&[0, 0, 1, 2], &mut rng));
        assert!(!process.loses(&[0, 0, 1], &mut rng));
        let mut far = LossProcess::new(
            Loss::Field {
                offset: usize::MAX,
                bytes: 8,
                range: 0..u64::MAX,
            },
            &mut rng,
        );
        assert!(!far.loses(&[0; 64], &mut rng));
    }
}
