//! Traces: what they say of packets whose way is known.

mod bench;
mod off;
