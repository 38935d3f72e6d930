//! Training in a network: gradients, applied updates, and their error.

use std::time::Duration;

use ultima_host::{Buffer, Carry, Codec, Coding, Config, Core, OperationId, Recycling};

use super::{Done, Random, config};

pub const T_B: Duration = Duration::from_millis(20);
pub const SLOT: usize = 8;

pub fn recycling(ranks: u16, keep: u32) -> Config {
    Config {
        slot_bytes: SLOT * 4,
        coding: Coding::Hadamard { log2_block: 4 },
        recycling: Some(Recycling { keep }),
        t_s: T_B * 3 / 5,
        t_b: T_B,
        ..config(ranks)
    }
}

pub fn id(step: u32) -> OperationId {
    OperationId { step, bucket: 3 }
}

/// One rank's training: random gradients for some steps, then zeros.
pub struct Rank {
    pub codec: Codec,
    pub carry: Carry,
    recycles: bool,
    pub random: Random,
    /// The common part of all gradients of this rank, as with classes assigned to ranks.
    pub bias: Vec<f32>,
    pub len: usize,
    pub step: u32,
    /// A step whose update all ranks skip, and what this rank's first entry has in it.
    pub skipped: Option<(u32, f32)>,
    pub applied: Vec<f64>,
    pub gradients: Vec<f64>,
}

impl Rank {
    pub fn new(config: &Config, rank: u16, len: usize) -> Self {
        Self {
            codec: Codec::new(config.coding, config.seed),
            carry: Carry::default(),
            recycles: config.recycling.is_some(),
            random: Random::new(u64::from(rank)),
            bias: vec![0.0; len],
            len,
            step: 0,
            skipped: None,
            applied: vec![0.0; len],
            gradients: vec![0.0; len],
        }
    }

    /// Applies an operation's result.
    pub fn apply(&mut self, core: &mut Core, done: &Done) {
        let output = self.output(core, done);
        self.add(&output);
    }

    /// The output of an operation, including corrections of earlier ones.
    pub fn output(&mut self, core: &mut Core, done: &Done) -> Vec<f32> {
        let id = done.outcome.id;
        let mut output = vec![0.0; self.len];
        self.codec.decode(id, &done.encoded, &mut output);
        if self.recycles {
            let corrections = core.take_corrections(id.bucket);
            self.carry
                .apply(&mut self.codec, id, &corrections, &mut output);
        }
        output
    }

    /// Applies an output.
    pub fn add(&mut self, output: &[f32]) {
        for (sum, value) in self.applied.iter_mut().zip(output) {
            *sum += f64::from(*value);
        }
    }

    /// The next step's encoded contribution. Its gradient is zero from `zero_from` on.
    pub fn contribute(&mut self, zero_from: u32) -> (OperationId, Vec<f32>) {
        let mut gradient = vec![0.0; self.len];
        if self.step < zero_from {
            gradient = self.random.bucket(self.len);
            for (value, bias) in gradient.iter_mut().zip(&self.bias) {
                *value += bias;
            }
        }
        match self.skipped {
            Some((step, first)) if step == self.step => gradient[0] = first,
            _ => {
                for (sum, value) in self.gradients.iter_mut().zip(&gradient) {
                    *sum += f64::from(*value);
                }
            }
        }
        let id = id(self.step);
        self.step += 1;
        let mut encoded = Buffer::default();
        let contributed = self.carry.contribute(id, &gradient);
        self.codec.encode(id, contributed, &mut encoded);
        (id, encoded.to_vec())
    }
}

/// ‖Σ applied − Σ exact‖²/‖Σ exact‖² at every rank.
pub fn errors(ranks: &[Rank], divisor: f64) -> Vec<f64> {
    let exact: Vec<f64> = (0..ranks[0].len)
        .map(|at| ranks.iter().map(|rank| rank.gradients[at]).sum::<f64>() / divisor)
        .collect();
    let square = |x: f64| x * x;
    let norm: f64 = exact.iter().map(|x| square(*x)).sum();
    ranks
        .iter()
        .map(|rank| {
            let parts = rank.applied.iter().zip(&exact);
            parts.map(|(a, b)| square(a - b)).sum::<f64>() / norm
        })
        .collect()
}
