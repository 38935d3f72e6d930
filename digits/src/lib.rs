//! The training job of the demo and the studies: UCI's handwritten digits, a multilayer perceptron, how workers share the
//! data, and what a run is judged by. It owns no network and no process.

pub mod baseline;
pub mod data;
pub mod metrics;
pub mod mlp;
pub mod random;
pub mod shards;
pub mod training;
