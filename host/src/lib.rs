//! Ultima's collective: an AllReduce over shards that ends by a deadline with what has arrived.
//!
//! - [`Codec`] turns a gradient bucket into what is sent: random signs and a Hadamard transform in interleaved
//!   blocks, so that a lost packet takes a little from every entry.
//! - [`Core`] is the protocol as a state machine without I/O and without a clock: datagrams and the time go in,
//!   datagrams, timers and finished operations come out. Sockets, virtual switch ports and simulators drive
//!   the same code.
//! - [`Collective`] is what a training process calls: it runs a core over kernel UDP or a virtual switch
//!   port on a thread of its own.

mod bits;
mod codec;
mod collective;
mod config;
mod core;
mod driver;
mod estimator;
mod hadamard;
mod layout;
mod operation;
mod pacing;
mod rotation;
mod seed;
mod stats;
mod time;

pub use codec::{Codec, Coding};
pub use collective::{Collective, Error};
pub use config::{Config, ConfigError, EarlyBounds, Gather, Pacing};
pub use core::{Core, Destination, Event, StartError, Transmit};
pub use driver::port::{PortAddress, PortConfig};
pub use driver::thread::Report;
pub use driver::udp::UdpConfig;
pub use driver::{LinkCounters, LinkError};
pub use estimator::{ArrivedMean, Contributions, Estimator};
pub use layout::Layout;
pub use operation::OperationId;
pub use rotation::Rotation;
pub use stats::{ClosedBy, Outcome, PhaseCounters, Phases, Rejection, Rejections, Totals};
pub use time::Time;
