//! The tests of `ultima-agent`: one binary, so that they link once.

mod metrics;
mod rendezvous;
