//! Documents of the API as text for a terminal.

mod apply;
mod check;
mod fabric;
mod job;
mod plan;

pub use fabric::{Checked, not_rerouted};
pub use job::pending;

/// A document that also has a text for a terminal.
pub trait Text {
    /// The text.
    fn text(&self) -> String;
}
