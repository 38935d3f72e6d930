//! The caller's side of recycling: residuals by bucket, between decoded gradients and outputs.

use std::collections::{BTreeMap, VecDeque};

use crate::codec::Codec;
use crate::operation::OperationId;

use super::Correction;

/// The decoded residuals e_i that a rank carries from one operation of a bucket to the next.
///
/// [`crate::Collective`] manages this itself. A driver of [`crate::Core`] calls, for every operation,
/// [`Carry::contribute`] before encoding and [`Carry::apply`] after decoding.
///
/// **Non-finite values.** A NaN or an infinity in any rank's gradient makes the result of that operation non-finite, so
/// that the training loop skips the update (PyTorch's `GradScaler` does). Nothing of such an operation is carried: the
/// residual stays what it was before, and later repairs of the operation are dropped.
///
/// **Loss scale.** Gradients that are multiplied by a loss scale leave residuals of that scale: see
/// [`Carry::set_scale`].
pub struct Carry {
    /// The loss scale of contributions from now on.
    scale: f32,
    /// Loss scales by their first step, oldest first.
    scales: VecDeque<(u32, f32)>,
    /// The last operations with a non-finite result.
    rejected: VecDeque<OperationId>,
    residuals: BTreeMap<u16, Vec<f32>>,
    /// Outputs of skipped updates, until the next update.
    held: BTreeMap<u16, Vec<f32>>,
    contributed: Vec<f32>,
    encoded: Vec<f32>,
    decoded: Vec<f32>,
}

/// Number of stored changes of the loss scale, and of operations with a non-finite result. More than the operations
/// whose corrections are still due: GradScaler changes the scale after a skipped step or 2,000 others.
const STORED: usize = 4096;

/// Appends to a list of at most [`STORED`].
fn store<T>(list: &mut VecDeque<T>, value: T) {
    if list.len() == STORED {
        list.pop_front();
    }
    list.push_back(value);
}

impl Default for Carry {
    fn default() -> Self {
        Self {
            scale: 1.0,
            scales: VecDeque::from([(0, 1.0)]),
            rejected: VecDeque::new(),
            residuals: BTreeMap::new(),
            held: BTreeMap::new(),
            contributed: Vec::new(),
            encoded: Vec::new(),
            decoded: Vec::new(),
        }
    }
}

impl Carry {
    /// Sets the factor by which gradients are multiplied from the next contribution on, a positive number; 1 at first.
    /// Residuals and later corrections of earlier operations are converted to it.
    pub fn set_scale(&mut self, scale: f32) {
        if scale == self.scale {
            return;
        }
        let factor = scale / self.scale;
        for values in self.residuals.values_mut().chain(self.held.values_mut()) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        self.scale = scale;
    }

    /// The loss scale of an operation's contributions.
    fn scale_of(&self, id: OperationId) -> f32 {
        let mut newest_first = self.scales.iter().rev();
        let scale = newest_first.find(|(first, _)| *first <= id.step);
        scale.map_or(self.scale, |(_, scale)| *scale)
    }

    /// The residual of `bucket`, with one value per entry of its gradient. None before its first operation.
    pub fn residual(&self, bucket: u16) -> Option<&[f32]> {
        self.residuals.get(&bucket).map(Vec::as_slice)
    }

    /// The contribution of operation `id`: y = g + e.
    ///
    /// # Panics
    /// If the bucket had another length before.
    pub fn contribute(&mut self, id: OperationId, gradient: &[f32]) -> &[f32] {
        let bucket = id.bucket;
        if self
            .scales
            .back()
            .is_none_or(|(_, scale)| *scale != self.scale)
        {
            store(&mut self.scales, (id.step, self.scale));
        }
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

    /// Replaces the residual that operation `id` contributed by those of `corrections` (from
    /// [`crate::Core::take_corrections`]), and adds their outputs to this operation's `output`. If that is not finite, the
    /// residual stays, and the outputs are part of the next finite one.
    ///
    /// # Panics
    /// If the corrections belong to buckets of another length than `output`.
    pub fn apply(
        &mut self,
        codec: &mut Codec,
        id: OperationId,
        corrections: &[Correction],
        output: &mut [f32],
    ) {
        let mut held = self.held.remove(&id.bucket).unwrap_or_default();
        let mut residual = self.residuals.remove(&id.bucket).unwrap_or_default();
        residual.resize(output.len(), 0.0);
        let is_finite = output.iter().all(|value| value.is_finite());
        if is_finite {
            residual.fill(0.0);
            for (value, held) in output.iter_mut().zip(&held) {
                *value += held;
            }
            self.correct(codec, corrections, &mut residual, output);
        } else {
            store(&mut self.rejected, id);
            held.resize(output.len(), 0.0);
            self.correct(codec, corrections, &mut residual, &mut held);
            self.held.insert(id.bucket, held);
        }
        self.residuals.insert(id.bucket, residual);
    }

    /// Adds corrections to a residual and an output.
    fn correct(
        &mut self,
        codec: &mut Codec,
        corrections: &[Correction],
        residual: &mut [f32],
        output: &mut [f32],
    ) {
        for correction in corrections {
            if self.rejected.contains(&correction.id) {
                continue;
            }
            let factor = self.scale / self.scale_of(correction.id);
            let parts = [
                (&correction.residual, &mut *residual),
                (&correction.output, &mut *output),
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
                    // Another rank's non-finite value, in a part of the operation that did not arrive in time.
                    if value.is_finite() {
                        *sum += value * factor;
                    }
                }
            }
        }
    }

    /// Holds the `output` of [`Carry::apply`], because all ranks skip this update of `bucket`: h_r, a part
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
