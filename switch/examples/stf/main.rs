//! Runs a folder of packet tests, in the language of p4c's own (STF), on the embedded switch or on
//! any other v1model target that serves P4Runtime.

use std::io::{self, Write as _, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

mod suite;

use suite::case::{self, FolderError};
use suite::report::{self, Tally};
use suite::target::{Target, TargetError};

/// Runs packet tests and counts how many pass.
///
/// A test is NAME.json and NAME.p4info.txtpb, as p4c-bm2-ss prints them, and NAME.stf. Each one
/// gets an embedded switch of its own, with the ports that it speaks of. A test with a line that is
/// not understood is skipped. Exit code: 0 when none failed, 1 when one did, 2 for bad input.
#[derive(Parser)]
#[command(name = "stf")]
#[command(after_help = "Examples:\n  \
    stf tests/programs\n  \
    stf --grpc 127.0.0.1:9559 --device-id 0 -i 0@far0 -i 1@far1 tests/programs")]
struct Arguments {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Run the tests on the target that serves P4Runtime here, instead of on embedded switches
    #[arg(long, value_name = "ADDR", requires = "ports")]
    grpc: Option<SocketAddr>,
    /// Far end of one of the target's ports; tests with other ports are skipped
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "PORT@IFACE",
        requires = "grpc"
    )]
    #[arg(value_parser = port)]
    ports: Vec<(u16, String)>,
    /// The target's P4Runtime device id
    #[arg(long, value_name = "ID", default_value_t = 1, requires = "grpc")]
    device_id: u64,
    /// How long the target is silent when it has nothing more to send
    #[arg(
        long,
        value_name = "MILLISECONDS",
        default_value_t = 200,
        requires = "grpc"
    )]
    quiet: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
enum InputError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("standard output: {0}")]
    Output(io::Error),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(tally) => ExitCode::from(u8::from(tally.failed > 0)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<Tally, InputError> {
    let cases = case::cases(&arguments.folder)?;
    let mut target = match arguments.grpc {
        None => Target::Embedded,
        Some(grpc) => {
            let quiet = Duration::from_millis(arguments.quiet);
            Target::running(grpc, arguments.device_id, &arguments.ports, quiet).await?
        }
    };
    let mut tally = Tally::default();
    for case in cases {
        let verdict = case.run(&mut target).await;
        say(&report::line(&case.name, &verdict))?;
        tally.add(&verdict);
    }
    say(&tally.to_string())?;
    Ok(tally)
}

/// A line on standard output.
fn say(line: &str) -> Result<(), InputError> {
    writeln!(stdout(), "{line}").map_err(InputError::Output)
}

/// `PORT@IFACE`.
fn port(text: &str) -> Result<(u16, String), String> {
    let (port, interface) = text.split_once('@').ok_or("expected PORT@INTERFACE")?;
    let number = port
        .parse()
        .map_err(|_| format!("`{port}` is not a port number"))?;
    Ok((number, interface.to_owned()))
}
