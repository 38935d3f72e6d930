//! The model: a multilayer perceptron whose parameters, and gradient, are one flat buffer each.
//!
//! An AllReduce takes a buffer, not layers; so layers are views of it, and nothing is copied.

use crate::random::{Purpose, stream};
use ndarray::linalg::general_mat_mul;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Zip};
use rand::RngExt;
use std::ops::Range;

/// The position of a fully connected layer in the flat buffer: its weights (`inputs` rows of `outputs`),
/// then its biases.
#[derive(Clone, Copy, Debug)]
struct Layer {
    inputs: usize,
    outputs: usize,
    offset: usize,
}

impl Layer {
    fn weights(&self) -> Range<usize> {
        self.offset..self.offset + self.inputs * self.outputs
    }

    fn biases(&self) -> Range<usize> {
        self.weights().end..self.weights().end + self.outputs
    }

    fn view<'a>(&self, flat: &'a [f32]) -> (ArrayView2<'a, f32>, ArrayView1<'a, f32>) {
        let weights = ArrayView2::from_shape((self.inputs, self.outputs), &flat[self.weights()]);
        (
            weights.expect("a layer's own range"),
            ArrayView1::from(&flat[self.biases()]),
        )
    }

    fn view_mut<'a>(
        &self,
        flat: &'a mut [f32],
    ) -> (ArrayViewMut2<'a, f32>, ArrayViewMut1<'a, f32>) {
        let own = &mut flat[self.offset..self.biases().end];
        let (weights, biases) = own.split_at_mut(self.inputs * self.outputs);
        let weights = ArrayViewMut2::from_shape((self.inputs, self.outputs), weights);
        (
            weights.expect("a layer's own range"),
            ArrayViewMut1::from(biases),
        )
    }
}

/// Fully connected layers with ReLU between them, softmax cross-entropy at the end.
///
/// Computed on one thread in a fixed order: on one machine the same parameters and examples give the
/// same bits.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The first layer first.
    layers: Vec<Layer>,
    parameters: Vec<f32>,
}

impl Mlp {
    /// A model with layers of these `widths`, features first and classes last, initialised from `seed`.
    ///
    /// Weights are uniform with variance 2/inputs, which keeps a ReLU network's activations of one size
    /// from layer to layer (He et al., "Delving Deep into Rectifiers", 2015); biases are zero.
    pub fn new(widths: &[usize], seed: u64) -> Self {
        let mut rng = stream(seed, Purpose::Weights, 0);
        let mut layers = Vec::with_capacity(widths.len().saturating_sub(1));
        let mut parameters = Vec::new();
        for pair in widths.windows(2).rev() {
            let layer = Layer {
                inputs: pair[0],
                outputs: pair[1],
                offset: parameters.len(),
            };
            // Uniform on ±b has variance b²/3.
            let bound = (6.0 / layer.inputs as f32).sqrt();
            parameters.extend(layer.weights().map(|_| rng.random_range(-bound..bound)));
            parameters.resize(layer.biases().end, 0.0);
            layers.push(layer);
        }
        layers.reverse();
        Self { layers, parameters }
    }

    /// All parameters, layer by layer, weights before biases; the last layer first, which is the order in
    /// which backpropagation finishes them and data-parallel frameworks fill their buckets.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The same to be replaced.
    pub fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    /// Writes the gradient of the mean loss over a batch into `gradient`, laid out as
    /// [`parameters`](Self::parameters) are; returns that loss, in nats.
    ///
    /// # Panics
    /// If the gradient's length, the features' width, the number of labels or a label does not fit.
    pub fn gradient(
        &self,
        features: ArrayView2<'_, f32>,
        labels: &[u8],
        gradient: &mut [f32],
    ) -> f32 {
        assert_eq!(
            gradient.len(),
            self.parameters.len(),
            "one entry per parameter"
        );
        assert_eq!(features.nrows(), labels.len(), "one label per example");
        let mut activations = self.activations(features);
        // The derivative of each example's loss with respect to the layer's output.
        let mut delta = activations.pop().expect("a model has a layer");
        let loss = cross_entropy(&mut delta, labels);
        for (number, layer) in self.layers.iter().enumerate().rev() {
            let input = match number {
                0 => features,
                _ => activations[number - 1].view(),
            };
            let (mut weights, mut biases) = layer.view_mut(gradient);
            general_mat_mul(1.0, &input.t(), &delta, 0.0, &mut weights);
            biases.fill(0.0);
            delta.rows().into_iter().for_each(|row| biases += &row);
            if number > 0 {
                let mut below = delta.dot(&layer.view(&self.parameters).0.t());
                Zip::from(&mut below).and(input).for_each(|d, &a| {
                    if a <= 0.0 {
                        *d = 0.0;
                    }
                });
                delta = below;
            }
        }
        loss
    }

    /// A step of gradient descent: parameters −= `rate` × `gradient`.
    ///
    /// Linear in the gradient, hence what an AllReduce owes one step may be paid in a later one.
    ///
    /// # Panics
    /// If the gradient's length does not fit.
    pub fn descend(&mut self, gradient: &[f32], rate: f32) {
        assert_eq!(
            gradient.len(),
            self.parameters.len(),
            "one entry per parameter"
        );
        for (parameter, slope) in self.parameters.iter_mut().zip(gradient) {
            *parameter -= rate * slope;
        }
    }

    /// The most likely class of each example.
    pub fn classify(&self, features: ArrayView2<'_, f32>) -> Vec<u8> {
        let scores = self
            .activations(features)
            .pop()
            .expect("a model has a layer");
        let best = |row: ArrayView1<'_, f32>| {
            row.iter()
                .enumerate()
                .max_by(|a, b| a.1.total_cmp(b.1))
                .map_or(0, |(class, _)| class)
        };
        scores
            .rows()
            .into_iter()
            .map(|row| best(row) as u8)
            .collect()
    }

    /// Every layer's output; the last layer's are scores without a nonlinearity.
    fn activations(&self, features: ArrayView2<'_, f32>) -> Vec<Array2<f32>> {
        let mut outputs: Vec<Array2<f32>> = Vec::with_capacity(self.layers.len());
        for (number, layer) in self.layers.iter().enumerate() {
            let (weights, biases) = layer.view(&self.parameters);
            let input = outputs.last().map_or(features, |previous| previous.view());
            let mut output = input.dot(&weights);
            output += &biases;
            if number + 1 < self.layers.len() {
                output.mapv_inplace(|score| score.max(0.0));
            }
            outputs.push(output);
        }
        outputs
    }
}

/// Turns scores into the derivatives of the batch's mean loss by them; returns that loss, in nats.
fn cross_entropy(scores: &mut Array2<f32>, labels: &[u8]) -> f32 {
    let examples = labels.len() as f32;
    let mut losses = Array1::zeros(labels.len());
    for ((mut row, &label), loss) in scores
        .rows_mut()
        .into_iter()
        .zip(labels)
        .zip(losses.iter_mut())
    {
        let label = usize::from(label);
        // Softmax does not change when all scores move; with the largest at 0, exp cannot overflow.
        let largest = row.fold(f32::NEG_INFINITY, |max, &score| max.max(score));
        row -= largest;
        let own = row[label];
        row.mapv_inplace(f32::exp);
        let sum = row.sum();
        *loss = sum.ln() - own;
        row /= sum;
        row[label] -= 1.0;
        row /= examples;
    }
    losses.sum_axis(Axis(0)).into_scalar() / examples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CLASSES, Digits, PIXELS};
    use ndarray::array;

    #[test]
    fn layers_tile_the_buffer_last_to_first() {
        let model = Mlp::new(&[64, 30, 20, 10], 1);
        let mut end = 0;
        for layer in model.layers.iter().rev() {
            assert_eq!(layer.weights().start, end);
            assert_eq!(layer.biases().start, layer.weights().end);
            end = layer.biases().end;
        }
        assert_eq!(end, model.parameters().len());
        assert_eq!(end, 64 * 30 + 30 + 30 * 20 + 20 + 20 * 10 + 10);
    }

    #[test]
    fn weights_have_the_variance_of_he_and_biases_are_zero() {
        let model = Mlp::new(&[200, 300, 10], 1);
        let layer = model.layers[0];
        let weights = &model.parameters()[layer.weights()];
        let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / weights.len() as f64;
        let square = weights.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>();
        let variance = square / weights.len() as f64;
        assert!(mean.abs() < 1e-3, "mean {mean}");
        assert!((variance / 0.01 - 1.0).abs() < 0.02, "variance {variance}");
        assert!(model.parameters()[layer.biases()].iter().all(|&b| b == 0.0));
        assert_ne!(
            model.parameters(),
            Mlp::new(&[200, 300, 10], 2).parameters()
        );
    }

    #[test]
    fn a_model_of_one_layer_agrees_with_a_computation_by_hand() {
        let mut model = Mlp::new(&[2, 2], 1);
        model
            .parameters
            .copy_from_slice(&[1.0, 0.0, 0.0, 1.0, 0.5, 0.5]);
        let mut gradient = [f32::NAN; 6];
        // Scores (1.5, 0.5): the softmax of a difference of 1 is 1/(1+e⁻¹).
        let loss = model.gradient(array![[1.0, 0.0]].view(), &[1], &mut gradient);
        let p = 1.0 / (1.0 + (-1.0f32).exp());
        assert!((loss + (1.0 - p).ln()).abs() < 1e-6);
        let expected = [p, -p, 0.0, 0.0, p, -p];
        assert!(
            gradient
                .iter()
                .zip(expected)
                .all(|(g, e)| (g - e).abs() < 1e-6),
            "{gradient:?}"
        );
    }

    #[test]
    fn the_gradient_is_the_loss_s_slope() {
        let train = Digits::load(1).unwrap().train;
        let batch = train.select(&(0..16).collect::<Vec<_>>());
        let mut model = Mlp::new(&[PIXELS, 24, 16, CLASSES], 1);
        // Away from the zero biases of the start, where dead units would hide an error.
        model
            .parameters
            .iter_mut()
            .enumerate()
            .for_each(|(i, p)| *p += 0.01 * (i % 7) as f32);
        let mut gradient = vec![0.0; model.parameters().len()];
        model.gradient(batch.features(), batch.labels(), &mut gradient);
        let loss_at = |model: &Mlp| {
            let mut unused = vec![0.0; model.parameters().len()];
            f64::from(model.gradient(batch.features(), batch.labels(), &mut unused))
        };
        // Along a direction over all parameters, and along single parameters of every layer.
        let ends = model
            .layers
            .iter()
            .flat_map(|l| [l.weights().end - 1, l.biases().end - 1]);
        let mut directions: Vec<Vec<f32>> = ends
            .map(|i| {
                (0..gradient.len())
                    .map(|j| if i == j { 1.0 } else { 0.0 })
                    .collect()
            })
            .collect();
        let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        directions.push(gradient.iter().map(|g| g / norm).collect());
        for (number, direction) in directions.iter().enumerate() {
            let slope: f64 = gradient
                .iter()
                .zip(direction)
                .map(|(&g, &d)| f64::from(g) * f64::from(d))
                .sum();
            let step = 2e-3;
            let (mut up, mut down) = (model.clone(), model.clone());
            up.descend(direction, -step);
            down.descend(direction, step);
            let measured = (loss_at(&up) - loss_at(&down)) / f64::from(2.0 * step);
            let tolerance = 1e-3 + 0.01 * slope.abs();
            assert!(
                (slope - measured).abs() < tolerance,
                "{number}: {slope} against {measured}"
            );
        }
        assert!(norm > 0.1, "a gradient of zero would prove nothing");
    }

    #[test]
    fn a_batch_s_gradient_is_the_mean_over_its_examples() {
        let train = Digits::load(1).unwrap().train;
        let model = Mlp::new(&[PIXELS, 24, CLASSES], 1);
        let gradient = |indices: &[usize]| {
            let batch = train.select(indices);
            let mut gradient = vec![0.0; model.parameters().len()];
            model.gradient(batch.features(), batch.labels(), &mut gradient);
            gradient
        };
        let (both, first, second) = (gradient(&[3, 4]), gradient(&[3]), gradient(&[4]));
        for ((b, f), s) in both.iter().zip(&first).zip(&second) {
            assert!((b - (f + s) / 2.0).abs() < 1e-6);
        }
    }

    #[test]
    fn the_same_batch_gives_the_same_bits() {
        let train = Digits::load(1).unwrap().train;
        let batch = train.select(&(0..32).collect::<Vec<_>>());
        let model = Mlp::new(&[PIXELS, 288, 288, CLASSES], 1);
        let bits = |model: &Mlp| {
            let mut gradient = vec![0.0; model.parameters().len()];
            model.gradient(batch.features(), batch.labels(), &mut gradient);
            gradient.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let first = bits(&model);
        for _ in 0..10 {
            assert!(bits(&model.clone()) == first);
        }
    }

    #[test]
    fn extreme_scores_stay_finite() {
        let mut scores = array![[1e30, -1e30], [-1e30, 1e30]];
        let loss = cross_entropy(&mut scores, &[0, 1]);
        assert_eq!(loss, 0.0);
        assert!(scores.iter().all(|d| d.is_finite()));
    }

    #[test]
    fn the_largest_score_is_the_class() {
        let mut model = Mlp::new(&[2, 2], 1);
        model
            .parameters
            .copy_from_slice(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(
            model.classify(array![[2.0, 1.0], [1.0, 2.0]].view()),
            [0, 1]
        );
    }
}
