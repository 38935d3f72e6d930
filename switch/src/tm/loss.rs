//! Which frames a wire loses.

use std::ops::Range;
use std::str::FromStr;

use rand::{Rng, RngExt};

/// A model of loss, as it is configured.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Each frame is lost with this probability, whatever became of the others.
    Independent {
        /// Probability of loss, 0 ≤ P ≤ 1.
        probability: f64,
    },
    /// Gilbert–Elliott in its simple form: a Markov chain of a state that loses nothing and one
    /// that loses everything, stepped once a frame.
    Burst {
        /// Share of frames lost in the long run, 0 ≤ P < 1.
        probability: f64,
        /// Mean number of consecutive frames lost, at least 1.
        mean_length: f64,
    },
    /// Every frame whose big-endian integer at `offset` lies in `range`; a frame that ends before
    /// the field is not lost.
    Field {
        /// Bytes from the start of the frame.
        offset: usize,
        /// Width of the field in bytes, 1 to 8.
        bytes: usize,
        /// Values that are lost.
        range: Range<u64>,
    },
}

/// Why a loss model is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LossError {
    /// Not `P` nor `P:LEN`.
    #[error("loss `{0}`: expected a probability such as 0.01, or 0.01:8 for bursts of 8 frames")]
    Syntax(String),
    /// A probability outside its range.
    #[error("loss probability {0}: expected at least 0 and at most 1 (below 1 for bursts)")]
    Probability(f64),
    /// A mean burst length that no chain of two states has at that loss.
    #[error("mean burst length {length}: expected at least {least:.3} at a loss of {probability}")]
    BurstLength {
        /// What was asked for.
        length: f64,
        /// The least possible.
        least: f64,
        /// The loss asked for.
        probability: f64,
    },
    /// A field of an impossible width or an empty range.
    #[error(
        "loss by field: {bytes} bytes in {start}..{end}: expected 1 to 8 bytes and start < end"
    )]
    Field {
        /// Width asked for, in bytes.
        bytes: usize,
        /// First value.
        start: u64,
        /// One past the last value.
        end: u64,
    },
}

impl Loss {
    /// Refuses what no wire can do.
    pub fn validate(&self) -> Result<(), LossError> {
        match *self {
            Loss::Independent { probability } => {
                if !(0.0..=1.0).contains(&probability) {
                    return Err(LossError::Probability(probability));
                }
            }
            Loss::Burst {
                probability,
                mean_length,
            } => {
                if !(0.0..1.0).contains(&probability) {
                    return Err(LossError::Probability(probability));
                }
                // The chain enters the losing state with p = P/(1−P)/LEN, which must be a
                // probability.
                let least = (probability / (1.0 - probability)).max(1.0);
                if !mean_length.is_finite() || mean_length < least {
                    return Err(LossError::BurstLength {
                        length: mean_length,
                        least,
                        probability,
                    });
                }
            }
            Loss::Field {
                bytes, ref range, ..
            } => {
                if !(1..=8).contains(&bytes) || range.is_empty() {
                    return Err(LossError::Field {
                        bytes,
                        start: range.start,
                        end: range.end,
                    });
                }
            }
        }
        Ok(())
    }
}

/// `P` (independent) or `P:LEN` (bursts).
impl FromStr for Loss {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        let number = |part: &str| {
            part.trim()
                .parse::<f64>()
                .map_err(|_| LossError::Syntax(text.to_owned()))
        };
        let loss = match text.split_once(':') {
            None => Loss::Independent {
                probability: number(text)?,
            },
            Some((probability, length)) => Loss::Burst {
                probability: number(probability)?,
                mean_length: number(length)?,
            },
        };
        loss.validate()?;
        Ok(loss)
    }
}

/// A loss model at work on one wire.
#[derive(Debug)]
pub(super) struct LossProcess {
    model: Loss,
    in_burst: bool,
}

impl LossProcess {
    /// Starts in the stationary distribution, so that the first frames are lost as often as later
    /// ones.
    pub(super) fn new(model: Loss, rng: &mut impl Rng) -> Self {
        let in_burst = match model {
            Loss::Burst { probability, .. } => rng.random_bool(probability),
            Loss::Independent { .. } | Loss::Field { .. } => false,
        };
        LossProcess { model, in_burst }
    }

    /// Decides on the next frame.
    pub(super) fn loses(&mut self, frame: &[u8], rng: &mut impl Rng) -> bool {
        match self.model {
            Loss::Independent { probability } => rng.random_bool(probability),
            Loss::Burst {
                probability,
                mean_length,
            } => {
                let lost = self.in_burst;
                let change = if self.in_burst {
                    1.0 / mean_length
                } else {
                    (probability / (1.0 - probability) / mean_length).min(1.0)
                };
                if rng.random_bool(change) {
                    self.in_burst = !self.in_burst;
                }
                lost
            }
            Loss::Field {
                offset,
                bytes,
                ref range,
            } => offset
                .checked_add(bytes)
                .and_then(|end| frame.get(offset..end))
                .is_some_and(|field| {
                    let value = field.iter().fold(0, |v, &byte| v << 8 | u64::from(byte));
                    range.contains(&value)
                }),
        }
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

    #[test]
    fn refuses_what_no_wire_can_do() {
        assert!(matches!(
            "2".parse::<Loss>(),
            Err(LossError::Probability(_))
        ));
        assert!(matches!(
            "NaN".parse::<Loss>(),
            Err(LossError::Probability(_))
        ));
        assert!(matches!(
            "1:5".parse::<Loss>(),
            Err(LossError::Probability(_))
        ));
        assert!(matches!(
            "0.1:0.5".parse::<Loss>(),
            Err(LossError::BurstLength { .. })
        ));
        assert!(matches!(
            "0.9:2".parse::<Loss>(),
            Err(LossError::BurstLength { .. })
        ));
        assert!(matches!("often".parse::<Loss>(), Err(LossError::Syntax(_))));
        assert!(
            Loss::Field {
                offset: 0,
                bytes: 9,
                range: 0..1
            }
            .validate()
            .is_err()
        );
        assert!(
            Loss::Field {
                offset: 0,
                bytes: 4,
                range: 3..3
            }
            .validate()
            .is_err()
        );
    }
}
