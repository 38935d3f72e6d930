//! The configuration of a controller.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ultima_api::address::{DEFAULT_LISTEN, Listen};
use ultima_grpc::tls::ServerTls;
use ultima_planner::fabric::Fabric;
use ultima_planner::fabric::damping::DampingConfig;
use ultima_planner::program::Program;

use super::call_rates::RateLimit;
use super::error::ServeError;
use super::timers::Timers;

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// The fabric.
    pub fabric: Fabric,
    /// The program for its switches.
    pub program: Program,
    /// The address of the control API; port 0 takes any free port.
    pub listen: Listen,
    /// Certificates. With them the API speaks TLS only, and a client's certificate must name its role.
    pub tls: Option<ServerTls>,
    /// An address for metrics without TLS.
    pub metrics: Option<SocketAddr>,
    /// True to serve every client of a TCP address other than loopback without TLS.
    pub insecure: bool,
    /// Time limit at the start for a switch to answer, and for retries of a failed bring-up.
    pub startup_timeout: Duration,
    /// The store's file; without one the store is in memory.
    pub state: Option<PathBuf>,
    /// True to remove the jobs of another store from the switches. Otherwise a switch with such jobs is left alone.
    pub take_over: bool,
    /// True to replace another P4 program on a switch. Otherwise a switch that runs one is left alone.
    pub replace_pipeline: bool,
    /// The longest interval between two comparisons of a switch with the desired state.
    pub audit_every: Duration,
    /// True to repair drift when it is found; false to only log it until a client requests a sync.
    pub repair: bool,
    /// Bits per second at which each rank sends unless its agent chooses a rate. None for no limit, or a low one if a switch
    /// drops bursts, as BMv2 does.
    pub agent_rate: Option<u64>,
    /// The most jobs of a client with a certificate; none for no limit.
    pub jobs_per_client: Option<usize>,
    /// The most calls of a client with a certificate. No operator sets it.
    pub rate_limit: RateLimit,
    /// Damping of elements that fail and come back.
    pub damping: DampingConfig,
    /// Timers that no operator sets.
    pub timers: Timers,
}

/// Default of [`Config::audit_every`].
pub const AUDIT_EVERY: Duration = Duration::from_secs(30);

impl Config {
    /// The defaults for a fabric: Ultima's own program, [`DEFAULT_LISTEN`], five seconds for the
    /// switches to answer.
    ///
    /// # Errors
    /// The embedded program is not as the compilers printed it.
    pub fn new(fabric: Fabric) -> Result<Self, ServeError> {
        let program = Program::own(&fabric)?;
        Ok(Config::with_program(fabric, program))
    }

    /// The defaults with another program.
    pub fn with_program(fabric: Fabric, program: Program) -> Self {
        Config {
            fabric,
            program,
            listen: DEFAULT_LISTEN.into(),
            tls: None,
            metrics: None,
            insecure: false,
            startup_timeout: Duration::from_secs(5),
            state: None,
            take_over: false,
            replace_pipeline: false,
            audit_every: AUDIT_EVERY,
            repair: true,
            agent_rate: None,
            jobs_per_client: None,
            rate_limit: RateLimit::default(),
            damping: DampingConfig::default(),
            timers: Timers::default(),
        }
    }
}
