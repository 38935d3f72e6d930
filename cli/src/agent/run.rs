//! The agent from start to end.

use std::fs::File;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use futures_util::future::try_join_all;
use nix::ifaddrs::getifaddrs;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::time::timeout;
use ultima_agent::{Context, Exporter, Membership, Metrics, Start, give_up};
use ultima_controller::api;
use ultima_controller::client::Client;
use ultima_host::Config;
use ultima_host::trace::{TraceFile, Written};

use super::data::Data;
use super::options::Options;
use super::rank::{Silence, Work};
use super::report::Report;
use super::seat::{Named, Ready, Seat};
use super::verdict;
use crate::document;
use crate::exit::Exit;
use ultima_console::output;

/// Runs the agent. Ctrl-C ends it with exit code 130.
pub fn run(options: &Options) -> Result<ExitCode> {
    // Settings that no job accepts are refused before the controller is asked.
    let settings = options.settings();
    settings
        .apply(Config::new(1, 1, 0, 2, 0, options.deadline))
        .validate()?;
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
                eprintln!("error: interrupted");
                Ok(crate::exit::Exit::Interrupted.into())
            }
        }
    });
    // Does not wait for ranks that are in an operation after an interrupt.
    runtime.shutdown_background();
    code
}

async fn work(options: &Options) -> Result<ExitCode> {
    let client = Client::connect(&options.at.controller).await?;
    let named = Named::find(&client, &options.job).await?;
    if let Named::Grid(..) = named {
        let job = &options.job;
        if options.trace.is_some() {
            bail!("--trace works with a single job, but {job} is a grid; remove the option");
        }
        if options.recycle {
            bail!("--recycle works with a single job, but {job} is a grid; remove the option");
        }
    }
    let host = match &options.host {
        Some(host) => host.clone(),
        None => own_host(&options.job, named.jobs())?,
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
        metrics,
        notice: |line| eprintln!("{}", output::visible(line)),
    };
    let mut trace = None;
    let mut seats: Vec<Seat> = Vec::new();
    for _ in 0..options.ranks.get() {
        match Seat::join(&context, options, &named, &mut trace).await {
            Ok(seat) => seats.push(seat),
            Err(error) => {
                for seat in &seats {
                    seat.leave(&client).await;
                }
                return Err(error);
            }
        }
    }
    let ready = seats.iter_mut().map(|seat| async {
        anyhow::Ok(match seat.ready(&context, options).await? {
            Ready::Begins(start) => Some(start),
            // The other ranks continue without it.
            Ready::Removed(why) => {
                eprintln!("{why}");
                None
            }
        })
    });
    let ready = try_join_all(ready);
    let starts = match timeout(options.join_timeout, ready).await {
        Ok(Ok(starts)) => starts,
        Ok(Err(error)) => {
            for seat in &seats {
                seat.leave(&client).await;
            }
            return Err(error);
        }
        Err(_) => {
            let (job, waited) = (&options.job, options.join_timeout);
            let late = match seats.iter().any(Seat::waits) {
                true => format!("job {job}: no free rank for host {host} within {waited:?}"),
                false => {
                    let missing = missing(&client, named.jobs()).await;
                    format!("job {job}: not all members joined within {waited:?}: {missing}")
                }
            };
            for seat in &seats {
                seat.leave(&client).await;
            }
            return Err(Exit::TimedOut.because(late).into());
        }
    };

    let begins = seats.into_iter().zip(starts);
    let (seats, starts): (Vec<Seat>, Vec<Start>) = begins
        .filter_map(|(seat, start)| Some((seat, start?)))
        .unzip();
    if seats.is_empty() {
        let job = &options.job;
        return Err(Exit::Rejected
            .because(format!("job {job} was resized without host {host}"))
            .into());
    }

    let (silent, silences) = mpsc::unbounded_channel();
    let (check_ended, checked) = watch::channel(false);
    let memberships: Vec<Membership> = seats.iter().flat_map(Seat::memberships).cloned().collect();
    let running = seats.into_iter().zip(starts).map(|(seat, start)| {
        let (place, sessions) = (seat.place(), &seat.sessions);
        let work = Work {
            place,
            start,
            context: context.clone(),
            jobs: seat
                .memberships()
                .map(|membership| membership.job.clone())
                .collect(),
            data: Data {
                seed: options.seed,
                len: options.allreduce.get() as usize,
                ranks: place.ranks,
            },
            repeat: options.repeat.get(),
            verify: options.verify,
            recycles: options.recycle,
            quiet: sessions
                .iter()
                .map(|session| session.quiet.clone())
                .collect(),
            elsewhere: match &sessions[..] {
                [session] => session.membership.elsewhere(),
                _ => None,
            },
            linger: options.deadline,
            silent: silent.clone(),
            checked: checked.clone(),
        };
        seat.run(work)
    });
    let running = try_join_all(running.collect::<Vec<_>>());
    drop(silent);
    let check = async {
        let found = check_if_silent(&client, silences).await;
        check_ended.send_replace(true);
        found
    };
    let (done, found) = tokio::join!(running, check);
    let memberships = match &done {
        Ok(done) => done
            .iter()
            .flat_map(|done| done.memberships.clone())
            .collect(),
        Err(_) => memberships,
    };
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
    let text = options.output.print(&report, || report.text())?;
    output::print(&text)?;
    if let Err(error) = traced {
        eprintln!("error: {}", output::visible(&format!("{error:#}")));
        return Ok(ExitCode::FAILURE);
    }
    Ok(verdict::of(&done, options.verify))
}

async fn export(address: SocketAddr, metrics: Arc<Metrics>) -> Result<Exporter> {
    let exporter = Exporter::serve(address, metrics).await;
    let exporter = exporter.with_context(|| format!("--metrics {address}"))?;
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

/// The member whose address this machine has.
fn own_host(name: &str, jobs: &[api::Job]) -> Result<String> {
    let own: Vec<String> = getifaddrs()
        .context("cannot list this machine's addresses; pass --host")?
        .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip().to_string()))
        .collect();
    // Includes the next epoch, where this machine may be new.
    let mut members = jobs.iter().flat_map(|job| {
        let next = job.next.iter().flat_map(|next| &next.members);
        job.members.iter().chain(next)
    });
    let member = members.find(|member| own.contains(&member.ip));
    let Some(member) = member else {
        bail!(
            "no member of job {name} has an address of this machine ({}); pass --host",
            own.join(", ")
        );
    };
    Ok(member.host.clone())
}

/// The members that have not joined, for an error message.
async fn missing(client: &Client, jobs: &[api::Job]) -> String {
    let mut missing = Vec::new();
    for api::Job { name, .. } in jobs {
        let Ok(job) = client.job(name).await else {
            return "the controller does not answer which".to_owned();
        };
        let of = match jobs.len() {
            1 => String::new(),
            _ => format!(" of {name}"),
        };
        let away = (job.members.iter()).filter(|m| m.state() != api::MemberState::Joined);
        missing.extend(away.map(|m| format!("rank {}{of} on {}", m.rank, m.host)));
    }
    match missing.is_empty() {
        true => {
            "all have joined, but one is not connected to the controller; run `ultima job check`"
                .to_owned()
        }
        false => missing.join(", "),
    }
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
