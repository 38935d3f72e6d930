//! The caller's side of recycling: residuals by bucket, between decoded gradients and outputs.

use std::collections::BTreeMap;

use crate::codec::Codec;

use super::Correction;

/// The decoded residuals e_i that a rank carries from one operation of a bucket to the next.
///
/// [`crate::Collective`] manages this itself. A driver of [`crate::Core`] calls, for every operation,
/// [`Carry::contribute`] before encoding and [`Carry::settle`] after decoding.
#[derive(Default)]
pub struct Carry {
    residuals: BTreeMap<u16, Vec<f32>>,
    /// Outputs of skipped updates, until the next update.
    held: BTreeMap<u16, Vec<f32>>,
    contributed: Vec<f32>,
    encoded: Vec<f32>,
    decoded: Vec<f32>,
}

impl Carry {
    /// The residual of `bucket`, with one value per entry of its gradient. None before its first operation.
    pub fn residual(&self, bucket: u16) -> Option<&[f32]> {
        self.residuals.get(&bucket).map(Vec::as_slice)
    }

    /// The contribution of `bucket`: y = g + e.
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

    /// Replaces the residual that was contributed by those of `corrections` (from
    /// [`crate::Core::take_corrections`]), and adds their outputs to this operation's `output`.
    ///
    /// # Panics
    /// If the corrections belong to buckets of another length than `output`.
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

    /// Holds the `output` of [`Carry::settle`], because all ranks skip this update of `bucket`: h_r, a part
    /// of the next update.
    pub fn skip(&mut self, bucket: u16, output: &[f32]) {
        self.held.insert(bucket, output.to_vec());
    }

    /// Moves held outputs to the next contributions, because every rank's parameters were replaced by their
    /// mean. [`crate::Core::healed`] does the same for corrections that are still due.
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
