//! Tests of the engine without a switch, through its control interface.

mod arithmetic;
mod control;
mod copies;
mod hashes;
mod hostile;
mod idle;
mod lookups;
mod memory;
mod mutants;
mod parsing;
mod profiles;
mod programs;
mod random_frames;
mod refusals;
mod trace;
mod untraced;
mod value_sets;

/// Loads a program of `tests/programs`.
macro_rules! program {
    ($name:literal) => {
        $crate::engine::control::Testbed::new(
            include_bytes!(concat!("../programs/", $name, ".json")),
            include_str!(concat!("../programs/", $name, ".p4info.txtpb")),
        )
    };
}
use program;
