//! `ultima switch trace`: shows how a running switch, or a program alone, processes a packet.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pcap_file::pcap::PcapReader;
use tokio::time::{Instant, timeout_at};
use ultima_p4runtime::text as p4text;
use ultima_p4runtime::v1::WriteRequest;
use ultima_switch::config::MAX_PORT;
use ultima_switch::engine::Limits;
use ultima_switch::proto::trace_client::TraceClient;
use ultima_switch::proto::trace_request::Packets;
use ultima_switch::proto::{Next, Pattern, TraceRequest};
use ultima_switch::trace::{Bench, BenchError, Octets, PacketTrace};

use super::program::ProgramPaths;
use super::server::{Server, TIMEOUT};
use crate::exit::{Exit, InputErrors as _};
use ultima_console::input::{name_of, read_text};
use ultima_console::output::{self, Output};
use ultima_console::units::{self, counted};

/// The largest trace document; real ones have a few mebibytes.
const MAX_DOCUMENT: usize = 64 << 20;

/// Show how a packet passes the parser, tables, actions, queues and deparser
///
/// On a running switch: traces the next packets that enter a port, or a packet that --frame or --pcap injects. With
/// --program: runs a program without a switch, with the table entries of --entries. The exit code is 1 if fewer packets
/// arrive than --count.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima switch trace --port 1 --count 3 --match 12:0800\n  \
    ultima switch trace --port 1 --pcap seen.pcap:7 -o json\n  \
    ultima switch trace --program a.json --p4info a.txtpb --entries e.txtpb --port 1 --pcap in.pcap")]
pub struct Options {
    /// Ingress port of the packet
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=i64::from(MAX_PORT)))]
    port: u16,
    #[command(flatten)]
    server: Server,
    /// Number of packets to trace
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// Trace only packets with these bytes at OFFSET; MASK selects the bits to compare
    #[arg(long = "match", value_name = "OFFSET:HEX[/MASK]", value_parser = pattern)]
    pattern: Option<Pattern>,
    /// How long to wait for packets and the end of their processing
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    wait: Duration,
    /// Inject this frame, as if it had arrived at the port
    #[arg(long, value_name = "HEX", value_parser = frame, conflicts_with_all = ["pattern", "count"])]
    frame: Option<Octets>,
    /// Inject the Nth frame of a pcap file, counted from 1 [default for N: 1]
    #[arg(long, value_name = "FILE[:N]", conflicts_with_all = ["frame", "pattern", "count"])]
    pcap: Option<String>,
    /// Program to run without a switch: the JSON file of p4c's BMv2 backend
    #[arg(long, value_name = "FILE", requires = "p4info", conflicts_with_all = ["grpc", "ca", "pattern", "count", "wait"])]
    program: Option<PathBuf>,
    /// P4Info of --program, in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    p4info: Option<PathBuf>,
    /// Entries for tables, groups and clone sessions of --program: a P4Runtime WriteRequest in text format
    #[arg(long, value_name = "FILE", requires = "program")]
    entries: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Prints the traces. The exit code is 1 if fewer packets arrived than expected.
pub fn run(options: &Options) -> Result<ExitCode> {
    let frame = match (&options.frame, &options.pcap) {
        (Some(frame), _) => Some(frame.0.clone()),
        (None, Some(file)) => Some(from_pcap(file).input()?),
        (None, None) => None,
    };
    let (program, p4info) = (options.program.as_deref(), options.p4info.as_deref());
    match ProgramPaths::given(program, p4info) {
        Some(paths) => {
            let Some(frame) = frame else {
                bail!(
                    Exit::InvalidInput.because("--program needs a packet; pass --frame or --pcap")
                );
            };
            let trace = offline(options, paths, &frame).input()?;
            print(options, &serde_json::to_vec(&trace)?)?;
            Ok(ExitCode::SUCCESS)
        }
        None => crate::runtime::runtime()?.block_on(live(options, frame)),
    }
}

fn offline(options: &Options, paths: ProgramPaths<'_>, frame: &[u8]) -> Result<PacketTrace> {
    let bench = Bench::new(paths.read()?, Limits::default());
    let mut bench = bench.map_err(|error| match error {
        BenchError::P4Info(_) => paths.in_p4info(error),
        _ => paths.in_json(error),
    })?;
    if let Some(entries) = &options.entries {
        let place = || name_of(entries);
        let request: WriteRequest = p4text::parse(&read_text(entries)?).with_context(place)?;
        bench.write(request).with_context(place)?;
    }
    Ok(bench.trace(options.port, frame)?)
}

async fn live(options: &Options, frame: Option<Vec<u8>>) -> Result<ExitCode> {
    let channel = options.server.connect().await?;
    let mut client = TraceClient::new(channel).max_decoding_message_size(MAX_DOCUMENT);
    let wait = u32::try_from(options.wait.as_millis()).unwrap_or(u32::MAX);
    let (packets, expected) = match frame {
        Some(frame) => (Packets::Frame(frame), 1),
        None => {
            let next = Next {
                count: options.count,
                pattern: options.pattern.clone(),
            };
            (Packets::Next(next), options.count)
        }
    };
    let request = TraceRequest {
        device_id: 0,
        port: u32::from(options.port),
        packets: Some(packets),
        time_limit_ms: wait.max(1),
    };
    let failed = |status| options.server.failed("traces", &status);
    // The switch itself ends the trace after `wait`; this deadline is for a switch that is gone.
    let deadline = Instant::now() + options.wait + TIMEOUT;
    let gone = |_| Exit::Unavailable.because("the switch does not answer any more");
    let answer = timeout_at(deadline, client.packets(request)).await;
    let answer = answer.map_err(gone)?.map_err(failed)?;
    let mut traces = answer.into_inner();
    let mut seen = 0;
    while let Some(trace) = timeout_at(deadline, traces.message())
        .await
        .map_err(gone)?
        .map_err(failed)?
    {
        print(options, &trace.document)?;
        seen += 1;
    }
    if seen < expected {
        let (port, wait) = (options.port, options.wait);
        let expected = counted(expected, "packet");
        eprintln!("error: {seen} of {expected} entered port {port} within {wait:?}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a trace, given as its JSON document.
fn print(options: &Options, document: &[u8]) -> Result<()> {
    let trace: PacketTrace = serde_json::from_slice(document)
        .context("the trace is invalid; the switch has another version than this program")?;
    let page = (options.output.format()).print_one(&trace, || format!("{trace}\n"))?;
    Ok(output::print(&page)?)
}

/// Reads a frame from `FILE` or `FILE:N`.
fn from_pcap(spec: &str) -> Result<Vec<u8>> {
    let (path, number) = match spec.rsplit_once(':') {
        Some((path, number)) if !Path::new(spec).exists() => {
            let number: usize = number
                .parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| {
                    anyhow!("{spec}: expected FILE or FILE:N, with frame number N from 1")
                })?;
            (path, number)
        }
        _ => (spec, 1),
    };
    let place = || path.to_owned();
    let file = File::open(path).with_context(place)?;
    let mut reader =
        PcapReader::new(file).map_err(|error| anyhow!("{path}: {error}: expected a pcap file"))?;
    let mut frames = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|error| anyhow!("{path}, frame {}: {error}", frames + 1))?;
        frames += 1;
        if frames == number {
            return Ok(packet.data.into_owned());
        }
    }
    bail!("{path}: no frame {number}; the file has {frames}")
}

/// Parses pairs of hexadecimal digits; spaces and colons are ignored.
fn octets(digits: &str) -> Option<Vec<u8>> {
    let digits: String = digits.chars().filter(|c| !matches!(c, ' ' | ':')).collect();
    Octets::parse(&digits)
        .map(|Octets(bytes)| bytes)
        .filter(|bytes| !bytes.is_empty())
}

fn frame(text: &str) -> Result<Octets, String> {
    octets(text)
        .map(Octets)
        .ok_or_else(|| "expected pairs of hexadecimal digits, such as 0200000000010800".into())
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let wrong =
        || String::from("expected OFFSET:HEX or OFFSET:HEX/MASK, such as 12:0800 or 0:01/01");
    let (offset, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (value, mask) = match rest.split_once('/') {
        Some((value, mask)) => (value, octets(mask).ok_or_else(wrong)?),
        None => (rest, Vec::new()),
    };
    let pattern = Pattern {
        offset: offset.parse().map_err(|_| wrong())?,
        value: octets(value).ok_or_else(wrong)?,
        mask,
    };
    if !pattern.mask.is_empty() && pattern.mask.len() != pattern.value.len() {
        let (mask, value) = (pattern.mask.len(), pattern.value.len());
        return Err(format!(
            "expected a mask as long as the value, {value} bytes, not {mask}"
        ));
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_hexadecimal() {
        assert_eq!(frame("02:00 ff").unwrap().0, [2, 0, 0xff]);
        for wrong in ["", "0", "0x02", "zz", "02é0"] {
            assert!(frame(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_have_an_offset_and_maybe_a_mask() {
        let parsed = pattern("12:0800").unwrap();
        assert_eq!(
            (parsed.offset, parsed.value, parsed.mask),
            (12, vec![8, 0], vec![])
        );
        let parsed = pattern("0:01/0f").unwrap();
        assert_eq!(
            (parsed.offset, parsed.value, parsed.mask),
            (0, vec![1], vec![15])
        );
        for wrong in ["0800", "x:08", "3:", "3:8", "3:08/", "-1:08"] {
            assert!(pattern(wrong).is_err(), "{wrong}");
        }
        assert!(pattern("0:0102/ff").unwrap_err().contains("2 bytes, not 1"));
    }
}
