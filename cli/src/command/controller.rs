//! `ultima controller`: runs a controller, or shows the status of running ones.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use ultima_console::input;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ultima_agent::{Exporter, Source};
use ultima_api::address::{DEFAULT_LISTEN, Listen};
use ultima_controller::fabric;
use ultima_controller::program::Program;
use ultima_controller::server::{self, Config, Group};
use ultima_grpc::tls::{IdentityFiles, ServerTls};

use super::controller_status;
use crate::exit::Exit;
use crate::process;
use ultima_console::{output, units};

/// The shortest audit interval: at shorter ones switches would do nothing but answer reads.
const MIN_AUDIT: Duration = Duration::from_millis(100);

/// The shortest takeover delay: a leader that reconnects to its switches needs less.
const MIN_TAKE_OVER: Duration = Duration::from_millis(100);

/// Run a controller, or show the status of running controllers
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima controller serve --fabric topologies/star4.yaml --state star4.redb\n  \
    ultima controller status")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Serve(Box<Serve>),
    Status(controller_status::Arguments),
}

/// Run a controller: it programs the switches of a fabric and serves the control API
///
/// Connecting to a switch replaces the P4 program that runs there. The controller prints `listening on ADDR` when the
/// fabric is ready, and runs until SIGINT or SIGTERM.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ultima controller serve --fabric topologies/star4.yaml --state star4.redb
  ultima controller serve --fabric star4.yaml --state star4.redb \\
      --tls-cert c1.pem --tls-key c1.key --tls-client-ca ca.pem \\
      --listen 10.0.0.1:9555 --peers 10.0.0.2:9555,10.0.0.3:9555")]
struct Serve {
    /// YAML file of the fabric: switches, hosts and links; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// Address of the control API: ADDRESS:PORT (port 0 selects a free one), or unix:PATH
    #[arg(long, value_name = "ADDR", default_value_t = DEFAULT_LISTEN.into())]
    listen: Listen,
    /// The certificate of this controller, in PEM format: speak TLS, and serve only clients with a certificate that names their
    /// role; see `ultima certs --help`
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"], help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
    /// The authorities of the certificates of clients, and of the controllers in --peers
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_client_ca: Option<PathBuf>,
    /// Serve an address other than loopback without TLS: every client that reaches it may do everything
    #[arg(long, conflicts_with = "tls_cert", help_heading = "TLS")]
    insecure: bool,
    /// Database file for jobs and their members; created if it does not exist. Without it jobs are kept in memory only, and a
    /// restarted controller removes the jobs that it finds on switches
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How long to retry switches that do not answer at startup. With --peers the controller starts without them
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration, conflicts_with = "peers")]
    startup_timeout: Duration,
    /// Longest time between two audits of a switch, at least 100ms. An audit reads the switch and repairs drift
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    audit_every: Duration,
    /// Report drift on switches but do not repair it until `ultima fabric sync`, a restart of the controller, or a reconnect
    /// of the switch
    #[arg(long)]
    no_repair: bool,
    /// Rate at which each rank sends unless its agent has --rate [default: 2M or less if a switch is BMv2, which drops
    /// bursts; else the rank's share of its link's rate in --fabric]
    #[arg(long, value_name = "RATE", value_parser = units::bit_rate)]
    agent_rate: Option<u64>,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; a port alone means loopback
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = units::metrics_address)]
    metrics: Option<SocketAddr>,
    /// Addresses of the fabric's other controllers, separated by commas. One leads; the standbys replicate its database and
    /// take over when it fails
    #[arg(
        long,
        value_name = "ADDR,...",
        value_delimiter = ',',
        value_parser = units::control_address,
        requires = "state",
        help_heading = "Several controllers"
    )]
    peers: Vec<String>,
    /// Number of standbys that must have stored a change before it is committed; needs --peers
    /// and --state [default: half of --peers, rounded up]
    #[arg(
        long,
        value_name = "N",
        requires = "peers",
        help_heading = "Several controllers"
    )]
    copies: Option<usize>,
    /// How long more than half of the switches must report no primary before a standby takes over, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, requires = "peers", help_heading = "Several controllers")]
    take_over_after: Duration,
    /// Become the leader once even if other controllers may have committed changes that this one does not have; those are
    /// lost. Has no effect while another controller leads
    #[arg(long, requires = "state", help_heading = "Several controllers")]
    force_lead: bool,
    /// P4 program for the switches: the JSON file of p4c's BMv2 backend, or the output folder of another compiler [default:
    /// Ultima's program for the switch's target]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// P4Info of a program that is a JSON file, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    p4info: Option<PathBuf>,

    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// The controller's metrics, as the exporter reads them.
struct Metrics(Box<dyn Fn() -> String + Send + Sync>);

impl Source for Metrics {
    fn text(&self) -> String {
        (self.0)()
    }
}

/// Serves metrics if `--metrics` is given.
async fn export(
    address: Option<SocketAddr>,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> Result<Option<Exporter>> {
    let Some(address) = address else {
        return Ok(None);
    };
    let exporter = Exporter::serve(address, Arc::new(Metrics(Box::new(text)))).await;
    let exporter = exporter.with_context(|| format!("--metrics {address}"))?;
    eprintln!("metrics at http://{}/metrics", exporter.address());
    Ok(Some(exporter))
}

/// Runs the command.
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
        &input::read_text(&serve.fabric)?,
        &input::name_of(&serve.fabric),
    )?;
    let mut config = match &serve.program {
        None => Config::new(fabric)?,
        Some(program) => {
            let program = Program::load(program, serve.p4info.as_deref())?;
            Config::with_program(fabric, program)
        }
    };
    config.listen = serve.listen;
    config.insecure = serve.insecure;
    let files = (serve.tls_cert.zip(serve.tls_key)).zip(serve.tls_client_ca);
    config.tls = files.map(|((cert, key), client_ca)| ServerTls {
        identity: IdentityFiles { cert, key },
        client_ca: Some(client_ca),
    });
    config.patience = serve.startup_timeout;
    config.state = serve.state;
    if serve.audit_every < MIN_AUDIT {
        bail!(
            "--audit-every {:?}: expected 100ms or more, such as 30s",
            serve.audit_every
        );
    }
    config.audit_every = serve.audit_every;
    config.repair = !serve.no_repair;
    config.agent_rate = serve.agent_rate;
    if serve.take_over_after < MIN_TAKE_OVER {
        bail!(
            "--take-over-after {:?}: expected 100ms or more, such as 1s",
            serve.take_over_after
        );
    }
    let group = (!serve.peers.is_empty() || serve.force_lead).then(|| {
        let group = Group::new(serve.peers);
        Group {
            copies: serve.copies.unwrap_or(group.copies),
            grace: serve.take_over_after,
            lead_anyway: serve.force_lead,
            ..group
        }
    });
    // Every member has a connection.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it there is less room; a soft limit may become the hard one in any process.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    // Two threads, so that planning a large fabric does not delay heartbeats.
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
                    crate::runtime::interrupted().await;
                    drop(exporter);
                    handle.stop().await;
                }
                Some(group) => {
                    let mut handle = server::serve_in(config, group).await?;
                    let exporter = export(serve.metrics, handle.metrics()).await?;
                    output::print(&format!("listening on {}\n", handle.address()))?;
                    tokio::select! {
                        () = crate::runtime::interrupted() => {}
                        why = handle.ended() => bail!(Exit::Failure.because(format!("the controller stopped: {why}"))),
                    }
                    drop(exporter);
                    handle.stop().await;
                }
            }
            Ok(())
        })
}
