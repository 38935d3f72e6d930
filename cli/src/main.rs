//! The `ultima` binary: switch, controller, control client, agent, labs, demo and bench.
//!
//! Every error is one line on standard error; [`exit`] defines the exit codes.

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use ultima_console::error_line;

use self::exit::{Exit, InputErrors as _};

mod agent;
mod bench;
mod command;
mod context;
mod controller_address;
mod demo;
mod exit;
mod listing;
mod names;
mod objects;
mod process;
mod runtime;
mod text;
mod view;
mod which;

/// AllReduce for distributed training that ends on time; P4 switches multicast its second half
#[derive(Parser)]
#[command(name = "ultima", version, arg_required_else_help = true)]
#[command(after_help = format!("\
Examples:
  ultima demo                             train a small model through a P4 switch, on this machine
  ultima bench --quick                    compare it with Gloo and Open MPI, in labs
  ultima lab up topologies/star4.yaml     run a fabric in network namespaces
  ultima job create -f job.yaml           create a job at a running controller

Environment:
  ULTIMA_CONTROLLER   address of the controller, as --controller
  ULTIMA_CONTEXT      context of the configuration file, as --context
  ULTIMA_CONFIG       the configuration file [default: ~/.config/ultima/config.yaml]
  ULTIMA_TLS_CA, ULTIMA_TLS_CERT, ULTIMA_TLS_KEY
                      files for TLS, as --tls-ca, --tls-cert and --tls-key
  ULTIMA_LOG          log level, such as debug or ultima_controller=debug
                      [default: {DEFAULT_LOG}]

{}", exit::help()))]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    command::complete_if_asked();
    let line = command_line(std::env::args_os().collect());
    let group = line.get(1).cloned();
    let arguments = match Arguments::try_parse_from(line) {
        Ok(arguments) => arguments,
        Err(mut error) => {
            let verb = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(verb)) => {
                    command::instead_of(verb, group.as_ref().and_then(|it| it.to_str()))
                }
                _ => None,
            };
            if let Some(ours) = verb {
                let ours = ContextValue::Strings(vec![ours.to_owned()]);
                error.insert(ContextKind::SuggestedSubcommand, ours);
            }
            return error_line::refuse(&error, fail);
        }
    };
    let log = match arguments.command.starts_its_log() {
        true => Ok(()),
        false => log(),
    };
    match log.input().and_then(|()| arguments.command.run()) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// The command line. Under BMv2's name, the binary has BMv2's command line.
fn command_line(mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| name == command::SIMPLE_SWITCH_GRPC) {
        words.insert(1, "simple-switch-grpc".into());
    }
    let options = 1..1 + address_words(&words[1..]);
    let options: Vec<OsString> = words.drain(options).collect();
    if !options.is_empty() {
        let at = 1 + command_words(&words[1..]);
        words.splice(at..at, options);
    }
    words
}

/// The options of every command that talks to a controller. As kubectl's, they may be before the command.
const OF_ADDRESS: [&str; 5] = [
    "--controller",
    "--context",
    "--tls-ca",
    "--tls-cert",
    "--tls-key",
];

/// The number of words at the beginning that are such options, with their values.
fn address_words(words: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(word) = words.get(count).and_then(|word| word.to_str()) {
        count += match word.split_once('=') {
            Some((option, _)) if OF_ADDRESS.contains(&option) => 1,
            None if OF_ADDRESS.contains(&word) => 2,
            _ => break,
        };
    }
    count.min(words.len())
}

/// The number of words at the beginning that name a command.
fn command_words(words: &[OsString]) -> usize {
    let mut command = Arguments::command();
    let is_command = |word: &&OsString| {
        let found = command.find_subcommand(word).cloned();
        let is_found = found.is_some();
        command = found.unwrap_or_default();
        is_found
    };
    words.iter().take_while(is_command).count()
}

/// Prints an error and returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    error_line::print(error);
    Exit::of(error).into()
}

/// The default log filter: warnings, and changes of the leader among several controllers.
const DEFAULT_LOG: &str = "warn,ultima_controller::server::candidate=info";

/// Starts logging to standard error, filtered by `ULTIMA_LOG`.
fn log() -> anyhow::Result<()> {
    start_log(DEFAULT_LOG, stderr, stderr().is_terminal())
}

/// Starts logging to `writer`, filtered by `ULTIMA_LOG` or, if that is not set, by `default`. `ansi`: with colours.
fn start_log<W>(default: &str, writer: W, ansi: bool) -> anyhow::Result<()>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = match std::env::var("ULTIMA_LOG") {
        Ok(text) => log_filter(&text)?,
        Err(_) => default.parse()?,
    };
    let lines = fmt::layer().with_ansi(ansi).with_writer(writer);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    Ok(())
}

/// Parses `ULTIMA_LOG`. A word that is no level is not taken for a target, as [`Targets`] would.
fn log_filter(text: &str) -> anyhow::Result<Targets> {
    let is_complete =
        |part: &str| part.is_empty() || part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let filter = text.split(',').all(is_complete).then(|| text.parse().ok());
    filter.flatten().with_context(|| {
        format!(
            "ULTIMA_LOG is {text:?}; expected a level (off, error, warn, info, debug) or TARGET=LEVEL, \
             such as ultima_controller=debug, separated by commas"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory as _;

    /// clap's own check: no two options of a command conflict.
    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }

    #[test]
    fn under_bmv2_s_name_the_command_line_is_bmv2_s() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect();
        for (line, expected) in [
            (
                "/usr/bin/simple_switch_grpc --no-p4",
                "/usr/bin/simple_switch_grpc simple-switch-grpc --no-p4",
            ),
            ("ultima switch", "ultima switch"),
            (
                "simple_switch_grpc/ultima demo",
                "simple_switch_grpc/ultima demo",
            ),
        ] {
            let expected: Vec<OsString> = words(expected);
            assert_eq!(super::command_line(words(line)), expected);
        }
    }

    #[test]
    fn options_of_the_address_may_be_before_the_command() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect();
        for (line, expected) in [
            ("u --context lab get jobs -w", "u get --context lab jobs -w"),
            ("u --context=lab job list", "u job list --context=lab"),
            (
                "u --tls-ca a --controller b controller status",
                "u controller status --tls-ca a --controller b",
            ),
            ("u --context", "u --context"),
            ("u --help", "u --help"),
        ] {
            let expected: Vec<OsString> = words(expected);
            assert_eq!(super::command_line(words(line)), expected);
        }
    }

    /// Commands without `-o`: their output has a format of its own, or is one status line.
    const WITHOUT_OUTPUT: [&str; 18] = [
        "bench",
        "switch",
        "switch port add",
        "simple-switch-grpc",
        "controller serve",
        "certs init",
        "certs issue",
        "describe",
        "fabric chassis",
        "wait",
        "lab up",
        "lab exec",
        "lab down",
        "trace",
        "completions",
        "man",
        "explain",
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
