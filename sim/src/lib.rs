//! A deterministic network in virtual time: Ultima's protocol core on thousands of ranks.
//!
//! - [`Experiment`] says what is simulated: an [`Algorithm`], how many ranks average how much, over
//!   what fabric ([`NetworkConfig`], [`Topology`]), under which [`Tail`] and loss.
//!   [`Experiment::run`] gives a [`Report`].
//! - The bounded transport is [`ultima_host::Core`], the state machine that sockets drive.
//!
//! Everything that comes out is simulated; `docs/simulation.md` says what is modelled and what is
//! not.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `agenda.rs` | what happens next |
//! | `packet.rs`, `link.rs`, `line.rs`, `topology.rs` | copies of packets, queues and wires, who is connected to whom |
//! | `network.rs` | these together: packets go in and come out, counted by cause |
//! | `tail.rs`, `stages.rs`, `starts.rs`, `cross.rs` | delays of messages and of ranks, others' traffic |
//! | `tar.rs` | the protocol core on every host |
//! | `schedule/` | the other algorithms' messages, one file each |
//! | `tcp/` | the transport that carries them |
//! | `aggregation/` | switches that add up what hosts send |
//! | `values.rs` | what ranks contribute, where buckets have values |
//! | `operations.rs`, `report.rs` | one operation after the other, and how long they took |
//!
//! ```
//! use ultima_sim::{Algorithm, Experiment};
//!
//! let experiment = Experiment { bytes: 1 << 20, ..Experiment::new(Algorithm::Tar, 8) };
//! let report = experiment.run(&mut |_| ()).expect("a possible experiment");
//! assert_eq!(report.arrived_share, 1.0);
//! assert!(report.goodput_share_of_bound > 0.5);
//! ```

mod agenda;
mod aggregation;
mod clock;
mod cross;
mod experiment;
mod line;
mod link;
mod network;
mod operations;
mod packet;
mod report;
mod schedule;
mod stages;
mod starts;
mod tail;
mod tar;
mod tcp;
mod topology;
mod values;

pub use clock::Ps;
pub use experiment::{Algorithm, Experiment, ExperimentError};
pub use network::{Accounts, NetworkConfig, Slow};
pub use report::{Completion, Report, StragglersReport};
pub use starts::Stragglers;
pub use tail::Tail;
pub use topology::Topology;
