//! The command `stf`: runs p4c's packet tests (Simple Test Framework) over P4Runtime and a target's ports.
//!
//! [`case`] finds and runs tests. [`script`] parses them, [`session`] executes their lines on a [`target`], and
//! [`report`] counts verdicts.

use std::io::{self, Write as _, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

mod case;
mod client;
mod cursor;
mod ends;
mod entry;
mod interface;
mod literal;
mod lookup;
// The switch's own AF_PACKET sockets; no other crate needs them, so the switch does not export them.
#[path = "../../switch/src/port/packet_socket.rs"]
#[allow(dead_code, reason = "the switch uses more of it")]
mod packet_socket;
mod pattern;
mod replication;
mod report;
mod script;
mod session;
mod target;
#[cfg(test)]
mod tests;

use case::FolderError;
use report::Tally;
use target::{Target, TargetError};

/// Runs the packet tests of a folder and counts their verdicts.
///
/// A test is three files: NAME.json and NAME.p4info.txtpb, written by p4c-bm2-ss, and NAME.stf. Each test gets an
/// embedded switch of its own with the ports that it names. A test with an unknown command is skipped. Exit code: 0 if no
/// test failed, 1 if a test failed, 2 for bad input.
#[derive(Parser)]
#[command(name = "stf")]
#[command(after_help = "Examples:\n  \
    stf switch/tests/programs\n  \
    stf --grpc 127.0.0.1:9559 --device-id 0 -i 0@far0 -i 1@far1 switch/tests/programs")]
struct Arguments {
    /// Folder with tests
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Run the tests on the P4Runtime target at this address instead of embedded switches
    #[arg(long, value_name = "ADDR", requires = "ports")]
    grpc: Option<SocketAddr>,
    /// Interface at the far end of a port of the target; tests with other ports are skipped
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "PORT@IFACE",
        requires = "grpc"
    )]
    #[arg(value_parser = port)]
    ports: Vec<(u16, String)>,
    /// P4Runtime device id of the target
    #[arg(long, value_name = "ID", default_value_t = 1, requires = "grpc")]
    device_id: u64,
    /// Time without a frame after which a test counts as finished
    #[arg(
        long,
        value_name = "MILLISECONDS",
        default_value_t = 200,
        requires = "grpc"
    )]
    quiet: u64,
}

/// Why a run has no result.
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
        print(&report::line(&case.name, &verdict))?;
        tally.add(&verdict);
    }
    print(&tally.to_string())?;
    Ok(tally)
}

/// Prints a line to standard output.
fn print(line: &str) -> Result<(), InputError> {
    writeln!(stdout(), "{line}").map_err(InputError::Output)
}

/// Parses `PORT@IFACE`.
fn port(text: &str) -> Result<(u16, String), String> {
    let (port, interface) = text
        .split_once('@')
        .ok_or("expected PORT@IFACE, such as 0@far0")?;
    let number = port
        .parse()
        .map_err(|_| format!("`{port}` is not a port number, expected 0 to 65535"))?;
    Ok((number, interface.to_owned()))
}
