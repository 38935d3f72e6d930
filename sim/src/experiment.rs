//! An experiment: its parameters, their checks, and its run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::trace::{Clock, Head, Sink};
use ultima_host::{
    Coding, Config, ConfigError, EarlyBounds, Gather, Grid, GridBounds, GridError, IncastPolicy,
    Pacing, Path, Policies, ReceiveBuffer, Timeouts, Values,
};
use ultima_link::{JitterError, Loss, LossError};
use ultima_wire::HEADER_LEN;
use ultima_wire::frame::FRAME_OVERHEAD;

use crate::aggregation::{Aggregation, Stream};
use crate::clock::Ps;
use crate::network::{Accounts, Network, NetworkConfig};
use crate::operations::Operations;
use crate::report::{Completion, Report, StragglersReport};
use crate::schedule::{DoubleTree, Exchange, ParameterServer, Ring, Schedule, Transpose};
use crate::stages::Stages;
use crate::starts::{Starts, Stragglers};
use crate::tail::Tail;
use crate::tar::{Results, Tar, TarOnGrid};
use crate::tcp::{Tcp, TcpConfig};
use crate::topology::{Fabric, Topology};
use crate::values::{Counted, Payload};

/// Bytes that a host sends at once: one system call with segmentation offload.
pub(crate) const TRAIN: u64 = 64 << 10;

/// The standard normal distribution's 99.9th percentile.
const Z999: f64 = 3.090_232_306_167_813;

/// An AllReduce algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Transpose AllReduce over the bounded transport of `ultima-host`.
    Tar,
    /// The same in two dimensions: within groups, then across them.
    #[serde(rename = "tar-2d")]
    Tar2d,
    /// Transpose AllReduce over TCP.
    TarTcp,
    /// Ring, over TCP.
    Ring,
    /// Two binary trees, pipelined, over TCP.
    Tree,
    /// Recursive halving and doubling, over TCP.
    HalvingDoubling,
    /// Recursive exchange with base 4, over TCP.
    Bcube,
    /// One parameter server on the host of rank 0, over TCP.
    ParameterServer,
    /// Switches add the hosts' values, as in SwitchML: an upper bound.
    SwitchAggregation,
}

impl Algorithm {
    /// All variants.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Tar,
        Algorithm::Tar2d,
        Algorithm::TarTcp,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::HalvingDoubling,
        Algorithm::Bcube,
        Algorithm::ParameterServer,
        Algorithm::SwitchAggregation,
    ];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Tar => "tar",
            Algorithm::Tar2d => "tar-2d",
            Algorithm::TarTcp => "tar-tcp",
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::Bcube => "bcube",
            Algorithm::ParameterServer => "parameter-server",
            Algorithm::SwitchAggregation => "switch-aggregation",
        }
    }

    /// The messages of algorithms over TCP.
    fn schedule(self, ranks: u32, bytes: u64) -> Option<Box<dyn Schedule>> {
        Some(match self {
            Algorithm::Tar | Algorithm::Tar2d | Algorithm::SwitchAggregation => return None,
            Algorithm::TarTcp => Box::new(Transpose::new(ranks, bytes)),
            Algorithm::Ring => Box::new(Ring::new(ranks, bytes)),
            Algorithm::Tree => Box::new(DoubleTree::new(ranks, bytes)),
            Algorithm::HalvingDoubling => Box::new(Exchange::new(2, ranks, bytes)),
            Algorithm::Bcube => Box::new(Exchange::new(4, ranks, bytes)),
            Algorithm::ParameterServer => Box::new(ParameterServer::new(ranks, bytes)),
        })
    }
}

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

    /// Runs the experiment. `progress` gets the number of finished operations.
    ///
    /// # Errors
    /// [`ExperimentError`] as [`Experiment::validate`].
    pub fn run(&self, progress: &mut dyn FnMut(u32)) -> Result<Report, ExperimentError> {
        self.run_traced(None, progress)
    }

    /// As [`Experiment::run`], and [`Algorithm::Tar`] records the events of a rank to a sink.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn run_traced(
        &self,
        trace: Option<(u16, Box<dyn Sink>)>,
        progress: &mut dyn FnMut(u32),
    ) -> Result<Report, ExperimentError> {
        self.validate()?;
        if let Some(calibration) = self.calibrate()?
            && self
                .network
                .background
                .is_some_and(|b| b.calibration.is_none())
        {
            return self.calibrated(calibration).run_traced(trace, progress);
        }
        let starts = Starts::new(
            self.compute.into(),
            self.compute_tail,
            self.stragglers,
            self.seed,
        );
        let operations = Operations::new(self.operations, starts, progress);
        Ok(match self.schedule() {
            Some(schedule) => self.run_tcp(schedule, operations),
            None if self.algorithm == Algorithm::Tar => match self.payload {
                true => self.run_tar::<Values>(operations, trace),
                false => self.run_tar::<Counted>(operations, trace),
            },
            None if let Some(grid) = self.grid()? => match self.payload {
                true => self.run_tar_2d::<Values>(grid, operations),
                false => self.run_tar_2d::<Counted>(grid, operations),
            },
            None => self.run_aggregation(operations),
        })
    }

    fn schedule(&self) -> Option<Box<dyn Schedule>> {
        self.algorithm.schedule(self.ranks.into(), self.bytes)
    }

    fn run_tcp(&self, schedule: Box<dyn Schedule>, operations: Operations<'_>) -> Report {
        let ranks = self.ranks.into();
        let mut net = Network::new(&self.network, ranks, self.seed);
        let config = TcpConfig {
            segment: self.slot as u64,
            min_rto: self.min_rto.into(),
        };
        let mut tcp = Tcp::new(schedule, ranks, config, self.stages(), operations);
        net.alarm(Ps::ZERO);
        net.run(&mut tcp);
        Report {
            min_rto_ms: Some(self.min_rto.as_secs_f64() * 1e3),
            ..self.report(&net, tcp.into_operations())
        }
        .finished(self)
    }

    /// The first line of a trace of [`Algorithm::Tar`].
    pub fn trace_head(&self) -> Head {
        let title = format!(
            "ultima sim, {} bytes among {} ranks",
            self.bytes, self.ranks
        );
        Head::new(&self.core(0), Clock::Simulated, &title)
    }

    fn run_tar<V: Payload>(
        &self,
        operations: Operations<'_>,
        trace: Option<(u16, Box<dyn Sink>)>,
    ) -> Report {
        let mut net = Network::new(&self.network, self.ranks.into(), self.seed);
        let len = (self.bytes / 4) as usize;
        let config = |rank| self.core(rank);
        let mut tar = Tar::<V>::new(&config, len, self.stages(), operations);
        if let Some((rank, sink)) = trace {
            tar.trace(rank, sink);
        }
        net.alarm(Ps::ZERO);
        net.run(&mut tar);
        let results = tar.results;
        self.report_tar(&net, results, tar.into_operations())
    }

    fn run_tar_2d<V: Payload>(&self, grid: Grid, operations: Operations<'_>) -> Report {
        let mut net = Network::new(&self.network, self.ranks.into(), self.seed);
        let len = (self.bytes / 4) as usize;
        let config = |rank| self.cores(grid, rank);
        let mut tar = TarOnGrid::<V>::new(grid, &config, len, self.stages(), operations);
        net.alarm(Ps::ZERO);
        net.run(&mut tar);
        let results = tar.results;
        Report {
            groups: Some(grid.groups()),
            ..self.report_tar(&net, results, tar.into_operations())
        }
    }

    fn report_tar<B: Clone>(
        &self,
        net: &Network<B>,
        results: Results,
        operations: Operations<'_>,
    ) -> Report {
        Report {
            arrived_share: results.arrived as f64 / results.owed as f64,
            arrived_share_of_not_lost: match results.owed - net.accounts().owed_lost {
                0 => 1.0,
                not_lost => results.arrived as f64 / not_lost as f64,
            },
            t_s_ms: Some(results.t_s.as_secs_f64() * 1e3),
            t_b_ms: Some(results.t_b.as_secs_f64() * 1e3),
            worst_error: self.payload.then_some(results.worst_error),
            ..self.report(net, operations)
        }
        .finished(self)
    }

    fn run_aggregation(&self, operations: Operations<'_>) -> Report {
        let mut net = Network::new(&self.network, self.ranks.into(), self.seed);
        let (fabric, stages) = (net.fabric(), self.stages());
        let hops = u64::from(fabric.diameter() / 2);
        let stream = Stream::new(self.bytes, self.slot as u64, &stages, hops);
        let mut ranks = Aggregation::new(&fabric, stream, self.payload, stages, operations);
        net.alarm(Ps::ZERO);
        net.run(&mut ranks);
        Report {
            pool_slots: Some(stream.pool),
            min_rto_ms: Some(stream.timeout.as_ms()),
            worst_error: self.payload.then_some(ranks.worst_error),
            ..self.report(&net, ranks.into_operations())
        }
        .finished(self)
    }

    fn report<B: Clone>(&self, net: &Network<B>, operations: Operations<'_>) -> Report {
        let accounts: Accounts = net.accounts();
        let times = operations.into_times();
        let stragglers = self.stragglers;
        Report {
            simulated: true,
            algorithm: self.algorithm,
            ranks: self.ranks,
            groups: None,
            bytes: self.bytes,
            slot: self.slot,
            tail: self.tail,
            jitter: self.network.jitter.map(|jitter| jitter.to_string()),
            loss: self.network.loss.as_ref().map(Loss::to_string),
            operations: self.operations,
            seed: self.seed,
            compute_ms: self.compute.as_secs_f64() * 1e3,
            compute_tail: self.compute_tail,
            stragglers: stragglers.map(StragglersReport::from),
            background: self.network.background,
            operations_ms: times.all.iter().map(|time| time.as_ms()).collect(),
            completion_ms: Completion::of(times.all),
            on_time_ms: stragglers.map(|_| Completion::of(times.on_time)),
            arrived_share: 1.0,
            arrived_share_of_not_lost: 1.0,
            goodput_share_of_bound: 0.0,
            bound_ms: self.bound().as_ms(),
            t_s_ms: None,
            t_b_ms: None,
            min_rto_ms: None,
            pool_slots: None,
            worst_error: None,
            p99_queue_us: net.p99_wait().as_ms() * 1e3,
            longest_queue_us: net.longest_wait().as_ms() * 1e3,
            network: accounts,
            events: net.events(),
            most_packets: net.most_packets(),
        }
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
    fn cores(&self, grid: Grid, rank: u16) -> [Config; 2] {
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

    fn core(&self, rank: u16) -> Config {
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
