//! `ultima`: the switch, the controller, its client and the demo, in one binary.
//!
//! Exit codes: 0 done; 1 the work ran and failed; 2 bad input, or something that is needed does not
//! answer; 130 interrupted. Errors are one line on standard error.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

mod command;
mod demo;
mod process;
mod units;

/// AllReduce for distributed training that ends on time, with its second half multicast by a P4 switch.
#[derive(Parser)]
#[command(name = "ultima", version, arg_required_else_help = true)]
#[command(after_help = "Example: ultima demo --loss 0.02 --workers 8")]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let log = tracing_subscriber::EnvFilter::try_from_env("ULTIMA_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();

    match arguments.command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Help and version as clap prints them; its errors in one line, like all others.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => {
            let text = error.to_string();
            let wanted = text
                .lines()
                .map(str::trim)
                .take_while(|line| !line.starts_with("Usage:"));
            let line: Vec<&str> = wanted
                .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
                .collect();
            eprintln!("{}", line.join(" "));
            ExitCode::from(2)
        }
    }
}
