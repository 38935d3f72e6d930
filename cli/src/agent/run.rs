//! An agent from its start to its end.

use std::fs::File;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use nix::ifaddrs::getifaddrs;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use ultima_agent::{Exporter, Membership, Metrics, Probes, Quiet};
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull, Written};
use ultima_host::{Coding, Collective, Config, EarlyBounds, Pacing};

use super::data::Data;
use super::options::Options;
use super::rank::{self, Done, Silence, Work};
use super::report::Report;
use crate::command::check;
use crate::output;

/// Packets that a paced rank may send at once after a pause: ten full ones, as TCP's initial window.
const PACING_BURST: u32 = 10 * 1500;
/// Operations that a rank may fall behind before packets of the newest find no room.
const EARLY_OPERATIONS: usize = 64;
/// The pause before a rank that lost the controller tries to attend again.
const ATTEND_AGAIN: Duration = Duration::from_secs(1);

/// Runs the agent. Ctrl-C ends it; the exit code is then 130.
pub fn run(options: &Options) -> Result<ExitCode> {
    // What cannot work at all is said before anybody is asked.
    configure(options, Config::new(1, 1, 0, 2, 0, options.deadline)).validate()?;
    if let Some(path) = &options.trace {
        File::create(path).with_context(|| path.display().to_string())?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let code = runtime.block_on(async {
        tokio::select! {
            code = work(options) => code,
            () = crate::command::interrupted() => {
                eprintln!("interrupted");
                Ok(ExitCode::from(crate::command::INTERRUPTED))
            }
        }
    });
    // Ranks may be in the middle of an operation after an interrupt: nobody waits for them.
    runtime.shutdown_background();
    code
}

async fn work(options: &Options) -> Result<ExitCode> {
    let client = Client::connect(&options.at.controller).await?;
    let host = match &options.host {
        Some(host) => host.clone(),
        None => own_host(&client.job(&options.job).await?)?,
    };
    let metrics = Arc::new(Metrics::default());
    let exporter = match options.metrics {
        Some(address) => Some(export(address, metrics.clone()).await?),
        None => None,
    };
    let mut trace = None;
    let mut ranks = Vec::new();
    for _ in 0..options.ranks.get() {
        match Rank::join(&client, options, &host, &metrics, &mut trace).await {
            Ok(rank) => ranks.push(rank),
            Err(error) => {
                leave(&client, &ranks).await;
                return Err(error);
            }
        }
    }
    let all_here = try_join_all(ranks.iter_mut().map(Rank::all_here));
    match timeout(options.join_timeout, all_here).await {
        Ok(all_here) => all_here?,
        Err(_) => {
            let missing = missing(&client, options).await;
            leave(&client, &ranks).await;
            bail!(
                "after {:?} not all members of job {} are there: {missing}",
                options.join_timeout,
                options.job
            );
        }
    };

    let (silent, silences) = mpsc::unbounded_channel();
    let (check_ended, checked) = watch::channel(false);
    let memberships: Vec<Membership> = ranks.iter().map(|rank| rank.membership.clone()).collect();
    let running = ranks.into_iter().map(|rank| {
        let work = Work {
            rank: rank.membership.rank,
            data: Data {
                seed: options.seed,
                len: options.allreduce.get() as usize,
                ranks: rank.membership.config(options.deadline).ranks,
            },
            repeat: options.repeat.get(),
            verify: options.verify,
            quiet: rank.quiet.clone(),
            elsewhere: rank.membership.elsewhere(),
            linger: options.deadline,
            silent: silent.clone(),
            checked: checked.clone(),
        };
        rank.run(work)
    });
    let running = try_join_all(running.collect::<Vec<_>>());
    drop(silent);
    let check = async {
        let found = check_if_silent(&client, &options.job, silences).await;
        check_ended.send_replace(true);
        found
    };
    let (done, found) = tokio::join!(running, check);
    for membership in &memberships {
        give_up(&client, membership).await;
    }
    drop(exporter);
    let done = done?;
    let traced = match trace {
        Some(trace) => end(trace, options).await,
        None => Ok(()),
    };
    let report = Report::new(
        (&options.job, &host),
        (options.allreduce.get() as usize, options.deadline),
        &done,
        found.as_ref(),
    );
    let text = match options.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.text(),
    };
    output::print(&text)?;
    if let Err(error) = traced {
        eprintln!("error: {error:#}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(verdict(&done))
}

async fn export(address: SocketAddr, metrics: Arc<Metrics>) -> Result<Exporter> {
    let exporter = Exporter::serve(address, metrics).await;
    let exporter = exporter.with_context(|| format!("--metrics {address}"))?;
    eprintln!("metrics at http://{}/metrics", exporter.address());
    Ok(exporter)
}

/// Waits until the trace is written.
async fn end(trace: TraceFile, options: &Options) -> Result<()> {
    let path = options.trace.clone().unwrap_or_default();
    let place = path.display().to_string();
    let written = tokio::task::spawn_blocking(move || trace.finish()).await?;
    let written = written.with_context(|| place.clone())?;
    if written.dropped > 0 {
        let Written { records, dropped } = written;
        eprintln!("{place} has {records} records and lacks {dropped}: writing did not keep up");
    }
    Ok(())
}

/// Wrong results, and operations that heard nothing, are failures; loss is not.
fn verdict(done: &[Done]) -> ExitCode {
    let operations = || done.iter().flat_map(|done| &done.operations);
    let wrong = operations()
        .filter(|operation| operation.is_wrong())
        .count();
    let deaf = operations()
        .filter(|operation| operation.heard_nothing())
        .count();
    if wrong > 0 {
        eprintln!("error: {wrong} results are not the mean although nothing was lost");
    }
    if deaf > 0 {
        eprintln!(
            "error: in {deaf} operations nothing came from any other rank; see `ultima job check`"
        );
    }
    let refused: u64 = done.iter().map(|d| d.report.totals.rejected.total()).sum();
    if refused > 0 {
        eprintln!(
            "{refused} datagrams were refused; start all agents with the same --allreduce, --slot-bytes and --no-hadamard"
        );
    }
    match wrong + deaf {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// A rank of this host that has joined, with its socket open.
struct Rank {
    membership: Membership,
    collective: Collective,
    here: watch::Receiver<bool>,
    quiet: Quiet,
    attending: JoinHandle<()>,
}

impl Rank {
    async fn join(
        client: &Client,
        options: &Options,
        host: &str,
        metrics: &Metrics,
        trace: &mut Option<TraceFile>,
    ) -> Result<Self> {
        let membership = Membership::join(client, &options.job, host, Duration::ZERO).await?;
        let opened = Self::open(client, options, membership.clone(), metrics, trace);
        if opened.is_err() {
            give_up(client, &membership).await;
        }
        opened
    }

    /// The first one begins the trace, which has what all of them do.
    fn open(
        client: &Client,
        options: &Options,
        membership: Membership,
        metrics: &Metrics,
        trace: &mut Option<TraceFile>,
    ) -> Result<Self> {
        let udp = membership.udp()?;
        let config = configure(options, membership.config(options.deadline));
        let attendance = membership.attendance(config.slot_bytes);
        if let (Some(path), None) = (&options.trace, &trace) {
            let head = Head::new(&config, Clock::Real, &format!("job {}", options.job));
            let file = TraceFile::create(path, &head, WhenFull::Drop);
            *trace = Some(file.with_context(|| path.display().to_string())?);
        }
        let mut collective = Collective::over_udp(config, udp)?;
        if let Some(trace) = trace {
            collective.trace(Box::new(trace.sink()));
        }
        metrics.watch(&options.job, membership.rank, collective.observer());
        let mut probes = Probes::new(collective.prober());
        let all_here = probes.all_here();
        let quiet = probes.quiet();
        let client = client.clone();
        let attending = tokio::spawn(async move {
            loop {
                if let Err(error) = client.attend(attendance.clone(), &mut probes).await {
                    tracing::debug!(%error, "not in touch with the controller");
                }
                sleep(ATTEND_AGAIN).await;
            }
        });
        Ok(Self {
            membership,
            collective,
            here: all_here,
            quiet,
            attending,
        })
    }

    /// Waits until all members of the job have their sockets open.
    async fn all_here(&mut self) -> Result<()> {
        self.here.wait_for(|all_here| *all_here).await?;
        Ok(())
    }

    async fn run(self, work: Work) -> Result<Done> {
        let Self {
            collective,
            attending,
            ..
        } = self;
        let done = tokio::task::spawn_blocking(move || rank::run(work, collective)).await?;
        attending.abort();
        done
    }
}

fn configure(options: &Options, config: Config) -> Config {
    Config {
        slot_bytes: options.slot_bytes,
        coding: match options.no_hadamard {
            true => Coding::Identity,
            false => Coding::default(),
        },
        t_s: options.flush.unwrap_or(config.t_s),
        timeouts: options.timeouts,
        element: options.element,
        pacing: options.rate.map(|bits_per_second| Pacing {
            bits_per_second,
            burst: PACING_BURST,
            policy: options.rate_control,
        }),
        incast: options.incast,
        early: EarlyBounds {
            operations: EARLY_OPERATIONS,
            ..config.early
        },
        ..config
    }
}

/// The member whose address this machine has.
fn own_host(job: &api::Job) -> Result<String> {
    let own: Vec<String> = getifaddrs()
        .context("cannot list this machine's addresses; say --host")?
        .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip().to_string()))
        .collect();
    let member = job.members.iter().find(|member| own.contains(&member.ip));
    let Some(member) = member else {
        bail!(
            "no member of job {} has an address of this machine ({}); say --host",
            job.name,
            own.join(", ")
        );
    };
    Ok(member.host.clone())
}

/// Who has not joined, for the one who waited in vain.
async fn missing(client: &Client, options: &Options) -> String {
    let Ok(job) = client.job(&options.job).await else {
        return "the controller does not say who".to_owned();
    };
    let missing = job
        .members
        .iter()
        .filter(|m| m.state() != api::MemberState::Joined);
    let missing: Vec<String> = missing
        .map(|m| format!("rank {} on {}", m.rank, m.host))
        .collect();
    match missing.is_empty() {
        true => {
            "all have joined, and one is not in touch with the controller; see `ultima job check`"
                .to_owned()
        }
        false => missing.join(", "),
    }
}

/// Runs a check as soon as a rank does not hear others, and says what it found.
async fn check_if_silent(
    client: &Client,
    job: &str,
    mut silences: UnboundedReceiver<Silence>,
) -> Option<api::CheckJobResponse> {
    let silence = silences.recv().await?;
    eprintln!("{silence}; checking job {job}");
    match client.check(job).await {
        Ok(found) => {
            eprint!("{}", check::Report::from(&found).text());
            Some(found)
        }
        Err(error) => {
            eprintln!("the check failed: {error}");
            None
        }
    }
}

async fn leave(client: &Client, ranks: &[Rank]) {
    for rank in ranks {
        give_up(client, &rank.membership).await;
    }
}

async fn give_up(client: &Client, membership: &Membership) {
    let Membership {
        job, epoch, rank, ..
    } = membership;
    let left = client.leave(job, (*epoch).into(), (*rank).into()).await;
    if let Err(error) = left {
        // The job may have been deleted meanwhile.
        tracing::debug!(%error, rank, "not left");
    }
}
