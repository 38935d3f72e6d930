//! The caller's side: residuals by bucket, between decoded gradients and outputs.

use std::collections::BTreeMap;

use crate::codec::Codec;

use super::Correction;

/// What a rank carries from one operation of a bucket to the next, decoded: e_i of each bucket.
///
/// [`crate::Collective`] does this by itself; who drives a [`crate::Core`] calls, for every operation,
/// [`Carry::contribute`] before it encodes and [`Carry::settle`] after it has decoded.
#[derive(Default)]
pub struct Carry {
    residuals: BTreeMap<u16, Vec<f32>>,
    /// Outputs of updates that were skipped, until the next one.
    held: BTreeMap<u16, Vec<f32>>,
    contributed: Vec<f32>,
    encoded: Vec<f32>,
    decoded: Vec<f32>,
}

impl Carry {
    /// The residual of `bucket`, as long as its gradient; none before its first operation.
    pub fn residual(&self, bucket: u16) -> Option<&[f32]> {
        self.residuals.get(&bucket).map(Vec::as_slice)
    }

    /// What is contributed: y = g + e.
    ///
    /// # Panics
    /// If the bucket had another length before.
    pub fn contribute(&mut self, bucket: u16, gradient: &[f32]) -> &[f32] {
        self.contributed.clear();
        self.contributed.extend_from_slice(gradient);
        if let Some(residual) = self.residuals.get(&bucket) {
            assert_eq!(residual.len(), gradient.len(), "values of bucket {bucket}");
            for (value, carried) in self.contributed.iter_mut().zip(residual) {
                *value += carried;
            }
        }
        &self.contributed
    }

    /// What was contributed is no longer carried; what came of this and earlier operations, by
    /// [`crate::Core::take_corrections`], is: its residuals here, its outputs on top of this operation's, `output`.
    ///
    /// # Panics
    /// If the corrections are not of buckets as long as `output`.
    pub fn settle(
        &mut self,
        codec: &mut Codec,
        bucket: u16,
        corrections: &[Correction],
        output: &mut [f32],
    ) {
        if let Some(held) = self.held.remove(&bucket) {
            for (value, held) in output.iter_mut().zip(held) {
                *value += held;
            }
        }
        let residual = self.residuals.entry(bucket).or_default();
        residual.clear();
        residual.resize(output.len(), 0.0);
        for correction in corrections {
            let parts = [
                (&correction.residual, &mut residual[..]),
                (&correction.output, &mut output[..]),
            ];
            for (part, sum) in parts {
                if part.is_empty() {
                    continue;
                }
                self.encoded.clear();
                self.encoded.resize(correction.len, 0.0);
                part.add_to(&mut self.encoded);
                self.decoded.resize(sum.len(), 0.0);
                let (id, coding) = (correction.id, correction.coding);
                codec.decode_as(coding, id, &self.encoded, &mut self.decoded);
                for (sum, value) in sum.iter_mut().zip(&self.decoded) {
                    *sum += value;
                }
            }
        }
    }

    /// All ranks skip the update of `bucket` that [`Carry::settle`] gave: it is part of the next one, h_r.
    pub fn skip(&mut self, bucket: u16, output: &[f32]) {
        self.held.insert(bucket, output.to_vec());
    }

    /// Every rank's parameters have become their mean: what this rank holds goes into its next contributions instead of
    /// its outputs ([`crate::Core::healed`] does the same for what it is owed).
    pub fn heal(&mut self) {
        for (bucket, held) in std::mem::take(&mut self.held) {
            let residual = self.residuals.entry(bucket).or_default();
            residual.resize(held.len(), 0.0);
            for (value, held) in residual.iter_mut().zip(held) {
                *value += held;
            }
        }
    }
}
