//! Embedded v1model switch: runs what p4c compiled for BMv2, and serves P4Runtime.
//!
//! - [`Switch`] is a running switch, started from a [`SwitchConfig`]: the binary `ultima` and the
//!   tests start them. One thread forwards; tokio serves gRPC.
//! - [`link`] joins two ports by the same wires without a program, `ultima wire`.
//! - [`engine`] (`ultima-engine`) interprets the program: no I/O, no clock, no threads. [`p4info`] translates a program's
//!   P4Info for it.
//! - [`tm`] is the traffic manager between the pipelines and the medium: queues, and wires with
//!   rate, delay, jitter and loss, as `ultima-link` describes them.
//! - [`target`] is the interface of emulated targets.
//! - [`trace`] shows what all of this does with one packet.
//! - [`proto`] has messages and stubs of what is served beside P4Runtime: port statistics, and the
//!   traffic manager's settings, traces.
//!
//! ```text
//! port → ingress → queue → egress → wire → port        P4Runtime, port statistics
//! └────────────── forwarding thread ──────────┘ ← closures ← gRPC server (tokio)
//! ```

mod clock;
pub mod config;
mod datapath;
mod digests;
mod error;
mod forward;
mod grpc;
mod idle_poll;
pub mod link;
mod notify;
mod opener;
pub mod p4info;
mod pcap;
mod pipeline;
mod port;
pub mod proto;
mod running;
pub mod stats;
mod switch;
pub mod target;
pub mod tm;
pub mod trace;
mod translate;

pub use config::{Attach, CaptureNames, PortConfig, ProgramFiles, SwitchConfig};
pub use datapath::unknown_port;
pub use error::SwitchError;
pub use link::LinkConfig;
pub use pipeline::ConfigError;
pub use running::Running;
pub use switch::Switch;
pub use tm::{EcnThreshold, Jitter, Loss, WireConfig};
pub use ultima_engine as engine;
pub use ultima_link::units;
