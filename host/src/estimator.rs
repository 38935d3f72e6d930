//! Estimators of the mean over all ranks from the contributions that arrived. `ultima-research study estimators`
//! compares them.

use serde::{Deserialize, Serialize};

/// An owner's estimate of the mean over all ranks. The same on every rank. Runs with the same arrivals have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimation {
    /// A slot's sum, divided by the contributions in it.
    ///
    /// The owner's own contribution always arrives. If each of the *N*−1 others does with probability *q* =
    /// 1−*p*, a source's expected weight is, with *M* ~ Binomial(*N*−2, *q*) other arrivals, *q*·E\[1/(2+*M*)\]
    /// for one that is not the owner and E\[1/(1+*M*′)\] = (1−*p*^*N*)/(*Nq*), *M*′ ~ Binomial(*N*−1, *q*), for
    /// the owner. A rank owns 1/*N* of all entries, so over a bucket every rank weighs exactly 1/*N* if all lose
    /// alike. The variance of the estimate around the true mean, given *m* contributions drawn without
    /// replacement, is *s*²/*m*·(1−*m*/*N*), *s*² being the variance between the ranks (with divisor *N*−1); it
    /// is zero if all contributions are equal.
    #[default]
    ArrivedMean,
    /// *(1/N)·Σ_i (sent_i/arrived_i)·1{i arrived}·y_i*, the totals being the shard's (OptiReduce, NSDI 2025: receivers
    /// count the expected and the received packets of each sender, and scale). It needs these totals, so shards close as a
    /// whole.
    ///
    /// Unbiased if losses hit slots at random, at any rate. The variance grows with (1−q)/q of each source's own
    /// square, unlike the other estimator's. A source without any arrival is zero.
    Scaled,
}

impl Estimation {
    /// All variants.
    pub const ALL: [Estimation; 2] = [Estimation::ArrivedMean, Estimation::Scaled];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Estimation::ArrivedMean => "arrived-mean",
            Estimation::Scaled => "scaled",
        }
    }

    /// True if slots must wait for the rest of their shard.
    pub(crate) fn closes_whole_shards(self) -> bool {
        self == Estimation::Scaled
    }
}

/// The weight of a contribution in a job of `ranks` with [`Estimation::Scaled`]: `came` of its source's slots arrived.
pub(crate) fn scaled_weight(ranks: u16, came: u32, slots: u32) -> f32 {
    (f64::from(slots) / (f64::from(ranks) * f64::from(came))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_stand_for_all_sent_slots() {
        assert_eq!(scaled_weight(4, 4, 4), 0.25);
        assert_eq!(scaled_weight(4, 2, 4), 0.5);
    }
}
