//! The demo's main process: starts the other processes, measures and reports.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::process::Child;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;
use ultima_agent::{Limits, Settings};
use ultima_api::client::Client;
use ultima_host::{Coding, Config, Estimation, Layout};
use ultima_planner::job::{Gather, JobSpec};
use ultima_switch::proto::port_statistics_client::PortStatisticsClient;
use ultima_switch::proto::{GetRequest, Port};
use ultima_wire::Key;

use super::accounting;
use super::collect::{Collected, Progress};
use super::deadline::Bounds;
use super::link::{self, Message};
use super::options::{Multicast, Options};
use super::report::Report;
use super::worker::{PORT_FD, REPORT_FD, WorkerConfig};
use crate::exit::{Exit, InputErrors as _};
use crate::process::{self, Descriptors, Server};
use ultima_console::output;
use ultima_digits::baseline;
use ultima_digits::metrics::{Percentiles, replica_spread};
use ultima_digits::training::Plan;

/// The job's name at the controller.
const JOB: &str = "demo";
/// The switch's name in the fabric.
const SWITCH: &str = "s1";
/// The first descriptor under which the switch finds its ports.
const SWITCH_FD: i32 = 10;
/// How long all workers may be silent, beyond the time of a step, before those that are behind are killed.
const SILENCE: Duration = Duration::from_secs(30);
/// How long to wait for the end of the server that made all workers fail.
const SERVER_END: Duration = Duration::from_secs(1);
/// How long the network may take to drain after the last step.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the demo. Ctrl-C ends it with all its processes, with exit code 130.
pub fn run(options: &Options) -> Result<ExitCode> {
    let runtime = crate::runtime::runtime()?;
    let code = runtime.block_on(async {
        let mut processes = Processes::new();
        let report = tokio::select! {
            report = train(options, &mut processes) => Some(report),
            () = crate::runtime::interrupted() => None,
        };
        let had_begun = !processes.workers.is_empty();
        processes.stop().await;
        let Some(report) = report else {
            eprintln!("error: interrupted");
            return Ok(Exit::Interrupted.into());
        };
        let report = report.map_err(|error| match had_begun {
            true => Exit::had_begun(error),
            false => error,
        })?;
        let text = options.output.print(&report, || report.to_string())?;
        output::print(&text)?;
        Ok(match report.check() {
            Ok(()) => ExitCode::SUCCESS,
            Err(imbalance) => {
                eprintln!("error: {imbalance}");
                ExitCode::FAILURE
            }
        })
    });
    // Does not wait for the baseline, which may still be running after an interrupt.
    runtime.shutdown_background();
    code
}

/// The processes of the demo.
struct Processes {
    servers: Vec<Server>,
    workers: Vec<Child>,
    /// A channel for the names of servers that ended.
    ended: UnboundedReceiver<&'static str>,
    ends: UnboundedSender<&'static str>,
}

impl Processes {
    fn new() -> Self {
        let (ends, ended) = mpsc::unbounded_channel();
        Self {
            servers: Vec::new(),
            workers: Vec::new(),
            ended,
            ends,
        }
    }

    /// Kills the workers that have not reached `progress`.
    fn kill_behind(&mut self, collected: &Collected, progress: Progress) -> Result<()> {
        for (process, worker) in self.workers.iter_mut().zip(&collected.workers) {
            if worker.progress < progress {
                process.start_kill()?;
            }
        }
        Ok(())
    }

    /// Kills all processes and waits for their end.
    async fn stop(self) {
        for mut worker in self.workers {
            // Fails if the worker has already ended.
            let _ = worker.kill().await;
        }
        // The controller ends before its switch.
        for server in self.servers.into_iter().rev() {
            let _ = server.stop().await;
        }
    }
}

async fn train(options: &Options, processes: &mut Processes) -> Result<Report> {
    let started = Instant::now();
    let plan = Plan {
        workers: options.workers,
        shards: options.shards,
        seed: options.seed,
    };
    let parameters = plan.model().parameters().len();
    check(options, parameters)?;
    if let Some(dir) = &options.trace {
        let created = std::fs::create_dir_all(dir).with_context(|| dir.display().to_string());
        created.input()?;
    }
    let bounds = Bounds::new(
        options.deadline,
        parameters,
        options.workers,
        options.link_rate,
        options.link_delay,
    );

    let (switch_ends, worker_ends) = port_pairs(options.workers)?;
    let fabric = start_fabric(options, switch_ends, processes).await?;
    let (messages, mut inbox) = mpsc::channel(2 * usize::from(options.workers));
    let mut links = Vec::new();
    for (rank, port) in worker_ends.into_iter().enumerate() {
        let config = worker_config(options, plan, bounds, rank, &fabric.controller);
        let (child, stream) = start_worker(&config, port)?;
        processes.workers.push(child);
        links.push(listen(rank, stream, messages.clone()));
    }
    drop(messages);

    let bar = progress_bar(options);
    if bar.is_hidden() {
        let (steps, workers) = (options.steps, options.workers);
        eprintln!("training {steps} steps on {workers} workers");
    }
    let mut collected = Collected::new(options.workers, parameters, options.rules());
    let silence = SILENCE + 20 * (bounds.t_b + options.longest_sleep());
    collect(
        Progress::Trained,
        &mut collected,
        &mut inbox,
        processes,
        silence,
        &bar,
    )
    .await?;
    bar.finish_and_clear();
    if collected
        .workers
        .iter()
        .all(|worker| worker.progress == Progress::Lost)
    {
        // If the switch ends, all workers fail, and either may be noticed first.
        if let Ok(Some(server)) = timeout(SERVER_END, processes.ended.recv()).await {
            bail!(ended_early(server));
        }
        bail!(
            "no worker finished: {}",
            collected.failures().next().unwrap_or("all were killed")
        );
    }

    // Workers have received all packets once the switch has drained.
    let ports = drained_ports(&fabric.switch).await?;
    for link in &mut links {
        // Fails if the worker has ended; the inbox has its end.
        let _ = link.write_all(&[0]).await;
    }
    collect(
        Progress::Drained,
        &mut collected,
        &mut inbox,
        processes,
        silence,
        &bar,
    )
    .await?;
    for failure in collected.failures() {
        eprintln!("warning: a worker failed: {failure}");
    }
    let baseline = tokio::task::spawn_blocking({
        let steps = options.steps;
        move || baseline::train(plan, steps)
    })
    .await??;

    report(options, &collected, &ports, bounds, &baseline, started)
}

/// Refuses options that contradict each other or name what does not exist.
fn check(options: &Options, parameters: usize) -> Result<()> {
    let estimation = options.policies.policies().estimation;
    if estimation != Estimation::ArrivedMean && options.recycles() {
        bail!(Exit::InvalidInput.because(format!(
            "--estimator {} needs --recycling off: recycling works with arrived-mean only",
            estimation.name()
        )));
    }
    if let Some(late) = options.late
        && late.rank >= options.workers
    {
        bail!(Exit::InvalidInput.because(format!(
            "--late: no rank {}; with {} workers the ranks are 0 to {}",
            late.rank,
            options.workers,
            options.workers - 1
        )));
    }
    let slots = slots_of_longest_shard(options, parameters);
    if let Some(dropped) = options.drop_slots.as_ref().filter(|it| it.end > slots) {
        bail!(Exit::InvalidInput.because(format!(
            "--drop-slots {dropped:?}: a shard has {slots} slots; expected a range in 0..{slots}"
        )));
    }
    Ok(())
}

/// Addresses of the servers.
struct Fabric {
    switch: String,
    controller: String,
}

/// Starts the switch and its controller, and creates the job.
async fn start_fabric(
    options: &Options,
    switch_ends: Vec<OwnedFd>,
    processes: &mut Processes,
) -> Result<Fabric> {
    let server = start_switch(options, switch_ends, processes.ends.clone()).await?;
    let switch = server.address.clone();
    processes.servers.push(server);
    let server = start_controller(options, &switch, processes.ends.clone()).await?;
    let controller = server.address.clone();
    processes.servers.push(server);
    let job = JobSpec {
        gather: match options.multicast {
            Multicast::Switch => Gather::Multicast,
            Multicast::Unicast => Gather::Unicast,
        },
        seed: Some(options.seed),
        sealed: !options.unsealed,
        ..JobSpec::new(JOB, (0..usize::from(options.workers)).map(host))
    };
    Client::connect(&controller).await?.create_job(&job).await?;
    Ok(Fabric { switch, controller })
}

fn worker_config(
    options: &Options,
    plan: Plan,
    bounds: Bounds,
    rank: usize,
    controller: &str,
) -> WorkerConfig {
    WorkerConfig {
        controller: controller.into(),
        job: JOB.into(),
        host: host(rank),
        plan,
        steps: options.steps,
        straggler: options.straggler,
        bounds,
        settings: Settings {
            t_s: Some(bounds.t_s),
            hadamard: !options.no_hadamard,
            recycling: options.recycles(),
            rate: options.link_rate,
            policies: options.policies.policies(),
            ..Settings::new(bounds.t_b)
        },
        late_ms: (options.late)
            .filter(|late| usize::from(late.rank) == rank)
            .map(|late| late.sleep_ms),
        longest_sleep: options.longest_sleep(),
        rules: options.rules(),
        heals: options.drop_slots.is_none(),
        trace: (options.trace.as_ref()).map(|dir| dir.join(format!("rank{rank}.jsonl"))),
    }
}

/// The number of slots in the longest shard of the gradient.
fn slots_of_longest_shard(options: &Options, parameters: usize) -> u32 {
    let config = Config {
        key: (!options.unsealed).then_some(Key([0; 16])),
        ..Config::new(1, 1, 0, options.workers, options.seed, Duration::ZERO)
    };
    // The demo's fabric has the default MTU.
    let slot_bytes = Limits::default().slot_bytes(&config);
    let coding = match options.no_hadamard {
        true => Coding::Identity,
        false => Coding::default(),
    };
    let values = coding.encoded_len(parameters);
    let slot_len = Config {
        slot_bytes,
        ..config
    }
    .slot_len();
    let layout = Layout::new(values, options.workers, slot_len);
    let slots = (0..options.workers).map(|owner| layout.slots(owner));
    slots.max().unwrap_or_default()
}

fn ended_early(server: &str) -> String {
    format!("the {server} ended before the training was complete")
}

/// Processes messages until all remaining workers have reached `progress`.
async fn collect(
    progress: Progress,
    collected: &mut Collected,
    inbox: &mut mpsc::Receiver<FromWorker>,
    processes: &mut Processes,
    silence: Duration,
    bar: &ProgressBar,
) -> Result<()> {
    while !collected.all(progress) {
        tokio::select! {
            message = inbox.recv() => {
                // The channel closes after the end of the last worker.
                let Some((rank, message)) = message else { break };
                collected.take(rank, message);
                bar.set_position(collected.steps_done.into());
            }
            Some(server) = processes.ended.recv() => bail!(ended_early(server)),
            () = tokio::time::sleep(silence) => processes.kill_behind(collected, progress)?,
        }
    }
    Ok(())
}

fn report(
    options: &Options,
    collected: &Collected,
    ports: &[Port],
    bounds: Bounds,
    baseline: &baseline::Baseline,
    started: Instant,
) -> Result<Report> {
    let policies = options.policies.policies();
    let trained: Vec<_> = collected
        .workers
        .iter()
        .filter_map(|w| w.trained.as_ref())
        .collect();
    let worst = trained
        .iter()
        .map(|(accuracy, _)| accuracy)
        .min_by(|a, b| a.overall().total_cmp(&b.overall()))
        .context("no worker finished")?;
    let replicas: Vec<&[f32]> = trained
        .iter()
        .map(|(_, replica)| replica.as_slice())
        .collect();
    let workers: Vec<accounting::Worker<'_>> = collected
        .workers
        .iter()
        .zip(ports)
        .map(|(worker, port)| accounting::Worker {
            port,
            totals: worker.totals,
            finished: worker.progress == Progress::Drained,
        })
        .collect();
    let gather = accounting::gather(&workers, options.multicast);
    Ok(Report {
        workers: options.workers,
        steps: options.steps,
        seed: options.seed,
        parameters: replicas[0].len(),
        shards: options.shards,
        hadamard: !options.no_hadamard,
        recycling: options.recycles(),
        timeouts: policies.timeouts,
        estimator: policies.estimation.name(),
        multicast: options.multicast,
        sealed: !options.unsealed,
        impairments: options.impairments(),
        lost_workers: collected.lost(),
        accuracy: worst.overall(),
        accuracy_by_class: worst.by_class(),
        baseline_accuracy: baseline.accuracy.overall(),
        baseline_accuracy_by_class: baseline.accuracy.by_class(),
        replica_spread: replica_spread(&replicas),
        baseline_distance: replica_spread(&[&baseline.parameters, replicas[0]]),
        parameters_sha256: sha256(replicas[0]),
        update_error: collected.update_error.mean(),
        run_error: collected.run_error(),
        agreements: collected.agreements.clone(),
        weights: collected.weights(),
        suspected: collected.suspected(),
        passed_steps: collected.workers.iter().map(|w| w.passed).collect(),
        gradient_dispersion: collected.dispersion.mean(),
        allreduce_ms: Percentiles::of(collected.durations.clone()),
        deadline_ms: bounds.t_b.as_secs_f64() * 1e3,
        closed_by: collected.closed_by,
        scatter: accounting::scatter(&workers),
        unicast_equivalent: options
            .multicast
            .unicast_equivalent(gather.sent, options.workers),
        gather,
        wall_s: started.elapsed().as_secs_f64(),
    })
}

fn sha256(parameters: &[f32]) -> String {
    let digest = Sha256::digest(bytemuck::cast_slice::<f32, u8>(parameters));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of the worker's host in the fabric.
fn host(rank: usize) -> String {
    format!("h{}", rank + 1)
}

/// For each worker a pair of connected sockets: the switch's port, and the worker's end.
fn port_pairs(workers: u16) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>)> {
    (0..workers)
        .map(|_| {
            socketpair(
                AddressFamily::Unix,
                SockType::SeqPacket,
                None,
                SockFlag::SOCK_CLOEXEC,
            )
        })
        .collect::<Result<_, _>>()
        .context("cannot create the sockets of the switch ports")
}

async fn start_switch(
    options: &Options,
    ports: Vec<OwnedFd>,
    ended: UnboundedSender<&'static str>,
) -> Result<Server> {
    let mut arguments: Vec<OsString> = vec!["switch".into()];
    let mut option = |name: &str, value: String| {
        arguments.extend([OsString::from(name), OsString::from(value)]);
    };
    option("--grpc", options.grpc.to_string());
    option("--seed", options.seed.to_string());
    option("--stats-key", accounting::stats_key());
    for (name, value) in options.wire_arguments() {
        option(name, value);
    }
    let mut descriptors = Descriptors::new();
    for (index, end) in (0..).zip(ports) {
        option("-i", format!("{}@fd:{}", index + 1, SWITCH_FD + index));
        descriptors.push((SWITCH_FD + index, end));
    }
    if let Some(directory) = &options.pcap {
        arguments.extend(["--pcap".into(), directory.into()]);
    }
    Server::start("switch", arguments, descriptors, "", ended).await
}

async fn start_controller(
    options: &Options,
    switch: &str,
    ended: UnboundedSender<&'static str>,
) -> Result<Server> {
    let mut arguments: Vec<OsString> = [
        "controller",
        "serve",
        "--fabric",
        "-",
        "--listen",
        "127.0.0.1:0",
        "--state",
        "memory",
    ]
    .map(Into::into)
    .into();
    if let (Some(program), Some(p4info)) = (&options.program, &options.p4info) {
        arguments.extend([
            "--program".into(),
            program.into(),
            "--p4info".into(),
            p4info.into(),
        ]);
    }
    Server::start(
        "controller",
        arguments,
        Descriptors::new(),
        &fabric(options.workers, switch),
        ended,
    )
    .await
}

/// A fabric of one switch, with each worker as a host on its own port.
fn fabric(workers: u16, switch: &str) -> String {
    let mut yaml = format!(
        "switches:\n  - {{ name: {SWITCH}, target: v1model, grpc: \"{switch}\", device_id: 1 }}\nhosts:\n"
    );
    for rank in 0..usize::from(workers) {
        let (name, low) = (host(rank), rank + 1);
        yaml += &format!(
            "  - {{ name: {name}, mac: \"02:00:00:00:00:{low:02x}\", ip: 10.0.0.{low} }}\n"
        );
    }
    yaml += "links:\n";
    for rank in 0..usize::from(workers) {
        yaml += &format!("  - {{ ends: [{}, {SWITCH}/{}] }}\n", host(rank), rank + 1);
    }
    yaml
}

fn start_worker(config: &WorkerConfig, port: OwnedFd) -> Result<(Child, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let arguments = vec![
        "demo-worker".into(),
        "--config".into(),
        serde_json::to_string(config)?.into(),
    ];
    let descriptors = vec![(PORT_FD, port), (REPORT_FD, theirs.into())];
    let child = process::spawn("worker", arguments, descriptors)?;
    Ok((child, UnixStream::from_std(ours)?))
}

/// Forwards a worker's messages and its end to the inbox; returns the stream to the worker.
fn listen(rank: usize, stream: UnixStream, inbox: mpsc::Sender<FromWorker>) -> OwnedWriteHalf {
    let (read, write) = stream.into_split();
    tokio::spawn(async move {
        let mut read = BufReader::with_capacity(1 << 20, read);
        loop {
            // A worker that is killed within a message has ended.
            let message = link::receive(&mut read).await.unwrap_or_default();
            let ended = message.is_none();
            if inbox.send((rank, message)).await.is_err() || ended {
                return;
            }
        }
    });
    write
}

/// A worker's rank and message; none when it has ended.
type FromWorker = (usize, Option<(Message, Vec<Vec<f32>>)>);

/// The switch's ports after all their packets have left.
async fn drained_ports(switch: &str) -> Result<Vec<Port>> {
    let mut client = PortStatisticsClient::connect(format!("http://{switch}"))
        .await
        .context("cannot read the switch's port statistics")?;
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    let mut before = None;
    loop {
        let ports = client
            .get(GetRequest { device_id: 0 })
            .await?
            .into_inner()
            .ports;
        let held = |count: &Option<_>| {
            count
                .as_ref()
                .map_or(0, |c: &ultima_switch::proto::Count| c.packets)
        };
        let empty = ports
            .iter()
            .all(|port| held(&port.queued) + held(&port.in_flight) == 0);
        let entered: u64 = ports.iter().map(|port| held(&port.entered)).sum();
        // The same count twice: no packet arrived in between.
        if empty && before == Some(entered) {
            return Ok(ports);
        }
        if Instant::now() > deadline {
            bail!("the switch still holds packets {DRAIN_TIMEOUT:?} after the last step");
        }
        before = Some(entered);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn progress_bar(options: &Options) -> ProgressBar {
    let style = ProgressStyle::with_template("training {bar:40} {pos}/{len} steps, {elapsed}")
        .expect("a valid template");
    ProgressBar::new(options.steps.into()).with_style(style)
}
