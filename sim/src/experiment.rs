//! An experiment: its parameters and their checks.

use std::time::Duration;

use ultima_host::{
    Coding, Config, ConfigError, EarlyBounds, Gather, Grid, GridBounds, GridError, IncastPolicy,
    Pacing, Path, Policies, ReceiveBuffer, Timeouts,
};
use ultima_link::{JitterError, Loss, LossError};
use ultima_wire::HEADER_LEN;
use ultima_wire::frame::FRAME_OVERHEAD;

use crate::algorithm::Algorithm;
use crate::clock::Ps;
use crate::network::NetworkConfig;
use crate::schedule::Schedule;
use crate::stages::{Stages, TRAIN};
use crate::starts::Stragglers;
use crate::tail::Tail;
use crate::topology::{Fabric, Topology};

/// The standard normal distribution's 99.9th percentile.
const Z999: f64 = 3.090_232_306_167_813;

/// The parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Ranks, one on each host.
    pub ranks: u16,
    /// Groups of [`Algorithm::Tar2d`]. None for the fastest grid by the cost model ([`Path`]).
    pub groups: Option<u16>,
    /// Bytes of the averaged bucket, a multiple of 4.
    pub bytes: u64,
    /// Bytes of the bucket per packet, a multiple of 4.
    pub slot: usize,
    /// p99/p50 of one message over one idle hop, 1 or more: see [`Tail`].
    pub tail: f64,
    /// The host's time before the first bit of a message.
    pub host: Duration,
    /// Number of operations.
    pub operations: u32,
    /// Compute time: from an operation's end at the last rank to the next one's start at a rank without
    /// delay.
    pub compute: Duration,
    /// p99/p50 of the compute time, 1 or more, distributed as in [`Tail`].
    pub compute_tail: f64,
    /// Ranks that sometimes start later.
    pub stragglers: Option<Stragglers>,
    /// Seed of everything random.
    pub seed: u64,
    /// The fabric.
    pub network: NetworkConfig,
    /// t_S and t_B of [`Algorithm::Tar`]. None for bounds that cover the 99.9th percentile of the tail, and the ratio of
    /// the background flows, in each phase.
    pub bounds: Option<(Duration, Duration)>,
    /// Policies of [`Algorithm::Tar`].
    pub policies: Policies,
    /// Flow control of [`Algorithm::Tar`]: the size of each rank's socket buffer in bytes, as Linux counts it. None: no flow
    /// control. Simulated ranks read at once, so only the credit takes time.
    pub receive_buffer: Option<u64>,
    /// TCP's minimum retransmission timeout: 1 s in RFC 6298, 200 ms in Linux.
    pub min_rto: Duration,
    /// True if buckets have values and results are checked, for [`Algorithm::Tar`], [`Algorithm::Tar2d`] and
    /// [`Algorithm::SwitchAggregation`]. Takes memory at every rank; times are the same.
    pub payload: bool,
}

/// The reason that an experiment cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExperimentError {
    /// Ranks out of range.
    #[error("{0} ranks: expected 2 to {MAX_RANKS}")]
    Ranks(u16),
    /// Groups for an algorithm without groups.
    #[error("groups for {}: expected the algorithm tar-2d", .0.name())]
    Groups(Algorithm),
    /// Groups that do not divide the ranks.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A number of ranks without a grid.
    #[error(
        "{0} ranks have no equal groups of 2 or more: expected another number of ranks, or the algorithm tar"
    )]
    Prime(u16),
    /// A bucket that is not a whole number of values.
    #[error("a bucket of {0} bytes: expected a multiple of 4 from 4 to {MAX_BYTES}")]
    Bytes(u64),
    /// A tail below 1, or not finite.
    #[error("a tail of {0}: expected p99/p50 from 1 to {MAX_TAIL}")]
    Tail(f64),
    /// A compute tail below 1, or not finite.
    #[error("a compute tail of {0}: expected p99/p50 from 1 to {MAX_TAIL}")]
    ComputeTail(f64),
    /// A compute tail without a compute time.
    #[error(
        "a compute tail of {0} with no time to compute: expected a compute time, or a tail of 1"
    )]
    NoCompute(f64),
    /// A share outside its range.
    #[error("stragglers with a share of {0}: expected more than 0 and at most 1")]
    Stragglers(f64),
    /// No operations.
    #[error("0 operations: expected at least 1")]
    Operations,
    /// Cross traffic that leaves no capacity.
    #[error("cross traffic of {0}: expected a share of the link from 0 to 0.95")]
    Cross(f64),
    /// A ratio that background flows cannot have.
    #[error("background flows with p99/p50 of {0}: expected more than 1 and at most {MAX_TAIL}")]
    BackgroundRatio(f64),
    /// Flows without bytes.
    #[error("background flows of 0 bytes: expected at least 1")]
    BackgroundFlow,
    /// A ratio that no load reaches.
    #[error(
        "background flows: no load gives the ring p99/p50 of {ratio}, the highest is {most:.2}; expected a lower ratio or \
         longer flows"
    )]
    Background {
        /// The requested p99/p50.
        ratio: f64,
        /// The highest p99/p50 of all loads.
        most: f64,
    },
    /// A rate of zero.
    #[error("links of 0 bit/s: expected at least 1")]
    Rate,
    /// Queues too small for a packet.
    #[error("a queue of {queue} bytes: expected at least {frame}, one packet of this experiment")]
    Queue {
        /// The given bytes.
        queue: u64,
        /// Bytes of a packet's frame.
        frame: usize,
    },
    /// An impossible fabric.
    #[error(
        "a leaf-spine fabric of {hosts_per_leaf} hosts per leaf and {spines} spines: expected at least 1 of both"
    )]
    LeafSpine {
        /// Hosts per leaf.
        hosts_per_leaf: u32,
        /// Spines.
        spines: u32,
    },
    /// A loss model that reads frames.
    #[error(
        "loss by field: simulated frames have no bytes; expected a probability, bursts or Gilbert-Elliott"
    )]
    LossByField,
    /// An invalid jitter.
    #[error(transparent)]
    Jitter(#[from] JitterError),
    /// An invalid loss model.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// Values for an algorithm that only simulates bytes.
    #[error("values with {}: expected tar, tar-2d or switch-aggregation, whose messages carry values", .0.name())]
    Payload(Algorithm),
    /// A configuration that the protocol core rejects.
    #[error(transparent)]
    Core(#[from] ConfigError),
}

const MAX_RANKS: u16 = 8192;
const MAX_BYTES: u64 = 1 << 36;
const MAX_TAIL: f64 = 1000.0;

impl Experiment {
    /// Creates an experiment with `ranks` on a star of 100 Gb/s without loss, tail or cross traffic, which
    /// average 25 MB once in slots of 8 KiB.
    pub fn new(algorithm: Algorithm, ranks: u16) -> Self {
        Self {
            algorithm,
            ranks,
            groups: None,
            bytes: 25_000_000,
            slot: 8192,
            tail: 1.0,
            host: Duration::from_micros(20),
            operations: 1,
            compute: Duration::ZERO,
            compute_tail: 1.0,
            stragglers: None,
            seed: 1,
            network: NetworkConfig {
                topology: Topology::Star,
                rate: 100_000_000_000,
                delay: Ps(1_000_000),
                jitter: None,
                queue: 32 << 20,
                trim: 28 << 20,
                mark: 1 << 20,
                loss: None,
                cross: 0.0,
                burst: Ps(50_000_000),
                background: None,
                slow: None,
            },
            bounds: None,
            policies: Policies {
                timeouts: Timeouts::Fixed,
                incast: IncastPolicy::All,
                ..Policies::default()
            },
            receive_buffer: None,
            min_rto: Duration::from_millis(200),
            payload: false,
        }
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`ExperimentError`] names the invalid value and the valid ones.
    pub fn validate(&self) -> Result<(), ExperimentError> {
        let network = &self.network;
        let frame = FRAME_OVERHEAD + HEADER_LEN + self.slot;
        match network.topology {
            Topology::LeafSpine {
                hosts_per_leaf,
                spines,
            } if hosts_per_leaf == 0 || spines == 0 => {
                return Err(ExperimentError::LeafSpine {
                    hosts_per_leaf,
                    spines,
                });
            }
            _ => {}
        }
        if !(2..=MAX_RANKS).contains(&self.ranks) {
            Err(ExperimentError::Ranks(self.ranks))
        } else if !(4..=MAX_BYTES).contains(&self.bytes) || !self.bytes.is_multiple_of(4) {
            Err(ExperimentError::Bytes(self.bytes))
        } else if !(1.0..=MAX_TAIL).contains(&self.tail) {
            Err(ExperimentError::Tail(self.tail))
        } else if !(1.0..=MAX_TAIL).contains(&self.compute_tail) {
            Err(ExperimentError::ComputeTail(self.compute_tail))
        } else if self.compute_tail > 1.0 && self.compute.is_zero() {
            Err(ExperimentError::NoCompute(self.compute_tail))
        } else if let Some(stragglers) = self.stragglers
            && !(stragglers.share > 0.0 && stragglers.share <= 1.0)
        {
            Err(ExperimentError::Stragglers(stragglers.share))
        } else if self.operations == 0 {
            Err(ExperimentError::Operations)
        } else if !(0.0..=0.95).contains(&network.cross) {
            Err(ExperimentError::Cross(network.cross))
        } else if let Some(background) = network.background
            && !(background.ratio > 1.0 && background.ratio <= MAX_TAIL)
        {
            Err(ExperimentError::BackgroundRatio(background.ratio))
        } else if network.background.is_some_and(|b| b.flow == 0) {
            Err(ExperimentError::BackgroundFlow)
        } else if network.slow.is_some_and(|slow| slow.factor == 0) || network.rate_of(0) == 0 {
            Err(ExperimentError::Rate)
        } else if self.payload && self.schedule().is_some() {
            Err(ExperimentError::Payload(self.algorithm))
        } else if network.queue < frame as u64 {
            let queue = network.queue;
            Err(ExperimentError::Queue { queue, frame })
        } else {
            if let Some(jitter) = &network.jitter {
                jitter.validate()?;
            }
            match &network.loss {
                Some(Loss::Field { .. }) => return Err(ExperimentError::LossByField),
                Some(loss) => loss.validate()?,
                None => {}
            }
            if let Some(grid) = self.grid()? {
                return Ok(self.cores(grid, 0).iter().try_for_each(Config::validate)?);
            }
            Ok(self.core(0).validate()?)
        }
    }

    pub(crate) fn schedule(&self) -> Option<Box<dyn Schedule>> {
        self.algorithm.schedule(self.ranks.into(), self.bytes)
    }

    /// The least time in which every receiver's link can carry its 2·S·(N−1)/N bytes of values, without
    /// headers.
    pub fn bound(&self) -> Ps {
        let ranks = u64::from(self.ranks);
        Ps::to_send(2 * self.bytes * (ranks - 1) / ranks, self.network.rate)
    }

    pub(crate) fn stages(&self) -> Stages {
        let fabric = Fabric::new(self.network.topology, self.ranks.into());
        Stages {
            tail: Tail::new(self.tail, self.seed),
            host: self.host.into(),
            rate: self.network.rate,
            delay: Ps(self.network.delay.0 * u64::from(fabric.diameter())),
        }
    }

    /// t_S and t_B of [`Algorithm::Tar`].
    pub fn bounds(&self) -> (Duration, Duration) {
        self.bounds.unwrap_or_else(|| {
            let t_s = self.room() * self.stage(self.ranks, self.bytes);
            (t_s, 2 * t_s)
        })
    }

    /// Factor of the configured bounds over the needed ones: learned values stay below them.
    fn room(&self) -> u32 {
        match self.policies.timeouts {
            Timeouts::Fixed => 1,
            _ => 4,
        }
    }

    /// Duration of a stage of a bucket of `bytes` among `ranks`, plus a tenth, with one message at the tail's
    /// 99.9th percentile and a packet that the jitter of two links delays as one in 10,000; with background flows, as much
    /// longer as the ring's 99th percentile is.
    fn stage(&self, ranks: u16, bytes: u64) -> Duration {
        let stages = self.stages();
        let ranks = u64::from(ranks);
        let message = bytes.div_ceil(ranks);
        let packets = message.div_ceil(self.slot as u64);
        let headers = packets * (FRAME_OVERHEAD + HEADER_LEN) as u64;
        let phase = stages.usual((message + headers) * (ranks - 1));
        let phase = match self.network.background {
            Some(background) => Ps((phase.0 as f64 * background.ratio) as u64),
            None => phase,
        };
        let late = Tail::wait(stages.usual(message), stages.tail.quantile(Z999));
        let added = self.network.jitter.map_or(Duration::ZERO, |it| it.reach());
        Duration::from_nanos((phase + Ps(phase.0 / 10) + late).as_ns().max(1)) + 2 * added
    }

    /// The grid of [`Algorithm::Tar2d`]: the given groups, or the fastest. None for other algorithms.
    ///
    /// # Errors
    /// [`ExperimentError::Groups`], [`ExperimentError::Grid`], [`ExperimentError::Prime`].
    pub fn grid(&self) -> Result<Option<Grid>, ExperimentError> {
        match (self.algorithm, self.groups) {
            (Algorithm::Tar2d, Some(groups)) => Ok(Some(Grid::of(self.ranks, groups)?)),
            (Algorithm::Tar2d, None) => Grid::cheapest(self.ranks, self.bytes, &self.path())
                .map(Some)
                .ok_or(ExperimentError::Prime(self.ranks)),
            (_, Some(_)) => Err(ExperimentError::Groups(self.algorithm)),
            (_, None) => Ok(None),
        }
    }

    /// The fastest grid by the cost model. None if it is faster without groups.
    pub fn choose(&self) -> Option<Grid> {
        Grid::choose(self.ranks, self.bytes, &self.path())
    }

    /// The network for the cost model.
    pub fn path(&self) -> Path {
        let incast = match self.policies.incast {
            IncastPolicy::Fixed(senders) => senders.into(),
            IncastPolicy::All | IncastPolicy::Dynamic => 0,
        };
        Path {
            rate: self.network.rate,
            delay: Duration::from_nanos(self.stages().delay.as_ns()),
            host: self.host,
            slot_bytes: self.slot,
            incast,
            // Turns follow each other like packets.
            turn: Duration::ZERO,
            tail: self.tail,
        }
    }

    /// A rank's configurations for its row and for its column.
    pub(crate) fn cores(&self, grid: Grid, rank: u16) -> [Config; 2] {
        let (members, groups) = (grid.members(), grid.groups());
        let (t_s, t_b) = self.bounds.unwrap_or_else(|| {
            let of_row = self.stage(members, self.bytes);
            let of_column = self.stage(groups, self.bytes.div_ceil(u64::from(members)));
            GridBounds::least(self.room() * of_row, self.room() * of_column)
        });
        let whole = Config {
            t_s,
            t_b,
            ..self.core(rank)
        };
        [grid.row(&whole, 1), grid.column(&whole, 2)]
    }

    pub(crate) fn core(&self, rank: u16) -> Config {
        let (t_s, t_b) = self.bounds();
        let pacing = Pacing {
            bits_per_second: self.network.rate_of(rank.into()),
            burst: TRAIN as u32,
            policy: self.policies.rate,
        };
        let whole = Config {
            slot_bytes: self.slot,
            coding: Coding::Identity,
            gather: Gather::Multicast,
            t_s,
            pacing: Some(pacing),
            // There must be room for all other ranks' packets at a rank that starts late.
            early: EarlyBounds {
                bytes: EarlyBounds::default().bytes.max(4 * self.bytes as usize),
                ..EarlyBounds::default()
            },
            ..Config::new(1, 1, rank, self.ranks, self.seed, t_b)
        };
        let whole = self.policies.apply(whole);
        let buffer = |bytes| ReceiveBuffer::of_socket(bytes as usize, &whole);
        Config {
            receive_buffer: self.receive_buffer.map(buffer),
            ..whole
        }
    }
}
