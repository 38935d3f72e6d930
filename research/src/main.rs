//! `ultima-research`: simulations and studies. A binary of its own, so that plotters and the simulator do not lengthen the
//! build of `ultima`.

use std::process::ExitCode;

use clap::Parser;
use ultima_console::error_line;
use ultima_console::output::Unprinted;

mod chart;
mod sim;
mod study;

/// Simulate AllReduce algorithms on thousands of ranks, and measure the cost of choices of the transport
#[derive(Parser)]
#[command(name = "ultima-research", version, arg_required_else_help = true)]
#[command(
    after_help = "Example: ultima-research sim --algorithm tar --ranks 64 --tail 3\n\n\
                  Exit codes:\n    0  done\n    1  standard output cannot be written\n    2  bad input; nothing was done"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Sim(Box<sim::Arguments>),
    Study(study::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return error_line::refuse(&error, fail),
    };
    let done = match &arguments.command {
        Command::Sim(arguments) => sim::run(arguments),
        Command::Study(arguments) => study::run(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints the error that ended a command; returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    error_line::print(error);
    match error.is::<Unprinted>() {
        true => ExitCode::FAILURE,
        false => 2.into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn no_option_conflicts_with_another() {
        super::Arguments::command().debug_assert();
    }
}
