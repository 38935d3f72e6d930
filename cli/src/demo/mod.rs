//! `ultima demo`: a model trained data-parallel, every gradient of it through the switch.

mod baseline;
mod digits;
mod metrics;
mod mlp;
mod options;
mod random;
mod report;
mod shards;
mod table;
mod training;
