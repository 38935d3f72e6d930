//! The `ultima` binary: switch, controller, control client, agent, labs and demo.
//!
//! Every error is one line on standard error; [`exit`] defines the exit codes.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use tracing_subscriber::EnvFilter;

use self::exit::Exit;

mod agent;
mod command;
mod demo;
mod document;
mod exit;
mod output;
mod policies;
mod process;
mod units;

/// AllReduce for distributed training that ends on time; P4 switches multicast its second half
#[derive(Parser)]
#[command(name = "ultima", version, arg_required_else_help = true)]
#[command(after_help = format!("\
Examples:
  ultima demo                             train a small model through a P4 switch, on this machine
  ultima lab up topologies/star4.yaml     run a fabric in network namespaces
  ultima job create -f job.yaml           create a job at a running controller

Environment:
  ULTIMA_CONTROLLER   address of the controller, as --controller
  ULTIMA_LOG          log level, such as debug or ultima_controller=debug [default: warn]

{}", exit::help()))]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match log().and_then(|()| arguments.command.run()) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Prints an error and returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", output::visible(&one_line(error)));
    Exit::of(error).into()
}

/// The default log filter: warnings, and changes of the leader among several controllers.
const DEFAULT_LOG: &str = "warn,ultima_controller::server::group=info";

/// Starts logging to standard error, filtered by `ULTIMA_LOG`.
fn log() -> anyhow::Result<()> {
    let filter = match std::env::var("ULTIMA_LOG") {
        Ok(filter) => EnvFilter::try_new(&filter).with_context(|| {
            format!("ULTIMA_LOG is {filter:?}; expected a level such as debug, or target=level")
        })?,
        Err(_) => EnvFilter::new(DEFAULT_LOG),
    };
    let ansi = stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(ansi)
        .with_writer(stderr)
        .init();
    Ok(())
}

/// Joins an error and its causes, and skips a cause whose text is already there.
fn one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |line, cause| match cause.to_string() {
            cause if line.is_empty() => cause,
            cause if line.contains(&cause) => line,
            cause => format!("{line}: {cause}"),
        })
}

/// Prints clap's help and version as they are, and its errors in one line like all others.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => match error.print() {
            Ok(()) if error.use_stderr() => Exit::BadInput.into(),
            Ok(()) => Exit::Done.into(),
            // The reader has closed the pipe (`ultima --help | head`).
            Err(lost) if lost.kind() == std::io::ErrorKind::BrokenPipe => Exit::Done.into(),
            Err(lost) => fail(&output::Unprinted::from(lost).into()),
        },
        _ => {
            eprintln!("{}", output::visible(&line(error)));
            Exit::BadInput.into()
        }
    }
}

/// One of clap's errors as one line.
fn line(error: &clap::Error) -> String {
    let text = error.to_string();
    let wanted = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let line: Vec<&str> = wanted
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    let line = line.join(" ");
    match error.get(ContextKind::InvalidArg) {
        // clap takes a negative value for an unknown option.
        Some(ContextValue::String(unknown))
            if error.kind() == ErrorKind::UnknownArgument
                && unknown
                    .trim_start_matches('-')
                    .starts_with(|it: char| it.is_ascii_digit()) =>
        {
            format!("{line}; no option takes a negative value")
        }
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// clap's own check: no two options of a command conflict.
    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }

    /// Commands without `-o`: their output has a format of its own, or is one status line.
    const WITHOUT_OUTPUT: [&str; 11] = [
        "switch",
        "switch port add",
        "controller serve",
        "fabric chassis",
        "lab up",
        "lab exec",
        "lab down",
        "sim run",
        "trace",
        "completions",
        "schema",
    ];

    #[test]
    fn every_other_command_has_the_output_option() {
        let mut without = Vec::new();
        collect(&super::Arguments::command(), "", &mut without);
        assert_eq!(without, WITHOUT_OUTPUT);
    }

    /// Collects the runnable subcommands of `parent` that have no `-o`.
    fn collect(parent: &clap::Command, path: &str, without: &mut Vec<String>) {
        for command in parent.get_subcommands().filter(|it| !it.is_hide_set()) {
            let path = format!("{path} {}", command.get_name());
            let has_formats = command
                .get_arguments()
                .any(|it| it.get_short() == Some('o'));
            if !command.is_subcommand_required_set() && !has_formats {
                without.push(path.trim_start().to_owned());
            }
            collect(command, &path, without);
        }
    }
}
