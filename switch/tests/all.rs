//! All integration tests of the switch, in one binary: each binary costs time and disk to link.

mod engine;
mod served;
