//! A jitter in operation: the time added to each frame's delay.

use std::time::Duration;

use crate::jitter::Jitter;
use rand::Rng;
use rand_distr::{Distribution, LogNormal, Normal, Pareto, Uniform};

/// Draws the jitter of each frame on one wire.
#[derive(Debug, Clone, Copy)]
pub struct JitterSampler(Distributed);

#[derive(Debug, Clone, Copy)]
enum Distributed {
    Uniform(Uniform<f64>),
    Normal(Normal<f64>),
    Pareto(Pareto<f64>, f64),
    LogNormal(LogNormal<f64>),
}

impl JitterSampler {
    /// Returns `None` for a jitter that [`Jitter::validate`] rejects.
    pub fn new(jitter: Jitter) -> Option<Self> {
        let nanos = |span: Duration| span.as_nanos() as f64;
        let distributed = match jitter {
            Jitter::Uniform { spread } => {
                Distributed::Uniform(Uniform::new(-nanos(spread), nanos(spread)).ok()?)
            }
            Jitter::Normal { deviation } => {
                Distributed::Normal(Normal::new(0.0, nanos(deviation)).ok()?)
            }
            Jitter::Pareto { mean, shape } => {
                let scale = nanos(mean) * (shape - 1.0);
                Distributed::Pareto(Pareto::new(scale, shape).ok()?, scale)
            }
            Jitter::LogNormal { mean, sigma } => {
                // The mean of e^N is e^(μ + σ²/2).
                let mu = nanos(mean).ln() - sigma * sigma / 2.0;
                Distributed::LogNormal(LogNormal::new(mu, sigma).ok()?)
            }
        };
        Some(Self(distributed))
    }

    /// Draws the nanoseconds to add to the next frame's delay.
    pub fn sample(&self, rng: &mut impl Rng) -> f64 {
        match &self.0 {
            Distributed::Uniform(uniform) => uniform.sample(rng),
            Distributed::Normal(normal) => normal.sample(rng),
            Distributed::Pareto(pareto, scale) => pareto.sample(rng) - scale,
            Distributed::LogNormal(log_normal) => log_normal.sample(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn samples(text: &str) -> Vec<f64> {
        let jitter: Jitter = text.parse().expect("valid");
        let sampler = JitterSampler::new(jitter).expect("valid");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut samples: Vec<f64> = (0..200_000).map(|_| sampler.sample(&mut rng)).collect();
        samples.sort_unstable_by(f64::total_cmp);
        samples
    }

    fn quantile(samples: &[f64], share: f64) -> f64 {
        samples[(samples.len() as f64 * share) as usize]
    }

    fn mean(samples: &[f64]) -> f64 {
        samples.iter().sum::<f64>() / samples.len() as f64
    }

    /// Within `share` of what is expected.
    fn near(value: f64, expected: f64, share: f64) {
        assert!(
            (value - expected).abs() <= expected.abs() * share,
            "{value}, expected {expected}"
        );
    }

    #[test]
    fn each_distribution_has_its_quantiles() {
        let normal = samples("normal:100us");
        near(quantile(&normal, 0.8413), 100_000.0, 0.02);
        near(quantile(&normal, 0.0228), -200_000.0, 0.02);
        assert!(mean(&normal).abs() < 1_000.0);
        let uniform = samples("uniform:100us");
        near(quantile(&uniform, 0.25), -50_000.0, 0.02);
        assert!(uniform[0] >= -100_000.0 && uniform[uniform.len() - 1] <= 100_000.0);
        // s = 200 µs: the median is s·(2^⅓ − 1), the 99 % quantile s·(100^⅓ − 1).
        let pareto = samples("pareto:100us:3");
        near(mean(&pareto), 100_000.0, 0.02);
        near(quantile(&pareto, 0.5), 51_984.0, 0.02);
        near(quantile(&pareto, 0.99), 728_318.0, 0.04);
        assert!(pareto[0] >= 0.0);
        // The median is the mean times e^−½.
        let log_normal = samples("lognormal:100us:1");
        near(mean(&log_normal), 100_000.0, 0.02);
        near(quantile(&log_normal, 0.5), 60_653.0, 0.02);
        near(quantile(&log_normal, 0.8413), 164_872.0, 0.02);
    }

    #[test]
    fn all_but_one_frame_in_ten_thousand_stay_within_reach() {
        for text in [
            "uniform:100us",
            "normal:100us",
            "pareto:100us:3",
            "pareto:100us:1.2",
            "lognormal:100us:1",
        ] {
            let reach = text.parse::<Jitter>().expect("valid").reach();
            let beyond = samples(text)
                .iter()
                .filter(|added| **added > reach.as_nanos() as f64)
                .count();
            // 20 of 200,000 are expected, but for the uniform, whose reach is its end.
            assert!(beyond <= 40, "{text}: {beyond} beyond {reach:?}");
        }
    }
}
