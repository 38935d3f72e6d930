//! Jitter: the distribution of a frame's delay around the configured one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::units::{self, UnitError, show_duration};

/// Largest delay, jitter included. Longer ones would need memory without a use in any network.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// Time added to the delay of each frame, drawn independently for each.
///
/// The sum of delay and jitter is limited to 0 up to a minute. So a normal jitter that is large compared with
/// the delay increases the mean delay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Jitter {
    /// Uniform between −`spread` and +`spread`; 0 on average.
    Uniform {
        /// The largest deviation.
        spread: Duration,
    },
    /// Gaussian; 0 on average.
    Normal {
        /// Standard deviation.
        deviation: Duration,
    },
    /// A power law's tail: P(added > t) = (1 + t/s)^−`shape` with s = `mean`·(`shape` − 1). This is a Pareto
    /// distribution of scale s, shifted by −s so that it starts at 0.
    Pareto {
        /// Mean of the added time.
        mean: Duration,
        /// Exponent of the tail, above 1. A smaller one has a heavier tail. At 2 and below the variance is
        /// infinite.
        shape: f64,
    },
    /// e^N with N normal: P(added > t) = P(N > ln t) for N of standard deviation `sigma`.
    LogNormal {
        /// Mean of the added time. Half of the frames get less than `mean`·e^(−`sigma`²/2).
        mean: Duration,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
}

/// The reason that a jitter is rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum JitterError {
    /// An unknown distribution.
    #[error(
        "jitter `{0}`: expected normal:TIME, uniform:TIME, pareto:MEAN:SHAPE or \
         lognormal:MEAN:SIGMA, such as normal:100us or pareto:1ms:3"
    )]
    Syntax(String),
    /// An invalid time.
    #[error("jitter `{text}`: {source}")]
    Time {
        /// The text.
        text: String,
        /// The error in the time.
        source: UnitError,
    },
    /// A time of zero, or above the maximum delay.
    #[error("jitter of {}: expected more than 0 and at most {MAX_DELAY:?}", show_duration(*.0))]
    Span(Duration),
    /// A shape without a mean, or too large.
    #[error("jitter's Pareto shape {0}: expected above 1 (no mean below that) and at most 100")]
    Shape(f64),
    /// A sigma of zero, or too large.
    #[error("jitter's log-normal sigma {0}: expected above 0 and at most 5")]
    Sigma(f64),
}

/// One frame in this many exceeds [`Jitter::reach`].
const REACH: f64 = 10_000.0;
/// The normal distribution's quantile for it.
const REACH_SIGMAS: f64 = 3.719;

impl Jitter {
    /// Checks that the distribution can be drawn.
    pub fn validate(&self) -> Result<(), JitterError> {
        let span = match *self {
            Jitter::Uniform { spread } => spread,
            Jitter::Normal { deviation } => deviation,
            Jitter::Pareto { mean, shape } => {
                if !(shape > 1.0 && shape <= 100.0) {
                    return Err(JitterError::Shape(shape));
                }
                mean
            }
            Jitter::LogNormal { mean, sigma } => {
                if !(sigma > 0.0 && sigma <= 5.0) {
                    return Err(JitterError::Sigma(sigma));
                }
                mean
            }
        };
        if span.is_zero() || span > MAX_DELAY {
            return Err(JitterError::Span(span));
        }
        Ok(())
    }

    /// The largest time that it adds, except to one frame in ten thousand.
    pub fn reach(&self) -> Duration {
        let (mean, factor) = match *self {
            Jitter::Uniform { spread } => (spread, 1.0),
            Jitter::Normal { deviation } => (deviation, REACH_SIGMAS),
            Jitter::Pareto { mean, shape } => {
                (mean, (shape - 1.0) * (REACH.powf(1.0 / shape) - 1.0))
            }
            Jitter::LogNormal { mean, sigma } => {
                (mean, (REACH_SIGMAS * sigma - sigma * sigma / 2.0).exp())
            }
        };
        MAX_DELAY.min(Duration::try_from_secs_f64(mean.as_secs_f64() * factor).unwrap_or(MAX_DELAY))
    }
}

/// `normal:DEVIATION`, `uniform:SPREAD`, `pareto:MEAN:SHAPE` or `lognormal:MEAN:SIGMA`.
impl FromStr for Jitter {
    type Err = JitterError;

    fn from_str(text: &str) -> Result<Self, JitterError> {
        let syntax = || JitterError::Syntax(text.to_owned());
        let time = |part: &str| {
            units::duration(part).map_err(|source| JitterError::Time {
                text: text.to_owned(),
                source,
            })
        };
        let number = |part: &str| part.parse::<f64>().map_err(|_| syntax());
        let parts: Vec<&str> = text.split(':').map(str::trim).collect();
        let jitter = match parts[..] {
            ["normal", deviation] => Jitter::Normal {
                deviation: time(deviation)?,
            },
            ["uniform", spread] => Jitter::Uniform {
                spread: time(spread)?,
            },
            ["pareto", mean, shape] => Jitter::Pareto {
                mean: time(mean)?,
                shape: number(shape)?,
            },
            ["lognormal", mean, sigma] => Jitter::LogNormal {
                mean: time(mean)?,
                sigma: number(sigma)?,
            },
            _ => return Err(syntax()),
        };
        jitter.validate()?;
        Ok(jitter)
    }
}

/// In the format of the parser.
impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Jitter::Uniform { spread } => write!(f, "uniform:{}", show_duration(spread)),
            Jitter::Normal { deviation } => write!(f, "normal:{}", show_duration(deviation)),
            Jitter::Pareto { mean, shape } => write!(f, "pareto:{}:{shape}", show_duration(mean)),
            Jitter::LogNormal { mean, sigma } => {
                write!(f, "lognormal:{}:{sigma}", show_duration(mean))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_text_parses_and_other_text_is_rejected() {
        for text in [
            "normal:100us",
            "uniform:1.5ms",
            "pareto:1ms:2.5",
            "lognormal:250us:0.5",
        ] {
            assert_eq!(text.parse::<Jitter>().expect(text).to_string(), text);
        }
        for wrong in [
            "",
            "normal",
            "normal:100",
            "normal:0us",
            "normal:61s",
            "cauchy:1ms",
            "pareto:1ms",
            "pareto:1ms:1",
            "pareto:1ms:NaN",
            "pareto:1ms:3:3",
            "lognormal:1ms:0",
            "lognormal:1ms:inf",
        ] {
            assert!(wrong.parse::<Jitter>().is_err(), "{wrong}");
        }
    }
}
