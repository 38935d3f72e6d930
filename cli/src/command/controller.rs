//! `ultima controller`: the controller as a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ultima_agent::{Exporter, Source};
use ultima_controller::fabric;
use ultima_controller::program::Program;
use ultima_controller::server::{self, Config, DEFAULT_LISTEN, Group, Listen};

use super::controller_status;
use crate::exit::Exit;
use crate::{output, process, units};

/// Switches that are looked at more often have time for nothing else.
const MIN_AUDIT: Duration = Duration::from_millis(100);

/// A primary whose connections break is back after less.
const MIN_TAKE_OVER: Duration = Duration::from_millis(100);

/// The job controller
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Serve(Box<Serve>),
    Status(controller_status::Arguments),
}

/// Brings up the fabric's switches over P4Runtime, then serves the control API.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ultima controller serve --fabric topologies/star4.yaml --state star4.redb
  ultima controller serve --fabric star4.yaml --state star4.redb --listen 10.0.0.1:9555 --peers 10.0.0.2:9555,10.0.0.3:9555")]
struct Serve {
    /// The fabric, as YAML: switches, hosts, links; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// Where the control API listens: ADDRESS:PORT, of which port 0 takes any free one, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value_t = DEFAULT_LISTEN.into())]
    listen: Listen,
    /// The file in which jobs are kept, so that the controller knows them again when it is started again; made if there is
    /// none. Without it they are in memory, and a controller that starts takes off its switches what it does not know
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How long switches may take to answer at the start, and what fails there and may pass is tried again; with --peers those that are not
    /// there then are waited for later
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration, conflicts_with = "peers")]
    patience: Duration,
    /// How often switches are looked at, at the least, and put right where somebody has changed them
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    audit_every: Duration,
    /// Leave what somebody else changed on a switch as it is, and only tell of it, until `ultima fabric sync`, the controller's next start,
    /// or the switch's return
    #[arg(long)]
    no_repair: bool,
    /// Rate at which each rank sends unless its agent has --rate, such as 2M for BMv2 [default: unlimited]
    #[arg(long, value_name = "RATE", value_parser = units::bit_rate)]
    agent_rate: Option<u64>,
    /// Serve metrics to Prometheus, at http://ADDRESS:PORT/metrics; without an address on loopback
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = units::metrics_address)]
    metrics: Option<SocketAddr>,
    /// Other controllers of the fabric, where they listen, with a comma between: one leads, the others copy what it promises and take over
    #[arg(
        long,
        value_name = "ADDR,...",
        value_delimiter = ',',
        value_parser = units::control_address,
        requires = "state",
        help_heading = "Several controllers"
    )]
    peers: Vec<String>,
    /// How many others have stored what a primary promises; half of them, rounded up, where it is not said
    #[arg(
        long,
        value_name = "N",
        requires = "peers",
        help_heading = "Several controllers"
    )]
    copies: Option<usize>,
    /// For how long more than half of the switches say that they have no primary before another one takes over
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, requires = "peers", help_heading = "Several controllers")]
    take_over_after: Duration,
    /// Lead once, soon, unless another controller says that it does: also where switches do not notice that their primary is gone, and
    /// where others may know of promises that this one does not, which are lost
    #[arg(long, requires = "state", help_heading = "Several controllers")]
    lead_anyway: bool,
    /// Another program for the switches: the folder of what a compiler printed, or the file that p4c's BMv2 backend did
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The P4Info of a program that is a file, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    p4info: Option<PathBuf>,

    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// What the controller counts and measures.
struct Counted(Box<dyn Fn() -> String + Send + Sync>);

impl Source for Counted {
    fn text(&self) -> String {
        (self.0)()
    }
}

/// Serves metrics, if they are asked for.
async fn export(
    address: Option<SocketAddr>,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> Result<Option<Exporter>> {
    let Some(address) = address else {
        return Ok(None);
    };
    let exporter = Exporter::serve(address, Arc::new(Counted(Box::new(text)))).await;
    let exporter = exporter.with_context(|| format!("--metrics {address}"))?;
    eprintln!("metrics at http://{}/metrics", exporter.address());
    Ok(Some(exporter))
}

/// Serves until it is interrupted, or asks those that do.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Serve(options) => serve(*options).map(|()| ExitCode::SUCCESS),
        Command::Status(arguments) => controller_status::run(&arguments),
    }
}

fn serve(serve: Serve) -> Result<()> {
    if serve.die_with_parent {
        process::die_with_parent()?;
    }
    let fabric = fabric::parse(
        &super::read_text(&serve.fabric)?,
        &super::name_of(&serve.fabric),
    )?;
    let mut config = match &serve.program {
        None => Config::new(fabric)?,
        Some(program) => {
            let program = Program::load(program, serve.p4info.as_deref())?;
            Config::with_program(fabric, program)
        }
    };
    config.listen = serve.listen;
    config.patience = serve.patience;
    config.state = serve.state;
    if serve.audit_every < MIN_AUDIT {
        bail!(
            "--audit-every of {:?}: 100ms or more is needed, such as 30s",
            serve.audit_every
        );
    }
    config.audit_every = serve.audit_every;
    config.repair = !serve.no_repair;
    config.agent_rate = serve.agent_rate;
    if serve.take_over_after < MIN_TAKE_OVER {
        bail!(
            "--take-over-after of {:?}: 100ms or more is needed, such as 1s",
            serve.take_over_after
        );
    }
    let group = (!serve.peers.is_empty() || serve.lead_anyway).then(|| {
        let group = Group::new(serve.peers);
        Group {
            copies: serve.copies.unwrap_or(group.copies),
            grace: serve.take_over_after,
            lead_anyway: serve.lead_anyway,
            ..group
        }
    });
    // Two: what a large fabric's plan takes holds up no heartbeat.
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(async {
            match group {
                None => {
                    let handle = server::serve(config).await?;
                    let controller = Arc::clone(handle.controller());
                    let text = move || controller.metrics_text();
                    let exporter = export(serve.metrics, text).await?;
                    output::print(&format!("listening on {}\n", handle.address()))?;
                    super::interrupted().await;
                    drop(exporter);
                    handle.stop().await;
                }
                Some(group) => {
                    let mut handle = server::serve_in(config, group).await?;
                    let exporter = export(serve.metrics, handle.metrics()).await?;
                    output::print(&format!("listening on {}\n", handle.address()))?;
                    tokio::select! {
                        () = super::interrupted() => {}
                        why = handle.ended() => bail!(Exit::Found.because(format!("the controller has ended: {why}"))),
                    }
                    drop(exporter);
                    handle.stop().await;
                }
            }
            Ok(())
        })
}
