//! Traces: what they say of packets whose way is known.

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod live;
mod off;
