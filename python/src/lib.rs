//! The native half of the Python package `ultima`: jobs, and operations on memory that Python objects own.
//!
//! The Python half (`ultima/`) checks types and shapes, and keeps this module to itself.

mod error;
mod job;
mod memory;
mod outcome;
mod pending;
mod signals;
mod store;

/// Jobs of the Python package `ultima`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::job::{Job, check, start};
    #[pymodule_export]
    use super::outcome::Outcome;
    #[pymodule_export]
    use super::pending::Pending;
}
