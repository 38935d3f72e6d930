//! Packet traces.
//!
//! A [`PacketTrace`] records everything that parser, tables, actions, traffic manager and deparser did for one packet and its
//! copies. serde writes it as JSON; `Display` prints it for people.
//!
//! A [`PacketLog`] receives the trace of every packet. [`Bench`] traces packets through a program without a switch. A running
//! switch serves traces over gRPC (`proto/ultima/switch/v1/trace.proto`).

mod bench;
mod log;
pub(crate) mod tracer;

pub use bench::{Bench, BenchError};
pub use log::{LogEntry, PacketLog};
pub use ultima_engine::trace::{
    CopyTrace, Fate, MAX_COPIES, MAX_EVENTS, Octets, Origin, PacketTrace, Source, Step, VERSION,
};
