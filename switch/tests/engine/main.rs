//! The engine, through programs of our own and through its control side; no switch runs, nothing is sent.

mod arithmetic;
mod control;
mod copies;
mod hashes;
mod idle;
mod lookups;
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
        $crate::control::Testbed::new(
            include_bytes!(concat!("../programs/", $name, ".json")),
            include_str!(concat!("../programs/", $name, ".p4info.txtpb")),
        )
    };
}
use program;
