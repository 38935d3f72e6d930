//! `ultima`: the switch, the controller, its client, the agent and the demo, in one binary.
//!
//! Errors are one line on standard error; [`exit`] has the codes.

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use tracing_subscriber::EnvFilter;
use ultima_console::error_line;

use self::exit::Exit;

mod agent;
mod command;
mod demo;
mod document;
mod exit;
mod process;

/// AllReduce for distributed training that ends on time, with its second half multicast by a P4 switch.
#[derive(Parser)]
#[command(name = "ultima", version, arg_required_else_help = true)]
#[command(after_help = format!("Example: ultima demo --loss 0.02 --workers 8\n\n{}", exit::help()))]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return error_line::refuse(&error, fail),
    };
    match log().and_then(|()| arguments.command.run()) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Prints the error that ended a command; returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    error_line::print(error);
    Exit::of(error).into()
}

/// What is logged where nothing is asked for: warnings, and which of several controllers leads.
const LOGGED: &str = "warn,ultima_controller::server::group=info";

/// Logs that to standard error, or what `ULTIMA_LOG` asks for.
fn log() -> anyhow::Result<()> {
    let filter = match std::env::var("ULTIMA_LOG") {
        Ok(filter) => EnvFilter::try_new(&filter).with_context(|| {
            format!("ULTIMA_LOG is {filter:?}; expected a level such as debug, or target=level")
        })?,
        Err(_) => EnvFilter::new(LOGGED),
    };
    let ansi = stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(ansi)
        .with_writer(stderr)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// No option of any subcommand is in another's way.
    #[test]
    fn the_command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }

    /// Commands without `-o`: what they print is of a form of its own, or says where they serve or what they wrote.
    const OF_NO_FORMAT: [&str; 10] = [
        "switch",
        "switch port add",
        "controller serve",
        "fabric chassis",
        "lab up",
        "lab exec",
        "lab down",
        "trace",
        "completions",
        "schema",
    ];

    #[test]
    fn whatever_is_found_is_printed_in_all_formats() {
        let mut without = Vec::new();
        collect(&super::Arguments::command(), "", &mut without);
        assert_eq!(without, OF_NO_FORMAT);
    }

    /// The commands below one that do something by themselves and have no `-o`.
    fn collect(of: &clap::Command, path: &str, without: &mut Vec<String>) {
        for command in of.get_subcommands().filter(|it| !it.is_hide_set()) {
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
