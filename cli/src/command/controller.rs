//! `ultima controller`: the controller as a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use ultima_controller::fabric;
use ultima_controller::program::Program;
use ultima_controller::server::{self, Config, DEFAULT_LISTEN, Listen};

use crate::{process, units};

/// Switches that are looked at more often have time for nothing else.
const MIN_AUDIT: Duration = Duration::from_millis(100);

/// The job controller
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Serve(Serve),
}

/// Brings up the fabric's switches over P4Runtime, then serves the control API.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima controller serve --fabric topologies/star4.yaml --state star4.redb"
)]
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
    /// How long switches may take to answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration)]
    patience: Duration,
    /// How often switches are looked at, and put right where somebody has changed them
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    audit_every: Duration,
    /// Leave what somebody else changed on a switch as it is, and only tell of it, until `ultima fabric sync`
    #[arg(long)]
    no_repair: bool,
    /// Another program for the switches, as p4c's BMv2 backend printed it
    #[arg(long, value_name = "FILE", requires = "p4info")]
    program: Option<PathBuf>,
    /// Its P4Info, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    p4info: Option<PathBuf>,

    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Serves until it is interrupted.
pub fn run(arguments: Arguments) -> Result<()> {
    let Command::Serve(serve) = arguments.command;
    if serve.die_with_parent {
        process::die_with_parent()?;
    }
    let fabric = fabric::parse(
        &super::read_text(&serve.fabric)?,
        &serve.fabric.display().to_string(),
    )?;
    let mut config = Config::new(fabric)?;
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
    if let (Some(program), Some(p4info)) = (&serve.program, &serve.p4info) {
        config.program = Program::load(program, p4info)?;
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(async {
            let controller = server::serve(config).await?;
            println!("listening on {}", controller.address());
            super::interrupted().await;
            controller.stop().await;
            Ok(())
        })
}
