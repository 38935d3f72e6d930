//! The `ultima` binary.
fn main() {}
