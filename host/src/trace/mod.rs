//! Traces of operations, packet by packet: `docs/trace.md`.
//!
//! | file | content |
//! | --- | --- |
//! | `record.rs` | records |
//! | `lines.rs` | reading and writing of records as lines of JSON |
//! | `file.rs` | a trace file, written by a thread |
//!
//! A [`crate::Core`] passes each [`Record`] to its [`Sink`]. Without one, no record is built: each place
//! costs one test of a pointer.

mod file;
mod lines;
mod record;

pub use file::{FileSink, TraceFile, WhenFull, Written};
pub use lines::{Clock, Head, LineError, SCHEMA, VERSION, read_head, read_record};
pub use record::{Fate, Happened, PacketKind, Record, Timer};

/// Receives a core's records on the core's thread. It must neither block nor take long.
pub trait Sink: Send {
    /// Takes a record.
    fn record(&mut self, record: &Record);
}
