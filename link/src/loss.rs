//! Models of frame loss on a link.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A model of loss.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Each frame is lost with this probability, independently.
    Independent {
        /// Probability of loss, 0 ≤ P ≤ 1.
        probability: f64,
    },
    /// Simple Gilbert–Elliott: a Markov chain of a state that loses nothing and one that loses everything,
    /// with one step per frame.
    Burst {
        /// Share of lost frames in the long run, 0 ≤ P < 1.
        probability: f64,
        /// Mean number of consecutive frames lost, at least 1.
        mean_length: f64,
    },
    /// Full Gilbert–Elliott: a Markov chain of a good and a bad state, with one step per frame and a loss
    /// probability for each. (netem's `gemodel p r 1-h 1-k`.)
    GilbertElliott {
        /// Probability that a good frame is followed by a bad one (p).
        to_bad: f64,
        /// Probability that a bad frame is followed by a good one (r), above 0.
        to_good: f64,
        /// Probability of loss in the bad state (1 − h).
        bad_loss: f64,
        /// Probability of loss in the good state (1 − k).
        good_loss: f64,
    },
    /// Loses every frame whose big-endian integer at `offset` is in `range`. A frame that ends before the
    /// field is not lost.
    Field {
        /// Bytes from the start of the frame.
        offset: usize,
        /// Width of the field in bytes, 1 to 8.
        bytes: usize,
        /// Values of lost frames.
        range: Range<u64>,
    },
}

/// The reason that a loss model is rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LossError {
    /// An unknown model.
    #[error(
        "loss `{0}`: expected a probability such as 0.01; 0.01:8 for bursts of 8 frames; ge:P:R, \
         ge:P:R:BAD or ge:P:R:BAD:GOOD for Gilbert-Elliott; or field:OFFSET:BYTES:A..B"
    )]
    Syntax(String),
    /// A probability outside its range.
    #[error("loss probability {0}: expected at least 0 and at most 1 (below 1 for bursts)")]
    Probability(f64),
    /// A mean burst length that no two-state chain has at that loss.
    #[error("mean burst length {length}: expected at least {least:.3} at a loss of {probability}")]
    BurstLength {
        /// The given length.
        length: f64,
        /// The smallest possible length.
        least: f64,
        /// The given loss.
        probability: f64,
    },
    /// A bad state that the chain never leaves.
    #[error("loss ge: probability 0 of leaving the bad state: expected above 0")]
    Endless,
    /// A field of an impossible width or an empty range.
    #[error(
        "loss by field: {bytes} bytes in {start}..{end}: expected 1 to 8 bytes and start < end"
    )]
    Field {
        /// Width in bytes.
        bytes: usize,
        /// First value.
        start: u64,
        /// One past the last value.
        end: u64,
    },
}

impl Loss {
    /// Checks that a wire can apply the model.
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
            Loss::GilbertElliott {
                to_bad,
                to_good,
                bad_loss,
                good_loss,
            } => {
                let all = [to_bad, to_good, bad_loss, good_loss];
                if let Some(&wrong) = all.iter().find(|p| !(0.0..=1.0).contains(*p)) {
                    return Err(LossError::Probability(wrong));
                }
                if to_good == 0.0 {
                    return Err(LossError::Endless);
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

/// `P` (independent), `P:LEN` (bursts), `ge:P:R[:BAD[:GOOD]]` (Gilbert–Elliott; BAD is 1 and GOOD 0
/// if they are not given) or `field:OFFSET:BYTES:A..B`.
impl FromStr for Loss {
    type Err = LossError;

    fn from_str(text: &str) -> Result<Self, LossError> {
        let syntax = || LossError::Syntax(text.to_owned());
        let number = |part: &str| part.parse::<f64>().map_err(|_| syntax());
        let integer = |part: &str| part.parse::<u64>().map_err(|_| syntax());
        let parts: Vec<&str> = text.split(':').map(str::trim).collect();
        let loss = match parts[..] {
            ["ge", to_bad, to_good, ref losses @ ..] if losses.len() <= 2 => Loss::GilbertElliott {
                to_bad: number(to_bad)?,
                to_good: number(to_good)?,
                bad_loss: losses.first().map_or(Ok(1.0), |part| number(part))?,
                good_loss: losses.get(1).map_or(Ok(0.0), |part| number(part))?,
            },
            ["field", offset, bytes, range] => {
                let (start, end) = range.split_once("..").ok_or_else(syntax)?;
                let size = |part| usize::try_from(integer(part)?).map_err(|_| syntax());
                Loss::Field {
                    offset: size(offset)?,
                    bytes: size(bytes)?,
                    range: integer(start)?..integer(end)?,
                }
            }
            [probability] => Loss::Independent {
                probability: number(probability)?,
            },
            [probability, length] => Loss::Burst {
                probability: number(probability)?,
                mean_length: number(length)?,
            },
            _ => return Err(syntax()),
        };
        loss.validate()?;
        Ok(loss)
    }
}

/// In the format of the parser.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Independent { probability } => write!(f, "{probability}"),
            Loss::Burst {
                probability,
                mean_length,
            } => write!(f, "{probability}:{mean_length}"),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                bad_loss,
                good_loss,
            } => write!(f, "ge:{to_bad}:{to_good}:{bad_loss}:{good_loss}"),
            Loss::Field {
                offset,
                bytes,
                range,
            } => write!(f, "field:{offset}:{bytes}:{}..{}", range.start, range.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_text_parses_to_the_same_value() {
        for text in ["0.01", "0.05:8", "ge:0.01:0.2:0.9:0.001", "field:74:4:3..7"] {
            assert_eq!(text.parse::<Loss>().expect(text).to_string(), text);
        }
        assert_eq!(
            "ge:0.01:0.2".parse::<Loss>().map(|loss| loss.to_string()),
            Ok("ge:0.01:0.2:1:0".to_owned())
        );
    }

    #[test]
    fn impossible_wires_are_rejected() {
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
        assert!(matches!(
            "ge:0.1".parse::<Loss>(),
            Err(LossError::Syntax(_))
        ));
        assert_eq!("ge:0.1:0".parse::<Loss>(), Err(LossError::Endless));
        assert!(matches!(
            "field:0:4:7..3".parse::<Loss>(),
            Err(LossError::Field { .. })
        ));
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
