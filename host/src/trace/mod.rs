//! What happens in operations, packet by packet, for whoever wants to look: `docs/trace.md`.
//!
//! | file | |
//! | --- | --- |
//! | `record.rs` | what is told |
//! | `lines.rs` | as lines of JSON, written and read |
//! | `file.rs` | a file of them, written by a thread of its own |
//!
//! A [`crate::Core`] hands each [`Record`] to the [`Sink`] that it was given. Without one, nothing is made: each place
//! that could tell something costs a test of a pointer.

mod file;
mod lines;
mod record;

pub use file::{FileSink, TraceFile, WhenFull, Written};
pub use lines::{Clock, Head, LineError, SCHEMA, VERSION, read_head, read_record};
pub use record::{Fate, Happened, PacketKind, Record, Timer};

/// Takes what a core tells, on the core's thread: it must neither block nor take long.
pub trait Sink: Send {
    /// Something happened.
    fn record(&mut self, record: &Record);
}
