//! The subcommands.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

mod apply;
mod chart;
mod chassis;
mod completions;
mod controller;
pub mod controller_address;
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
mod sim;
mod study;
mod switch;
mod telemetry;
mod trace;
mod traffic_file;
mod wait;
mod wire;
mod wire_options;

/// The subcommands of `ultima`, in the order of `--help`.
#[derive(clap::Subcommand)]
pub enum Command {
    Demo(Box<crate::demo::Options>),
    Switch(Box<switch::Arguments>),
    Wire(Box<wire::Arguments>),
    Controller(controller::Arguments),
    Fabric(fabric::Arguments),
    Job(job::Arguments),
    Apply(apply::Arguments),
    Agent(crate::agent::Options),
    Lab(lab::Arguments),
    #[command(hide = true)]
    LabTraffic(lab::TrafficArguments),
    Telemetry(telemetry::Arguments),
    Sim(Box<sim::Arguments>),
    Study(study::Arguments),
    Trace(trace::Arguments),
    Completions(completions::Arguments),
    Schema(schema::Arguments),
    #[command(hide = true)]
    DemoWorker(crate::demo::WorkerArguments),
}

impl Command {
    /// Runs the subcommand to its end.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Command::Demo(options) => return crate::demo::run(&options),
            Command::Switch(arguments) => return switch::run(*arguments),
            Command::Wire(arguments) => wire::run(*arguments),
            Command::Controller(arguments) => return controller::run(arguments),
            Command::Fabric(arguments) => return fabric::run(arguments),
            Command::Job(arguments) => return job::run(arguments),
            Command::Apply(arguments) => return apply::run(&arguments),
            Command::Agent(options) => return crate::agent::run(&options),
            Command::Lab(arguments) => return lab::run(arguments),
            Command::LabTraffic(arguments) => lab::run_traffic(arguments),
            Command::Telemetry(arguments) => return telemetry::run(arguments),
            Command::Sim(arguments) => sim::run(&arguments),
            Command::Study(arguments) => study::run(&arguments),
            Command::Trace(arguments) => trace::run(&arguments),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Schema(arguments) => schema::run(&arguments),
            Command::DemoWorker(arguments) => return crate::demo::work(arguments),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The largest text file, in bytes. A longer one is a mistake, or endless (`/dev/zero`).
const MAX_TEXT: usize = 64 << 20;

/// Reads a text file; `-` is standard input.
fn read_text(path: &Path) -> Result<String> {
    let text = match path == Path::new("-") {
        true => text_of(io::stdin().lock(), MAX_TEXT),
        false => fs::File::open(path).and_then(|file| text_of(file, MAX_TEXT)),
    };
    text.with_context(|| name_of(path))
}

/// Reads `source` to its end, at most `max` bytes.
fn text_of(source: impl Read, max: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        let why = format!("larger than {} MiB, the limit for input files", max >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let mut line = right.split(|byte| *byte == b'\n');
        let (line, column) = (
            line.clone().count(),
            line.next_back().map_or(0, characters) + 1,
        );
        let why = format!("line {line}, column {column}: not UTF-8; save the file as UTF-8 text");
        io::Error::new(ErrorKind::InvalidData, why)
    })
}

/// The number of characters in a line of UTF-8.
fn characters(line: &[u8]) -> usize {
    String::from_utf8_lossy(line).chars().count()
}

/// A file's name in error messages.
fn name_of(path: &Path) -> String {
    match path == Path::new("-") {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// A single-threaded runtime for commands that talk to servers.
///
/// # Errors
/// The kernel is out of resources.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Waits for Ctrl-C or a termination signal.
///
/// # Panics
/// If the kernel does not let a signal handler be set.
pub async fn interrupted() {
    let signal = |kind| signal(kind).expect("signal handlers can be set");
    let mut interrupt = signal(SignalKind::interrupt());
    let mut terminate = signal(SignalKind::terminate());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_utf8_and_of_limited_size() {
        let said = |bytes: &[u8]| text_of(bytes, 16).map_err(|error| error.to_string());
        assert_eq!(said("ä: [ö]\n".as_bytes()), Ok("ä: [ö]\n".to_owned()));
        assert_eq!(said(b""), Ok(String::new()));
        for (bytes, place) in [
            (&b"\xff\xfeu"[..], "line 1, column 1: "),
            (b"a\nb\n\xc3\xa4\xe4", "line 3, column 2: "),
        ] {
            let wrong = said(bytes).unwrap_err();
            assert!(wrong.starts_with(place), "{wrong}");
        }
        assert!(said(&[b'a'; 16]).is_ok());
        let endless = text_of(io::repeat(0), 16 << 20).unwrap_err().to_string();
        assert!(endless.starts_with("larger than 16 MiB"), "{endless}");
    }
}
