//! The subcommands.

use std::process::ExitCode;

use anyhow::Result;

mod apply;
mod certs;
mod chassis;
mod completions;
mod controller;
mod controller_state;
mod controller_status;
mod creation;
mod delete;
mod deletion;
mod describe;
pub mod desired;
mod dot;
mod events;
mod explain;
mod fabric;
pub mod get;
mod job;
mod jobs_of;
mod lab;
mod membership;
mod outcome;
mod poll_option;
mod ports;
mod refusal;
pub mod resume;
mod schema;
mod simple_switch_grpc;
mod switch;
mod telemetry;
mod trace;
mod traffic_file;
mod wait;
mod wire;
mod wire_options;

pub use completions::complete_if_asked;
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
    Get(get::Arguments),
    Describe(describe::Arguments),
    Events(events::Arguments),
    Delete(delete::Arguments),
    Fabric(fabric::Arguments),
    Job(job::Arguments),
    Apply(apply::Arguments),
    Wait(wait::Arguments),
    Agent(crate::agent::Options),
    Lab(lab::Arguments),
    #[command(hide = true)]
    LabTraffic(lab::TrafficArguments),
    Telemetry(telemetry::Arguments),
    Trace(trace::Arguments),
    Completions(completions::Arguments),
    Man(completions::ManArguments),
    Explain(explain::Arguments),
    Schema(schema::Arguments),
    #[command(hide = true)]
    DemoWorker(crate::demo::WorkerArguments),
}

/// The commands for verbs of kubectl that `ultima`, or a `group` of its commands, does not have.
pub fn instead_of(verb: &str, group: Option<&str>) -> Option<&'static str> {
    Some(match verb {
        "describe" if group == Some("job") => "ultima describe job/NAME",
        "events" if group == Some("job") => "ultima events job/NAME",
        "describe" => "ultima describe KIND/NAME",
        "cordon" | "drain" => "fabric drain",
        "uncordon" | "undrain" => "fabric undrain",
        "create" | "run" => "job create",
        "edit" | "patch" | "replace" => "apply",
        "scale" => "job resize",
        "rollout" => "wait",
        "api-resources" => "get",
        "diff" => "apply --dry-run",
        "logs" => "events",
        "top" => "telemetry",
        "config" => "get --context NAME",
        "cluster-info" => "controller status",
        "version" => "--version",
        _ => return None,
    })
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
            Command::Describe(arguments) => return describe::run(&arguments),
            Command::Get(arguments) => return get::run(&arguments),
            Command::Events(arguments) => return events::run(&arguments),
            Command::Delete(arguments) => return delete::run(&arguments),
            Command::Fabric(arguments) => return fabric::run(arguments),
            Command::Job(arguments) => return job::run(arguments),
            Command::Apply(arguments) => return apply::run(&arguments),
            Command::Wait(arguments) => return wait::run(&arguments),
            Command::Agent(options) => return crate::agent::run(&options),
            Command::Lab(arguments) => return lab::run(arguments),
            Command::LabTraffic(arguments) => lab::run_traffic(arguments),
            Command::Telemetry(arguments) => return telemetry::run(arguments),
            Command::Trace(arguments) => trace::run(&arguments),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Man(arguments) => completions::write_man_pages(&arguments),
            Command::Explain(arguments) => explain::run(&arguments),
            Command::Schema(arguments) => schema::run(&arguments),
            Command::DemoWorker(arguments) => return crate::demo::work(arguments),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
