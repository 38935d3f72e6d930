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

/// What `ultima` can do.
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

/// The longest text that is read, in bytes: what is longer was not meant, and may have no end.
const LONGEST: usize = 64 << 20;

/// A text file's content; `-` is standard input.
fn read_text(path: &Path) -> Result<String> {
    let text = match path == Path::new("-") {
        true => text_of(io::stdin().lock(), LONGEST),
        false => fs::File::open(path).and_then(|file| text_of(file, LONGEST)),
    };
    text.with_context(|| name_of(path))
}

/// What `source` holds, of `longest` bytes at most.
fn text_of(source: impl Read, longest: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(longest as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > longest {
        let why = format!(
            "it is longer than {} MiB, and no text that is read here is",
            longest >> 20
        );
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let mut line = right.split(|byte| *byte == b'\n');
        let (line, column) = (line.clone().count(), line.next_back().map_or(0, characters) + 1);
        let why = format!("line {line}, column {column}: what stands there is no UTF-8; save the file as UTF-8 text");
        io::Error::new(ErrorKind::InvalidData, why)
    })
}

/// How many characters a line of UTF-8 has.
fn characters(line: &[u8]) -> usize {
    String::from_utf8_lossy(line).chars().count()
}

/// What errors call a file.
fn name_of(path: &Path) -> String {
    match path == Path::new("-") {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// What runs a command that asks others and waits for them, on its own thread.
///
/// # Errors
/// The kernel's, that there is no more of what it takes.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Waits for Ctrl-C or a termination signal.
///
/// # Panics
/// If the kernel lets no handler be set, without which this process could not end in order.
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
    fn texts_are_utf8_and_end() {
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
        assert!(endless.starts_with("it is longer than 16 MiB"), "{endless}");
    }
}
