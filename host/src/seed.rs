//! Seeds for the parts of a job, derived from the job's seed.

use crate::operation::OperationId;

/// Purpose of a derived seed. Two purposes of one operation never share random numbers.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// The codec's random signs.
    Signs = 1,
    /// A source's start in its rotation.
    Rotation = 2,
    /// The entries of parameters that a digest adds up.
    Digest = 3,
}

/// The seed for `purpose` in operation `id` of a job with `seed`; `index` distinguishes several.
///
/// Every input passes the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), so neighbouring operations
/// and ranks get unrelated seeds.
pub(crate) fn derive(seed: u64, purpose: Purpose, id: OperationId, index: u64) -> u64 {
    Seeds::new(seed, purpose, id).of(index)
}

/// The seeds for one purpose in one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seeds(u64);

impl Seeds {
    pub(crate) fn new(seed: u64, purpose: Purpose, id: OperationId) -> Self {
        let operation = u64::from(id.step) << 16 | u64::from(id.bucket);
        let words = [purpose as u64, operation].into_iter();
        Self(words.fold(finalize(seed), |state, word| finalize(state ^ word)))
    }

    /// The seed that [`derive`] returns for `index`.
    pub(crate) fn of(self, index: u64) -> u64 {
        finalize(self.0 ^ index)
    }
}

fn finalize(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_counts() {
        let id = |step, bucket| OperationId { step, bucket };
        let mut seen: Vec<u64> = vec![
            derive(1, Purpose::Signs, id(0, 0), 0),
            derive(2, Purpose::Signs, id(0, 0), 0),
            derive(1, Purpose::Rotation, id(0, 0), 0),
            derive(1, Purpose::Signs, id(1, 0), 0),
            derive(1, Purpose::Signs, id(0, 1), 0),
            derive(1, Purpose::Signs, id(0, 0), 1),
        ];
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 6);
    }
}
