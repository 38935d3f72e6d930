//! The run of an experiment, and the calibration of background flows by runs of a ring.
//!
//! The load is calibrated as OptiReduce does it (Warraich et al., NSDI 2025, section 5): with it a ring AllReduce has
//! the requested p99/p50.

use ultima_host::trace::{Clock, Head, Sink};
use ultima_host::{Grid, Values};
use ultima_link::Loss;

use crate::aggregation::{Aggregation, Stream};
use crate::algorithm::Algorithm;
use crate::background::{Background, Calibration};
use crate::clock::Ps;
use crate::experiment::{Experiment, ExperimentError};
use crate::network::{Accounts, Network};
use crate::operations::Operations;
use crate::report::{Completion, Report, StragglersReport};
use crate::schedule::Schedule;
use crate::starts::Starts;
use crate::tar::{Results, Tar, TarOnGrid};
use crate::tcp::{Tcp, TcpConfig};
use crate::values::{Counted, Payload};

/// Ranks of the calibrating ring, as many as in OptiReduce's evaluation.
const RANKS: u16 = 8;
/// Operations of each calibrating run.
const OPERATIONS: u32 = 200;
/// The seed of these runs, unlike the usual ones of experiments, so that these have other flows.
const SEED: u64 = 0xca11_b7a7;
/// The first load that is tried. It doubles until the ratio is reached.
const FIRST_LOAD: f64 = 0.001;
/// The highest load that is tried.
const MAX_LOAD: f64 = 0.9;
/// Number of bisections of the step in which the ratio is reached.
const BISECTIONS: u32 = 5;

impl Experiment {
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
        .finished(self.bound())
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
        .finished(self.bound())
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
        .finished(self.bound())
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

    /// The ring whose p99/p50 calibrates the background flows, if there are any: the same hosts, links and bucket on at
    /// most eight ranks, without other delays and losses.
    pub fn calibration_ring(&self) -> Option<Experiment> {
        let background = self.network.background?;
        let ring = Experiment::new(Algorithm::Ring, self.ranks.min(RANKS));
        let mut network = self.network.clone();
        network.background = Some(Background {
            calibration: None,
            ..background
        });
        (network.loss, network.jitter, network.cross, network.slow) = (None, None, 0.0, None);
        Some(Experiment {
            bytes: self.bytes,
            slot: self.slot,
            host: self.host,
            compute: self.compute,
            min_rto: self.min_rto,
            operations: OPERATIONS,
            seed: SEED,
            network,
            ..ring
        })
    }

    /// The experiment with a calibration of its background flows, if it has any.
    pub fn calibrated(&self, calibration: Calibration) -> Self {
        let mut calibrated = self.clone();
        if let Some(background) = &mut calibrated.network.background {
            background.calibration = Some(calibration);
        }
        calibrated
    }

    /// Finds the least load with which the ring of [`Experiment::calibration_ring`] has the requested p99/p50. Returns
    /// the given one if there is one, and None without background flows.
    ///
    /// # Errors
    /// [`ExperimentError::Background`] if no load reaches it, and as [`Experiment::validate`].
    pub fn calibrate(&self) -> Result<Option<Calibration>, ExperimentError> {
        let Some((background, ring)) = self.network.background.zip(self.calibration_ring()) else {
            return Ok(None);
        };
        if background.calibration.is_some() {
            return Ok(background.calibration);
        }
        self.validate()?;
        let with_load = |load: f64| -> Result<Calibration, ExperimentError> {
            let mut ring = ring.clone();
            let mut calibration = Calibration {
                load,
                ring_ratio: 1.0,
                ring_p50_ms: 0.0,
                ring_p99_ms: 0.0,
                ring_operations: OPERATIONS,
            };
            ring.network.background = Some(Background {
                calibration: Some(calibration),
                ..background
            });
            let completion = ring.run(&mut |_| ())?.completion_ms;
            calibration.ring_p50_ms = completion.p50;
            calibration.ring_p99_ms = completion.p99;
            calibration.ring_ratio = completion.p99 / completion.p50;
            Ok(calibration)
        };
        let mut best: Option<Calibration> = None;
        let mut most = 1.0f64;
        let (mut below, mut above) = (0.0, FIRST_LOAD);
        while best.is_none() {
            let load = above;
            if load > MAX_LOAD {
                let ratio = background.ratio;
                return Err(ExperimentError::Background { ratio, most });
            }
            let calibration = with_load(load)?;
            most = most.max(calibration.ring_ratio);
            match calibration.ring_ratio >= background.ratio {
                true => best = Some(calibration),
                false => (below, above) = (load, 2.0 * load),
            }
        }
        let off = |one: &Calibration| (one.ring_ratio / background.ratio).ln().abs();
        for _ in 0..BISECTIONS {
            let load = (below + above) / 2.0;
            let calibration = with_load(load)?;
            match calibration.ring_ratio >= background.ratio {
                true => above = load,
                false => below = load,
            }
            best = best
                .into_iter()
                .chain([calibration])
                .min_by(|one, other| off(one).total_cmp(&off(other)));
        }
        Ok(best)
    }
}
