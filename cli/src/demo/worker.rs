//! A worker: a process of its own that trains on its share of the data.

use std::fs::File;
use std::io::{BufWriter, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use ultima_agent::{Membership, PACING_BURST};
use ultima_controller::client::Client;
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{
    Coding, Collective, Config, EarlyBounds, Estimation, IncastPolicy, OperationId, Pacing,
    RatePolicy, Recycling, Rules, Timeouts,
};

use super::agreement::{Agreed, Agreement, GRADIENT};
use super::deadline::Bounds;
use super::link::{self, Message, Step};
use super::options::Straggler;
use super::random::{self, Purpose};
use super::training::{Plan, Trainer, learning_rate};
use crate::process;

/// Operations that a worker may fall behind before packets of the newest find no room: a straggler sleeps through many
/// where the deadline is short.
const EARLY_OPERATIONS: usize = 64;
/// Steps that a worker may be behind before it skips forward: as many as recycling keeps what it could contribute to.
const PASS_AFTER: u32 = 8;
/// How long a worker waits until all the others have joined.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// `ultima demo-worker`, which only the demo starts.
#[derive(clap::Args)]
pub struct WorkerArguments {
    /// What the main process decided, as JSON
    #[arg(long)]
    config: String,
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// The descriptor under which a worker finds its switch port, a connected `SOCK_SEQPACKET` socket.
pub const PORT_FD: RawFd = 3;
/// The descriptor under which it finds the stream to the main process.
pub const REPORT_FD: RawFd = 4;

/// What the main process tells a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// Where the controller listens.
    pub controller: String,
    /// The job to join.
    pub job: String,
    /// The host of the fabric that this worker plays.
    pub host: String,
    /// What is trained.
    pub plan: Plan,
    /// For how many steps.
    pub steps: u32,
    /// Sleeps before steps.
    pub straggler: Straggler,
    /// t_S and t_B.
    pub bounds: Bounds,
    /// Whether gradients are Hadamard-coded.
    pub hadamard: bool,
    /// Whether losses are made good in later steps.
    pub recycling: bool,
    /// What t_S and t_B become.
    pub timeouts: Timeouts,
    /// What owners make of the contributions that arrive.
    pub estimation: Estimation,
    /// Milliseconds that this worker sleeps before every step.
    pub late_ms: Option<f64>,
    /// The longest that any worker sleeps before a step.
    pub longest_sleep: Duration,
    /// What the workers agree on.
    pub rules: Rules,
    /// Whether replicas can be averaged.
    pub heals: bool,
    /// The wires' rate in bits per second, to pace to.
    pub link_rate: Option<u64>,
    /// How it follows the network.
    pub rate_control: RatePolicy,
    /// How many workers send to one at a time.
    pub incast: IncastPolicy,
    /// Where what happens is written.
    pub trace: Option<PathBuf>,
}

/// Joins the job, trains, reports, and stays until the main process has seen the network empty.
pub fn work(arguments: WorkerArguments) -> Result<ExitCode> {
    if arguments.die_with_parent {
        process::die_with_parent()?;
    }
    let config: WorkerConfig = serde_json::from_str(&arguments.config).context("--config")?;
    // SAFETY: the main process passes these two descriptors, and nothing else in this process owns them.
    let (port, report) = unsafe {
        (
            OwnedFd::from_raw_fd(PORT_FD),
            OwnedFd::from_raw_fd(REPORT_FD),
        )
    };
    let mut main_process = File::from(report);
    let mut report = BufWriter::with_capacity(1 << 20, main_process.try_clone()?);

    let outcome = train(&config, port, &mut main_process, &mut report);
    if let Err(error) = &outcome {
        // It alone has a terminal to say it on; when it is gone, so is everything.
        let failed = Message::Failed {
            reason: format!("{error:#}"),
        };
        let _ = link::send(&mut report, failed, &[]);
    }
    Ok(if outcome.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn train(
    config: &WorkerConfig,
    port: OwnedFd,
    main_process: &mut File,
    report: &mut BufWriter<File>,
) -> Result<()> {
    let membership = join(config)?;
    let rank = membership.rank;
    let host = host_config(config, &membership);
    let trace = (config.trace.as_deref())
        .map(|path| start_trace(path, &host))
        .transpose()?;
    let mut collective = Collective::over_port(host, membership.port(port))?;
    if let Some(trace) = &trace {
        collective.trace(Box::new(trace.sink()));
    }
    link::send(report, Message::Joined, &[])?;

    let mut trainer = Trainer::new(config.plan, rank)?;
    let mut sleeps = random::stream(config.plan.seed, Purpose::Stragglers, rank.into());
    let mut gradient = vec![0.0; trainer.parameters().len()];
    let mut update = gradient.clone();
    let mut agreement = Agreement::new(
        config.rules,
        config.plan.seed,
        config.bounds,
        config.longest_sleep,
        config.heals,
    );
    if config.rules.coding.is_some() {
        collective.code(false);
    }
    let (mut weights, mut suspected) = (Vec::new(), Vec::new());
    let mut passed = 0;
    for step in 0..config.steps {
        if collective.report()?.newest_step >= step.checked_add(PASS_AFTER) {
            // Its own part would be late: what came of the step is all that it takes of it.
            passed += 1;
            gradient.fill(0.0);
        } else {
            if sleeps.random_bool(config.straggler.probability) {
                thread::sleep(Duration::from_secs_f64(config.straggler.sleep_ms * 1e-3));
            }
            if let Some(late_ms) = config.late_ms {
                thread::sleep(Duration::from_secs_f64(late_ms * 1e-3));
            }
            trainer.gradient(&mut gradient);
        }
        update.copy_from_slice(&gradient);
        let id = OperationId {
            step,
            bucket: GRADIENT,
        };
        let outcome = collective.allreduce(id, &mut update)?;
        let parameters = trainer.parameters();
        let vote = agreement.vote(&mut collective, &outcome, &mut update, parameters)?;
        trainer.apply(&update, learning_rate(step, config.steps));
        let agreed = match vote {
            Some(Ok(agreed)) if agreed.heal => {
                let healed = agreement.heal(&mut collective, step, trainer.parameters_mut())?;
                Some(Ok(Agreed {
                    healed_to: Some(healed),
                    ..agreed
                }))
            }
            vote => vote,
        };

        let message = Message::Step(Step {
            step,
            took_ns: u64::try_from(outcome.duration.as_nanos()).unwrap_or(u64::MAX),
            closed_by: outcome.closed_by,
            totals: collective.report()?.totals,
            agreed,
        });
        link::send(report, message, &[&gradient, &update])?;
        (weights, suspected) = (outcome.weights, outcome.suspected);
    }
    let trained = Message::Trained {
        accuracy: trainer.accuracy(),
        weights,
        suspected,
        passed,
    };
    link::send(report, trained, &[trainer.parameters()])?;

    // The main process writes one byte when nothing is on its way to us any more.
    main_process.read_exact(&mut [0])?;
    let totals = collective.finish(Duration::ZERO)?.totals;
    link::send(report, Message::Drained { totals }, &[])?;
    if let Some(trace) = trace {
        trace.finish()?;
    }
    Ok(())
}

/// Takes this worker's rank and waits until all others have theirs.
fn join(config: &WorkerConfig) -> Result<Membership> {
    crate::command::runtime()?.block_on(async {
        let controller = Client::connect(&config.controller).await?;
        let WorkerConfig { job, host, .. } = config;
        Ok(Membership::join(&controller, job, host, JOIN_TIMEOUT).await?)
    })
}

fn start_trace(path: &Path, host: &Config) -> Result<TraceFile> {
    let head = Head::new(host, Clock::Real, "ultima demo");
    TraceFile::create(path, &head, WhenFull::Drop).with_context(|| path.display().to_string())
}

fn host_config(config: &WorkerConfig, membership: &Membership) -> Config {
    Config {
        coding: if config.hadamard {
            Coding::default()
        } else {
            Coding::Identity
        },
        t_s: config.bounds.t_s,
        recycling: config.recycling.then(Recycling::default),
        timeouts: config.timeouts,
        estimation: config.estimation,
        early: EarlyBounds {
            operations: EARLY_OPERATIONS,
            ..EarlyBounds::default()
        },
        pacing: config.link_rate.map(|bits_per_second| Pacing {
            bits_per_second,
            burst: PACING_BURST,
            policy: config.rate_control,
        }),
        incast: config.incast,
        ..membership.config(config.bounds.t_b)
    }
}
