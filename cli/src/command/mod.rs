//! The subcommands.

use std::io;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Result;
use ultima_console::output::{self, Unprinted};

mod apply;
mod certs;
mod chassis;
mod completions;
mod controller;
mod controller_state;
mod controller_status;
mod creation;
mod deletion;
mod desired;
mod dot;
mod fabric;
mod job;
mod lab;
mod membership;
mod ports;
mod refusal;
mod resume;
mod schema;
mod simple_switch_grpc;
mod switch;
mod telemetry;
mod trace;
mod traffic_file;
mod wait;
mod wire;
mod wire_options;

pub use simple_switch_grpc::NAME as SIMPLE_SWITCH_GRPC;

/// The subcommands of `ultima`, in the order of `--help`.
#[derive(clap::Subcommand)]
pub enum Command {
    Demo(Box<crate::demo::Options>),
    Bench(Box<crate::bench::Options>),
    Switch(Box<switch::Arguments>),
    SimpleSwitchGrpc(Box<simple_switch_grpc::Arguments>),
    Wire(Box<wire::Arguments>),
    Controller(controller::Arguments),
    Certs(certs::Arguments),
    Fabric(fabric::Arguments),
    Job(job::Arguments),
    Apply(apply::Arguments),
    Agent(crate::agent::Options),
    Lab(lab::Arguments),
    #[command(hide = true)]
    LabTraffic(lab::TrafficArguments),
    Telemetry(telemetry::Arguments),
    Trace(trace::Arguments),
    Completions(completions::Arguments),
    Schema(schema::Arguments),
    #[command(hide = true)]
    DemoWorker(crate::demo::WorkerArguments),
}

impl Command {
    /// True if the subcommand itself starts logging, because its options say where to.
    pub fn starts_its_log(&self) -> bool {
        matches!(self, Command::SimpleSwitchGrpc(_))
    }

    /// Runs the subcommand to its end.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Command::Demo(options) => return crate::demo::run(&options),
            Command::Bench(options) => return crate::bench::run(&options),
            Command::Switch(arguments) => return switch::run(*arguments),
            Command::SimpleSwitchGrpc(arguments) => return simple_switch_grpc::run(*arguments),
            Command::Wire(arguments) => wire::run(*arguments),
            Command::Controller(arguments) => return controller::run(arguments),
            Command::Certs(arguments) => certs::run(&arguments),
            Command::Fabric(arguments) => return fabric::run(arguments),
            Command::Job(arguments) => return job::run(arguments),
            Command::Apply(arguments) => return apply::run(&arguments),
            Command::Agent(options) => return crate::agent::run(&options),
            Command::Lab(arguments) => return lab::run(arguments),
            Command::LabTraffic(arguments) => lab::run_traffic(arguments),
            Command::Telemetry(arguments) => return telemetry::run(arguments),
            Command::Trace(arguments) => trace::run(&arguments),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Schema(arguments) => schema::run(&arguments),
            Command::DemoWorker(arguments) => return crate::demo::work(arguments),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints `text` without blocking the runtime's other tasks: a slow reader, such as a pager, delays only the caller. For
/// commands under [`run_beside`].
async fn print_beside(text: String) -> Result<ControlFlow<()>, Unprinted> {
    let printed = tokio::task::spawn_blocking(move || output::print_on(&text)).await;
    printed.map_err(io::Error::other)?
}

/// Runs a command that prints through [`print_beside`], and does not wait for output that its reader no longer reads.
///
/// # Errors
/// The command's.
fn run_beside<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = crate::runtime::runtime()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}
