//! `ultima controller`: runs a controller, or shows the status of running ones.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use ultima_console::input;

use anyhow::{Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ultima_api::address::{DEFAULT_LISTEN, Listen};
use ultima_controller::server::{self, Config};
use ultima_controller::store::etcd;
use ultima_grpc::tls::{ClientTls, IdentityFiles, ServerTls};
use ultima_planner::fabric;
use ultima_planner::program::Program;

use super::controller_state::{State, default_file};
use super::controller_status;
use crate::exit::{Exit, InputErrors as _};
use crate::process;
use ultima_console::{output, units};

/// The shortest audit interval: at shorter ones switches would do nothing but answer reads.
const MIN_AUDIT: Duration = Duration::from_millis(100);

/// The shortest lease that etcd grants with its default settings.
const MIN_LEASE: Duration = Duration::from_secs(2);

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
/// The controller installs Ultima's P4 program on every switch. It leaves a switch alone that runs another program, unless
/// --replace-pipeline is given. It prints `listening on ADDR` when the fabric is ready, and runs until SIGINT or SIGTERM.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ultima controller serve --fabric topologies/star4.yaml --state star4.redb
  ultima controller serve --fabric star4.yaml --state memory
  ultima controller serve --fabric star4.yaml --state star4.redb \\
      --tls-cert c1.pem --tls-key c1.key --tls-client-ca ca.pem \\
      --listen 10.0.0.1:9555
  ultima controller serve --fabric star4.yaml --state etcd://127.0.0.1:2379/star4 \\
      --etcd-secret secret")]
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
    /// The authorities of the certificates of clients
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_client_ca: Option<PathBuf>,
    /// Serve an address other than loopback without TLS: every client that reaches it may do everything, and jobs with
    /// members on other machines need `sealed: false`, because keys cross no network in plain text. With etcd, also store
    /// jobs' keys there without --etcd-secret
    #[arg(long, conflicts_with = "tls_cert", help_heading = "TLS")]
    insecure: bool,
    /// Where jobs and their members are stored: a database file, created if it does not exist; etcd, which several controllers
    /// share; or memory, for labs: each start removes all jobs from the switches [default: ultima/FABRIC-DIGEST.redb in
    /// $XDG_STATE_HOME, else in ~/.local/state; for root in /var/lib. DIGEST is that of the fabric file's path]
    #[arg(long, value_name = "FILE|etcd://HOST:PORT,.../PREFIX|memory")]
    state: Option<State>,
    /// Remove jobs of another --state from the switches. Without it the controller leaves switches with such jobs alone, because
    /// these jobs may be running
    #[arg(long)]
    take_over: bool,
    /// Replace the P4 program of a switch that runs another one than Ultima's. Its traffic stops
    #[arg(long)]
    replace_pipeline: bool,
    /// How long to retry switches that do not answer at startup [default: 5s]. After this time, a controller whose --state has had
    /// a job or a drain starts without them; another one ends. Not for etcd: a controller with etcd always starts without them
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    startup_timeout: Option<Duration>,
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
    /// The most jobs of one operator, by the name in its certificate [default: unlimited]
    #[arg(long, value_name = "N", requires = "tls_cert", help_heading = "TLS")]
    jobs_per_client: Option<usize>,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; a port alone means loopback
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = units::metrics_address)]
    metrics: Option<SocketAddr>,
    /// Where clients and standbys reach this controller, if it is not --listen, such as 0.0.0.0
    #[arg(long, value_name = "ADDR", value_parser = units::control_address, help_heading = "etcd")]
    advertise: Option<String>,
    /// The authorities of etcd's certificates: speak TLS
    #[arg(long, value_name = "FILE", help_heading = "etcd")]
    etcd_ca: Option<PathBuf>,
    /// The controller's certificate for etcd
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"], help_heading = "etcd")]
    etcd_cert: Option<PathBuf>,
    /// The key of --etcd-cert
    #[arg(
        long,
        value_name = "FILE",
        requires = "etcd_cert",
        help_heading = "etcd"
    )]
    etcd_key: Option<PathBuf>,
    /// The controller's user in etcd
    #[arg(
        long,
        value_name = "NAME",
        requires = "etcd_password_file",
        help_heading = "etcd"
    )]
    etcd_user: Option<String>,
    /// File with the password of --etcd-user
    #[arg(
        long,
        value_name = "FILE",
        requires = "etcd_user",
        help_heading = "etcd"
    )]
    etcd_password_file: Option<PathBuf>,
    /// Encrypt jobs' records in etcd, which have the keys of sealed jobs, with this secret of at least 32 bytes. All controllers of
    /// a fabric have the same
    #[arg(long, value_name = "FILE", help_heading = "etcd")]
    etcd_secret: Option<PathBuf>,
    /// How long a leader that does not answer keeps the lead, at least 2s; whole seconds [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "etcd")]
    etcd_lease: Option<Duration>,
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

/// Prints the addresses of a controller that is ready.
fn print_addresses(api: &Listen, metrics: Option<&Listen>) -> Result<()> {
    if let Some(metrics) = metrics {
        eprintln!("metrics at http://{metrics}/metrics");
    }
    output::print(&format!("listening on {api}\n"))?;
    Ok(())
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
    let (config, cluster) = serve.config().input()?;
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
            match cluster {
                None => {
                    let file = config.state.clone();
                    let handle = server::serve(config).await?;
                    if let Some(file) = file {
                        eprintln!("jobs are stored in {}", file.display());
                    }
                    print_addresses(handle.address(), handle.metrics_address())?;
                    crate::runtime::interrupted().await;
                    handle.stop().await;
                }
                Some(cluster) => {
                    let mut handle =
                        server::serve_with_etcd(config, cluster, serve.advertise).await?;
                    print_addresses(handle.address(), handle.metrics_address())?;
                    tokio::select! {
                        () = crate::runtime::interrupted() => {}
                        why = handle.ended() => bail!(Exit::Failure.because(format!("the controller stopped: {why}"))),
                    }
                    handle.stop().await;
                }
            }
            Ok(())
        })
}

impl Serve {
    /// The configuration of the controller, and of etcd if it has the jobs.
    fn config(&self) -> Result<(Config, Option<etcd::Config>)> {
        let fabric = fabric::parse(
            &input::read_text(&self.fabric)?,
            &input::name_of(&self.fabric),
        )?;
        let mut config = match &self.program {
            None => Config::new(fabric)?,
            Some(program) => {
                let program = Program::load(program, self.p4info.as_deref())?;
                Config::with_program(fabric, program)
            }
        };
        config.listen = self.listen.clone();
        config.metrics = self.metrics;
        config.insecure = self.insecure;
        let files =
            (self.tls_cert.clone().zip(self.tls_key.clone())).zip(self.tls_client_ca.clone());
        config.tls = files.map(|((cert, key), client_ca)| ServerTls {
            identity: IdentityFiles { cert, key },
            client_ca: Some(client_ca),
        });
        config.startup_timeout = self.startup_timeout.unwrap_or(config.startup_timeout);
        if self.audit_every < MIN_AUDIT {
            bail!(
                "--audit-every {:?}: expected 100ms or more, such as 30s",
                self.audit_every
            );
        }
        config.audit_every = self.audit_every;
        config.repair = !self.no_repair;
        config.take_over = self.take_over;
        config.replace_pipeline = self.replace_pipeline;
        config.agent_rate = self.agent_rate;
        config.jobs_per_client = self.jobs_per_client;
        let cluster = match self.state.clone() {
            Some(State::Etcd(cluster)) => Some(with_access(*cluster, self)?),
            state => {
                self.refuse_etcd_options()?;
                config.state = match state {
                    None => Some(default_file(&self.fabric)?),
                    Some(State::File(file)) => Some(file),
                    Some(State::Memory | State::Etcd(_)) => None,
                };
                None
            }
        };
        Ok((config, cluster))
    }

    /// Refuses options that have no effect without etcd.
    fn refuse_etcd_options(&self) -> Result<()> {
        let given = [
            ("--advertise", self.advertise.is_some()),
            ("--etcd-ca", self.etcd_ca.is_some()),
            ("--etcd-user", self.etcd_user.is_some()),
            ("--etcd-secret", self.etcd_secret.is_some()),
            ("--etcd-lease", self.etcd_lease.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => bail!("{option}: needs --state etcd://HOST:PORT,.../PREFIX"),
            None => Ok(()),
        }
    }
}

/// Adds how to reach etcd.
fn with_access(cluster: etcd::Config, serve: &Serve) -> Result<etcd::Config> {
    if serve.startup_timeout.is_some() {
        bail!(
            "--startup-timeout: a controller with etcd starts without switches that do not answer; leave it out"
        );
    }
    if let (Listen::Tcp(address), None) = (&serve.listen, &serve.advertise)
        && address.ip().is_unspecified()
    {
        bail!(
            "--listen {address} is no address that clients can reach; add --advertise with one, such as 10.0.0.1:9555"
        );
    }
    let is_loopback = |endpoint: &String| {
        let host = endpoint.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address: Option<IpAddr> = host.parse().ok();
        host == "localhost" || address.is_some_and(|it| it.is_loopback())
    };
    let is_open = serve.etcd_ca.is_none() && !cluster.endpoints.iter().all(is_loopback);
    if is_open {
        bail!("--state etcd: jobs' keys would cross the network in plain text; pass --etcd-ca");
    }
    let identity = (serve.etcd_cert.clone().zip(serve.etcd_key.clone()))
        .map(|(cert, key)| IdentityFiles { cert, key });
    let tls = (serve.etcd_ca.as_ref()).map(|ca| ClientTls::load(ca, identity.as_ref()));
    let lease = serve.etcd_lease.unwrap_or(cluster.lease);
    if lease < MIN_LEASE || lease.subsec_nanos() != 0 {
        bail!("--etcd-lease {lease:?}: expected whole seconds, 2s or more");
    }
    if serve.etcd_secret.is_none() && !serve.insecure {
        bail!(
            "--state etcd: all who can read its prefix would have the keys of sealed jobs; pass --etcd-secret with a file, such as one from `openssl rand -base64 32`, or --insecure for a testbed"
        );
    }
    let secret = (serve.etcd_secret.as_ref()).map(|file| etcd::Secret::load(file));
    Ok(etcd::Config {
        tls: tls.transpose()?,
        secret: secret.transpose()?,
        user: serve
            .etcd_user
            .clone()
            .zip(serve.etcd_password_file.clone()),
        lease,
        ..cluster
    })
}
