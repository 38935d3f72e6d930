//! A deterministic network in virtual time, with Ultima's protocol core on thousands of ranks. It measures no real network.
//!
//! - [`Experiment`] is the input: an [`Algorithm`], the number of ranks and bytes, the fabric ([`NetworkConfig`],
//!   [`Topology`]), the [`Tail`] and the loss. [`Experiment::run`] returns a [`Report`].
//! - The bounded transport is [`ultima_host::Core`], the state machine that sockets drive.
//!
//! `docs/simulation.md` describes the model and its limits.
//!
//! | file | content |
//! | --- | --- |
//! | `agenda.rs` | the event queue |
//! | `packet.rs`, `link.rs`, `line.rs`, `topology.rs` | copies of packets, queues and wires, the topology |
//! | `network.rs` | the network of these, with counters by cause |
//! | `tail.rs`, `stages.rs`, `starts.rs` | delays of messages and of ranks |
//! | `background.rs`, `cross.rs` | background flows, bursts of cross traffic |
//! | `experiment.rs`, `run.rs` | parameters and their checks; the run, and the calibration of background flows |
//! | `tar.rs` | the protocol core on every host |
//! | `schedule/` | the other algorithms' messages, one file each |
//! | `tcp/` | the transport that carries them |
//! | `aggregation/` | switches that add hosts' values |
//! | `values.rs` | contributions of ranks, in runs with values |
//! | `operations.rs`, `report.rs` | the sequence of operations, and the report |
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
mod algorithm;
mod background;
mod clock;
mod cross;
mod experiment;
mod line;
mod link;
mod network;
mod operations;
mod packet;
mod report;
mod run;
mod schedule;
mod stages;
mod starts;
mod tail;
mod tar;
mod tcp;
mod topology;
mod values;

pub use algorithm::Algorithm;
pub use background::{Background, Calibration};
pub use clock::Ps;
pub use experiment::{Experiment, ExperimentError};
pub use network::{Accounts, NetworkConfig, Slow};
pub use report::{Completion, Report, StragglersReport};
pub use starts::Stragglers;
pub use tail::Tail;
pub use topology::Topology;
