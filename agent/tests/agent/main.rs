//! The tests of `ultima-agent`: one binary, so that they link once.

mod job;
mod lossless;
mod metrics;
mod parts;
mod rendezvous;
mod stopped;
