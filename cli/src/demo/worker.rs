//! A worker process of the demo: trains on its part of the data.

use std::fs::File;
use std::io::{BufWriter, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use ultima_agent::rank::{EpochMember, JoinTimeout, JoinedRank, ReadyRanks, ready};
use ultima_agent::{Link, Settings};
use ultima_api::client::Client;
use ultima_host::trace::TraceFile;
use ultima_host::{OperationId, Rules};

use super::agreement::{Agreed, Agreement, GRADIENT};
use super::deadline::Bounds;
use super::link::{self, Message, Step};
use super::options::Straggler;
use crate::process;
use ultima_digits::random::{self, Purpose};
use ultima_digits::training::{Plan, Trainer, learning_rate};

/// Steps that a worker may be behind before it skips some: contributions to older ones would come too late even for recycling.
const PASS_AFTER: u32 = 8;
/// How long a worker waits until all others have joined.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// `ultima demo-worker`, a hidden command that only the demo starts.
#[derive(clap::Args)]
pub struct WorkerArguments {
    /// Configuration from the main process, as JSON
    #[arg(long)]
    config: String,
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// The descriptor of the worker's switch port, a connected `SOCK_SEQPACKET` socket.
pub const PORT_FD: RawFd = 3;
/// The descriptor of the stream to the main process.
pub const REPORT_FD: RawFd = 4;

/// The configuration of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// The controller's address.
    pub controller: String,
    /// The job to join.
    pub job: String,
    /// The worker's host in the fabric.
    pub host: String,
    /// The training job.
    pub plan: Plan,
    /// The number of steps.
    pub steps: u32,
    /// Random sleeps before steps.
    pub straggler: Straggler,
    /// t_S and t_B of operations that agree, which both settings and agreements need.
    pub bounds: Bounds,
    /// The collective's settings.
    pub settings: Settings,
    /// Milliseconds that this worker sleeps before every step.
    pub late_ms: Option<f64>,
    /// The longest that any worker sleeps before a step.
    pub longest_sleep: Duration,
    /// The rules on which the workers vote.
    pub rules: Rules,
    /// True if replicas can be averaged: slots that never arrive prevent it.
    pub heals: bool,
    /// The trace file.
    pub trace: Option<PathBuf>,
}

/// Joins the job, trains, reports, and waits until the main process has seen the network drain.
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
        // The main process prints the error. If it is gone, there is nothing to report to.
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
    // Its thread keeps the session with the controller alive while this one trains.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let (mut member, trace) = runtime.block_on(join(config, port))?;
    let rank = member.membership().rank;
    let collective = member.collective();
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
            // Its contribution would be late, so it only applies the result.
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
        let vote = agreement.vote(collective, &outcome, &mut update, parameters)?;
        trainer.apply(&update, learning_rate(step, config.steps));
        let agreed = match vote {
            Some(Ok(agreed)) if agreed.heal => {
                let healed = agreement.heal(collective, step, trainer.parameters_mut())?;
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

    // A check of the controller would send packets while the network drains.
    member.end();
    // The main process writes one byte when the network has drained.
    main_process.read_exact(&mut [0])?;
    let reports = member.finish(Duration::ZERO)?;
    let totals = reports.last().map(|last| last.totals).unwrap_or_default();
    link::send(report, Message::Drained { totals }, &[])?;
    if let Some(trace) = trace {
        trace.finish()?;
    }
    Ok(())
}

/// Joins the job, creates the trace and waits until all workers have joined.
async fn join(config: &WorkerConfig, port: OwnedFd) -> Result<(EpochMember, Option<TraceFile>)> {
    let context = ultima_agent::Context {
        client: Client::connect(&config.controller).await?,
        host: config.host.as_str().into(),
        settings: config.settings,
        shared: Vec::new(),
        metrics: Arc::default(),
        held: ultima_agent::Held::default(),
        notice: |line| eprintln!("{line}"),
    };
    let limit = JoinTimeout::from(JOIN_TIMEOUT);
    let port = Link::Port(port);
    let mut rank = JoinedRank::join_job(&context, &config.job, port, limit.until).await?;
    let trace = match (&config.trace, rank.session_to_trace()) {
        (Some(path), Some(session)) => {
            let file = session.trace_to(path, "ultima demo");
            Some(file.with_context(|| path.display().to_string())?)
        }
        _ => None,
    };
    let ReadyRanks { begin, removed } = ready(&context, vec![rank], limit).await?;
    let member = begin.into_iter().next();
    let member = member.and_then(|(rank, _)| rank.into_member(&context, Duration::ZERO));
    match member {
        Some(member) => Ok((member, trace)),
        None => bail!(removed.join("; ")),
    }
}
