//! The planner's integration tests, in one binary.

mod grids;
mod program_parity;
mod schema;
