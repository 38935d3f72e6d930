//! The agent from start to end.

use std::fs::File;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::future::try_join_all;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use ultima_agent::rank::{
    JobOrGrid, JoinTimeout, JoinedRank, ReadyError, ReadyRanks, Silence, ready,
};
use ultima_agent::{Context, Exporter, Held, Membership, Metrics, Session, give_up};
use ultima_api::client::Client;
use ultima_api::document;
use ultima_api::v1 as api;
use ultima_host::Config;
use ultima_host::trace::{TraceFile, Written};

use super::data::Data;
use super::operations::{self, Work};
use super::options::Options;
use super::report::Report;
use super::verdict;
use crate::exit::{Exit, InputErrors as _};
use crate::text::Text;
use ultima_console::output;

/// Runs the agent. Ctrl-C ends it with exit code 130; its ranks leave the job.
pub fn run(options: &Options) -> Result<ExitCode> {
    // Settings that no job accepts are refused before the controller is asked.
    let settings = options.settings();
    settings
        .apply(Config::new(1, 1, 0, 2, 0, options.deadline))
        .validate()
        .input()?;
    if let Some(path) = &options.trace {
        let created = File::create(path).with_context(|| path.display().to_string());
        created.input()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let held = Held::default();
    let code = runtime.block_on(async {
        tokio::select! {
            code = work(options, held.clone()) => code,
            () = crate::runtime::interrupted() => {
                held.give_up().await;
                eprintln!("error: interrupted");
                Ok(crate::exit::Exit::Interrupted.into())
            }
        }
    });
    // Does not wait for ranks that are in an operation after an interrupt.
    runtime.shutdown_background();
    code
}

async fn work(options: &Options, held: Held) -> Result<ExitCode> {
    let client = options.at.connect().await?;
    let name = &options.job;
    let target = JobOrGrid::find(&client, name).await?;
    if let JobOrGrid::Grid { .. } = target {
        if options.trace.is_some() {
            bail!(Exit::InvalidInput.because(format!(
                "--trace works with a single job, but {name} is a grid; remove the option"
            )));
        }
        if options.recycle {
            bail!(Exit::InvalidInput.because(format!(
                "--recycle works with a single job, but {name} is a grid; remove the option"
            )));
        }
    }
    let host = match &options.host {
        Some(host) => host.clone(),
        None => target
            .own_host()
            .with_context(|| format!("cannot join job {name} without --host"))
            .input()?,
    };
    let metrics = Arc::new(Metrics::default());
    let exporter = match options.metrics {
        Some(address) => Some(export(address, metrics.clone()).await?),
        None => None,
    };
    let context = Context {
        client: client.clone(),
        host: host.as_str().into(),
        settings: options.settings(),
        shared: options.shared(),
        metrics,
        held,
        notice: |line| eprintln!("{}", output::visible(line)),
    };
    let limit = JoinTimeout::from(options.join_timeout);
    let (ranks, trace) = join(&context, options, &target, limit).await?;
    let ReadyRanks { begin, removed } =
        ready(&context, ranks, limit)
            .await
            .map_err(|error| match error {
                ReadyError::Session(error) => Exit::had_begun(error),
                late => Exit::TimedOut.because(format!("job {name}: {late}")).into(),
            })?;
    if begin.is_empty() {
        // One line for each rank.
        let why: Vec<String> = removed.iter().map(ToString::to_string).collect();
        return Err(Exit::Rejected.because(why.join("\n")).into());
    }
    for why in &removed {
        // The other ranks continue without it.
        eprintln!("{why}");
    }

    let (silent, silences) = mpsc::unbounded_channel();
    let (check_ended, checked) = watch::channel(false);
    let mut memberships = Vec::new();
    let mut running = Vec::new();
    for (rank, start) in begin {
        let sessions = rank.sessions().iter();
        memberships.extend(sessions.map(|session| session.membership.clone()));
        let work = Work {
            start,
            data: Data {
                seed: options.seed,
                len: options.allreduce.get() as usize,
                ranks: rank.position().ranks,
            },
            repeat: options.repeat.get(),
            verify: options.verify,
            recycles: options.recycle,
            linger: options.deadline,
            silent: silent.clone(),
            checked: checked.clone(),
        };
        let rank = rank.run(&context, options.deadline);
        let rank = rank.map_err(Exit::had_begun)?;
        running.push(async move {
            tokio::task::spawn_blocking(move || operations::run(work, rank)).await?
        });
    }
    drop(silent);
    let check = async {
        let found = check_if_silent(&client, silences).await;
        check_ended.send_replace(true);
        found
    };
    let (done, found) = tokio::join!(try_join_all(running), check);
    if let Ok(done) = &done {
        let last = done.iter().flat_map(|done| done.memberships.clone());
        memberships = last.collect();
    }
    for membership in &memberships {
        give_up(&client, membership).await;
    }
    drop(exporter);
    let done = done.map_err(Exit::had_begun)?;
    let traced = match trace {
        Some(trace) => end(trace, options).await,
        None => Ok(()),
    };
    let report = Report::new(
        (name, &host),
        (options.allreduce.get() as usize, options.deadline),
        &done,
        options.verify,
        found.as_ref(),
    );
    let text = options.output.print(&report, || report.text())?;
    output::print(&text)?;
    if let Err(error) = traced {
        eprintln!("error: {}", output::visible(&format!("{error:#}")));
        return Ok(ExitCode::FAILURE);
    }
    Ok(verdict::of(&done, options.verify))
}

/// Joins with all ranks of this process, and starts the trace. Gives the ranks back if one fails.
async fn join(
    context: &Context,
    options: &Options,
    target: &JobOrGrid,
    limit: JoinTimeout,
) -> Result<(Vec<JoinedRank>, Option<TraceFile>)> {
    let mut trace = None;
    let mut ranks: Vec<JoinedRank> = Vec::new();
    for _ in 0..options.ranks.get() {
        let joined = match JoinedRank::join(context, target, limit.until).await {
            Ok(rank) => {
                ranks.push(rank);
                let rank = ranks.last_mut().expect("a rank was added");
                warn_of_slow_rate(&rank.sessions()[0], options);
                begin_trace(rank, options, &mut trace)
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = joined {
            for rank in &ranks {
                rank.leave(&context.client).await;
            }
            return Err(error);
        }
    }
    Ok((ranks, trace))
}

/// Writes the rank's packets to the agent's trace file, which the first rank creates.
fn begin_trace(
    rank: &mut JoinedRank,
    options: &Options,
    trace: &mut Option<TraceFile>,
) -> Result<()> {
    let Some(path) = &options.trace else {
        return Ok(());
    };
    let Some(session) = rank.session_to_trace() else {
        return Ok(());
    };
    match trace {
        None => {
            let source = format!("job {}", session.membership.job);
            let file = session.trace_to(path, &source);
            *trace = Some(file.with_context(|| path.display().to_string())?);
        }
        Some(trace) => session.collective.trace(Box::new(trace.sink())),
    }
    Ok(())
}

/// Warns if a rank cannot send its values before the deadline. It sends its contributions to the other shards, and its own
/// shard once.
fn warn_of_slow_rate(session: &Session, options: &Options) {
    let config = session.collective.config();
    let values = options.allreduce.get();
    let took = config.pacing.map(|pacing| {
        let bits = f64::from(values) * 32.0;
        Duration::from_secs_f64(bits / pacing.bits_per_second as f64)
    });
    if let Some(took) = took.filter(|took| *took > config.t_b) {
        let Membership { job, rank, .. } = &session.membership;
        eprintln!(
            "warning: rank {rank} of {job}: {values} values take at least {took:.1?} to send at this rate, longer than the deadline of \
             {:?}: use fewer with --allreduce, or a longer --deadline",
            config.t_b
        );
    }
}

async fn export(address: SocketAddr, metrics: Arc<Metrics>) -> Result<Exporter> {
    let exporter = Exporter::serve(address, metrics).await;
    let exporter = exporter
        .with_context(|| format!("--metrics {address}"))
        .input()?;
    eprintln!("metrics at http://{}/metrics", exporter.address());
    Ok(exporter)
}

/// Waits until the trace file is complete.
async fn end(trace: TraceFile, options: &Options) -> Result<()> {
    let path = options.trace.clone().unwrap_or_default();
    let place = path.display().to_string();
    let written = tokio::task::spawn_blocking(move || trace.finish()).await?;
    let written = written.with_context(|| place.clone())?;
    if written.dropped > 0 {
        let Written { records, dropped } = written;
        eprintln!(
            "warning: {place} has {records} records, but {dropped} are missing because writing did not keep up"
        );
    }
    Ok(())
}

/// Runs a check when a rank reports silence, and prints its result.
async fn check_if_silent(
    client: &Client,
    mut silences: UnboundedReceiver<Silence>,
) -> Option<api::CheckJobResponse> {
    let silence = silences.recv().await?;
    let job = silence.job();
    eprintln!("warning: {silence}; checking job {job}");
    match client.check(job).await {
        Ok(found) => {
            eprint!("{}", document::Check::from(&found).text());
            Some(found)
        }
        Err(error) => {
            eprintln!("warning: the check failed: {error}");
            None
        }
    }
}
