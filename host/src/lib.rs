//! Ultima's collective: an AllReduce over shards that ends by a deadline with the data that arrived.
//!
//! - [`Collective`] is the API for a training process: it runs a core over kernel UDP or a virtual switch port on a
//!   thread of its own.
//! - [`Core`] is the protocol as a state machine without I/O and without a clock. Its inputs are datagrams and the time,
//!   its outputs datagrams, timers and finished operations. Sockets, virtual switch ports and simulators drive the same
//!   code.
//! - [`Codec`] encodes a gradient bucket: random signs and a Hadamard transform in interleaved blocks, so that a lost
//!   packet takes a little from every entry.
//! - [`Exact`] operations use the same transport and repair every loss, so broadcasts, barriers and small tensors need no
//!   second stack.
//! - [`Hierarchical`] runs an AllReduce in two dimensions, on a [`Grid`] of ranks: within groups, then across them.
//! - [`Outcome`] describes one operation, [`History`] all operations, [`Totals`] every packet.
//!
//! ```
//! use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
//! use std::time::Duration;
//! use ultima_host::{Collective, Config, Gather, OperationId, UdpConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
//! let peers = sockets.each_ref().map(|socket| match socket.local_addr() {
//!     Ok(SocketAddr::V4(address)) => address,
//!     other => panic!("an IPv4 socket: {other:?}"),
//! });
//! let group = SocketAddrV4::new(ultima_wire::group_address(1), ultima_wire::UDP_PORT);
//! let ranks = sockets.into_iter().zip(0u16..).map(|(socket, rank)| {
//!     // Job 1 in epoch 1, rank `rank` of 2, seed 42, t_B of 5 s.
//!     let mut config = Config::new(1, 1, rank, 2, 42, Duration::from_secs(5));
//!     config.gather = Gather::Unicast; // there is no switch that replicates
//!     let udp = UdpConfig { socket, peers: peers.to_vec(), group };
//!     std::thread::spawn(move || {
//!         let mut collective = Collective::over_udp(config, udp)?;
//!         let mut gradient = vec![f32::from(rank); 1000];
//!         let outcome = collective.allreduce(OperationId { step: 0, bucket: 0 }, &mut gradient)?;
//!         println!("rank {rank}: {:?} after {:?}", outcome.closed_by, outcome.duration);
//!         Ok::<_, ultima_host::Error>(gradient[0])
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     let mean = rank.join().expect("no panic")?;
//!     assert!((mean - 0.5).abs() < 1e-6);
//! }
//! # Ok(())
//! # }
//! ```

mod bits;
mod cause;
mod codec;
mod collective;
mod config;
mod core;
mod driver;
mod element;
mod epoch;
mod estimator;
mod exact;
mod hierarchical;
mod history;
mod incast;
mod layout;
mod loss_detection;
mod memory;
mod operation;
mod pacing;
mod preset;
mod rate;
pub mod recycling;
mod rotation;
pub mod safeguards;
mod seed;
mod spans;
mod stats;
mod sum;
mod time;
mod timeout;
pub mod trace;
mod values;

pub use cause::{Cause, Causes, Losses, Phase, SlotTrimmed, TrimmedByHops};
pub use codec::{Codec, Coding};
pub use collective::{Collective, Error, Observer};
pub use config::{Config, ConfigError, EarlyBounds, Gather, GatherStart, Pacing, ReceiveBuffer};
pub use core::{
    Batch, CheckPacket, Core, Destination, Event, Heard, HeardInRound, StartError, Transmit,
};
pub use driver::port::{PortAddress, PortConfig};
pub use driver::thread::{Departures, Prober, Report, Stopped};
pub use driver::udp::UdpConfig;
pub use driver::{LinkCounters, LinkError};
pub use element::Element;
pub use estimator::Estimation;
pub use exact::{Exact, ExactCounters, ExactOutcome, Incomplete};
pub use hierarchical::{Grid, GridBounds, GridError, GridOutcome, Hierarchical, Path};
pub use history::{Durations, History, Span};
pub use incast::IncastPolicy;
pub use layout::Layout;
pub use loss_detection::LossDetection;
pub use memory::Buffer;
pub use operation::{OperationId, Part, Piece};
pub use preset::{Policies, Preset};
pub use rate::RatePolicy;
pub use recycling::{Carry, Correction, Recycling, RecyclingCounters};
pub use rotation::Rotation;
pub use safeguards::{Rules, Safeguards, Verdict};
pub use stats::{
    ClosedBy, FromRank, LastPackets, Outcome, PhaseCounters, Phases, Rejection, Rejections, Totals,
    underweight,
};
pub use time::Time;
pub use timeout::Timeouts;
pub use values::{Taken, ValueStore, Values};
