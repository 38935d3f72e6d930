//! A worker: a process of its own that trains on its share of the data.

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
use tokio::time::timeout;
use ultima_agent::{Configure, Link, Session, Settings, Unready};
use ultima_controller::client::Client;
use ultima_host::{OperationId, Rules};

use super::agreement::{Agreed, Agreement, GRADIENT};
use super::deadline::Bounds;
use super::link::{self, Message, Step};
use super::options::Straggler;
use crate::process;
use ultima_digits::random::{self, Purpose};
use ultima_digits::training::{Plan, Trainer, learning_rate};

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
    /// t_S and t_B of operations that agree, which both settings and agreements need.
    pub bounds: Bounds,
    /// The collective's settings.
    pub settings: Settings,
    /// Milliseconds that this worker sleeps before every step.
    pub late_ms: Option<f64>,
    /// The longest that any worker sleeps before a step.
    pub longest_sleep: Duration,
    /// What the workers agree on.
    pub rules: Rules,
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
    // Its thread keeps contact with the controller while this one trains.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut session = runtime.block_on(join(config, port))?;
    let rank = session.membership.rank;
    let trace = (config.trace.as_deref())
        .map(|path| {
            let file = session.trace_to(path, "ultima demo");
            file.with_context(|| path.display().to_string())
        })
        .transpose()?;
    let attending = session.attending();
    let mut collective = session.collective;
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
                Some(healed.map(|spread| Agreed {
                    healed_to: Some(spread),
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

    if let Some(attending) = attending {
        attending.abort();
    }
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
async fn join(config: &WorkerConfig, port: OwnedFd) -> Result<Session> {
    let context = ultima_agent::Context {
        client: Client::connect(&config.controller).await?,
        host: config.host.as_str().into(),
        settings: config.settings,
        metrics: Arc::default(),
        notice: |line| eprintln!("{line}"),
    };
    let whole: Configure = Arc::new(|config| config);
    let mut session = Session::join(&context, &config.job, Link::Port(port), &whole).await?;
    match timeout(JOIN_TIMEOUT, session.ready(&context)).await {
        Ok(Ok(_)) => Ok(session),
        Ok(Err(Unready::LeftOut(why) | Unready::Over(why))) => bail!("{why}"),
        Err(_) => bail!("after {JOIN_TIMEOUT:?} not all workers have joined"),
    }
}
