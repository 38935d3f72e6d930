//! `ultima wire`: an emulated link between two interfaces.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::time::{Instant, interval_at};
use ultima_switch::link::{self, LinkCounts, PORT_A, PORT_B};
use ultima_switch::proto::{Count, GetResponse, Port};
use ultima_switch::tm::WireChange;
use ultima_switch::{Attach, LinkConfig, WireConfig};

use super::wire_options::WireOptions;
use crate::exit::{Exit, InputErrors as _};
use ultima_console::output::{self, Format, Output};
use ultima_console::units;

/// Emulate a link between two interfaces: delay, loss, rate (like netem)
///
/// Forwards frames in both directions until interrupted, then prints counters. `ultima switch tm set` changes the
/// settings while the link runs, if --grpc is given: port 2 is the direction from A to B, port 1 the other one.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima wire -i veth0 -i veth1 --delay 10ms --jitter normal:1ms --loss 0.01:8\n  \
    ultima wire -i veth0 -i veth1 --a-to-b rate=100M,queue-packets=200 --stats 1s\n  \
    ultima wire -i unix:/run/a.sock -i eth1 --rate 1G --ecn packets:65 --grpc 127.0.0.1:9560")]
pub struct Arguments {
    /// End of the link: INTERFACE, unix:PATH (SOCK_SEQPACKET) or fd:NUMBER. Give exactly two: the first is A, the second B
    #[arg(short = 'i', long = "interface", value_name = "WHERE", required = true)]
    ends: Vec<Attach>,
    #[command(flatten)]
    both: WireOptions,
    /// Settings for the direction A to B only: NAME=VALUE[,NAME=VALUE...], where NAME is an option of this section
    #[arg(long, value_name = "SETTINGS", help_heading = "Queues and wires")]
    a_to_b: Option<WireChange>,
    /// Settings for the direction B to A only
    #[arg(long, value_name = "SETTINGS", help_heading = "Queues and wires")]
    b_to_a: Option<WireChange>,
    /// Seed for loss and jitter
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address for counters and settings over gRPC; port 0 selects a free one [default: none]
    #[arg(long, value_name = "ADDR", value_parser = units::listen_address)]
    grpc: Option<SocketAddr>,
    /// Folder for pcap files of the frames at each end (A is 1, B is 2)
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Print the traffic since the last time at this interval, at least 10ms
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    stats: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

/// The shortest interval of `--stats`.
const MIN_STATS: Duration = Duration::from_millis(10);

/// Runs the link until interrupted.
pub fn run(arguments: Arguments) -> Result<()> {
    let [a, b] = <[Attach; 2]>::try_from(arguments.ends)
        .ok()
        .context("expected exactly two ends, such as -i veth0 -i veth1")
        .input()?;
    if arguments.stats.is_some_and(|every| every < MIN_STATS) {
        bail!(Exit::InvalidInput.because(format!("--stats: expected at least {MIN_STATS:?}")));
    }
    let both = arguments.both.change().input()?;
    let wire = |own: Option<WireChange>| {
        let mut wire = WireConfig::default();
        both.apply(&mut wire);
        own.unwrap_or_default().apply(&mut wire);
        wire
    };
    let config = LinkConfig {
        a,
        b,
        a_to_b: wire(arguments.a_to_b),
        b_to_a: wire(arguments.b_to_a),
        seed: arguments.seed,
        grpc: arguments.grpc,
        pcap_dir: arguments.pcap,
    };
    let ends = [config.a.to_string(), config.b.to_string()];
    let report = Report {
        names: [
            format!("{} -> {}", ends[0], ends[1]),
            format!("{} -> {}", ends[1], ends[0]),
        ],
        format: arguments.output.format(),
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(async {
            let link = link::start(config).await.input()?;
            if let Some(address) = link.grpc_addr() {
                output::print(&format!("listening on {address}\n"))?;
            }
            output::print(&format!("joined {} and {}\n", ends[0], ends[1]))?;
            let counts = link::counts(&link);
            let mut last = None;
            link.run_until(async {
                last = watch(&counts, arguments.stats, &report).await;
            })
            .await?;
            if let Some(counts) = last {
                output::print(&report.total(&counts)?)?;
            }
            Ok(())
        })
}

/// Prints statistics until interrupted, and returns the last counters.
async fn watch(
    counts: &LinkCounts,
    every: Option<Duration>,
    report: &Report,
) -> Option<GetResponse> {
    let interrupted = crate::runtime::interrupted();
    tokio::pin!(interrupted);
    let mut before = counts.get().await?;
    let mut ticks = every.map(|every| interval_at(Instant::now() + every, every));
    loop {
        let tick = async {
            match &mut ticks {
                Some(ticks) => ticks.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = &mut interrupted => return counts.get().await,
            _ = tick => {}
        }
        let now = counts.get().await?;
        // The link goes on if standard output is closed.
        if let Ok(text) = report.progress(&before, &now) {
            let _ = output::print(&text);
        }
        before = now;
    }
}

/// Formats counters.
struct Report {
    /// The names of the directions A to B and B to A.
    names: [String; 2],
    format: Format,
}

/// Counters of one direction, in packets unless named bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
struct Direction {
    entered: u64,
    entered_bytes: u64,
    left: u64,
    left_bytes: u64,
    /// Dropped by the kernel because its receive buffer was full.
    overrun: u64,
    /// Rejected: longer than 65,535 bytes, or with an unsupported offload.
    refused: u64,
    queue_full: u64,
    lost: u64,
    no_peer: u64,
    oversize: u64,
    marked: u64,
    queued: u64,
    in_flight: u64,
}

fn directions(counts: &GetResponse) -> [Direction; 2] {
    let port = |number: u16| {
        let found = counts.ports.iter().find(|p| p.number == u32::from(number));
        found.cloned().unwrap_or_default()
    };
    let (a, b) = (port(PORT_A), port(PORT_B));
    [direction(&a, &b), direction(&b, &a)]
}

fn direction(from: &Port, to: &Port) -> Direction {
    let packets = |count: &Option<Count>| count.as_ref().map_or(0, |count| count.packets);
    let bytes = |count: &Option<Count>| count.as_ref().map_or(0, |count| count.bytes);
    let drops = to.drops.clone().unwrap_or_default();
    Direction {
        entered: packets(&from.entered),
        entered_bytes: bytes(&from.entered),
        left: packets(&to.left),
        left_bytes: bytes(&to.left),
        overrun: packets(&from.overrun),
        refused: packets(&from.too_long),
        queue_full: packets(&drops.queue),
        lost: packets(&drops.wire),
        no_peer: packets(&drops.no_peer),
        oversize: packets(&drops.oversize),
        marked: packets(&to.marked),
        queued: packets(&to.queued),
        in_flight: packets(&to.in_flight),
    }
}

impl Report {
    /// The counters since the start.
    fn total(&self, counts: &GetResponse) -> Result<String> {
        let directions = directions(counts);
        let table = || self.table(directions);
        self.format.print_one(&object(directions), table)
    }

    fn table(&self, directions: [Direction; 2]) -> String {
        let row = |(name, of): (&String, Direction)| {
            [
                name.clone(),
                of.entered.to_string(),
                of.left.to_string(),
                of.lost.to_string(),
                of.queue_full.to_string(),
                of.marked.to_string(),
                of.no_peer.to_string(),
                (of.oversize + of.refused).to_string(),
                of.overrun.to_string(),
                (of.queued + of.in_flight).to_string(),
            ]
        };
        let header = [
            "DIRECTION",
            "IN",
            "OUT",
            "LOST",
            "QUEUE-FULL",
            "ECN-MARKED",
            "NO-PEER",
            "TOO-LONG",
            "OVERRUN",
            "IN-FLIGHT",
        ];
        output::table(header, self.names.iter().zip(directions).map(row))
    }

    /// The traffic between two sets of counters.
    fn progress(&self, before: &GetResponse, now: &GetResponse) -> Result<String> {
        let rates = || self.rates(before, now);
        self.format.print_one(&object(directions(now)), rates)
    }

    fn rates(&self, before: &GetResponse, now: &GetResponse) -> String {
        let seconds = now.time_ns.saturating_sub(before.time_ns).max(1) as f64 / 1e9;
        let (before, now) = (directions(before), directions(now));
        let mut text = String::new();
        for ((name, before), now) in self.names.iter().zip(before).zip(now) {
            let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{name}: {:.0} packets/s, {:.3} Mbit/s; {} lost, {} dropped by the queue, {} queued",
                rate(before.left, now.left),
                rate(before.left_bytes, now.left_bytes) * 8.0 / 1e6,
                now.lost.saturating_sub(before.lost),
                now.queue_full.saturating_sub(before.queue_full),
                now.queued,
            );
        }
        text
    }
}

fn object([a_to_b, b_to_a]: [Direction; 2]) -> serde_json::Value {
    serde_json::json!({ "a_to_b": a_to_b, "b_to_a": b_to_a })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(time_ns: u64, entered: u64, left: u64) -> GetResponse {
        let count = |packets| {
            Some(Count {
                packets,
                bytes: packets * 125,
                by_key: Vec::new(),
            })
        };
        let port = |number, entered, left| Port {
            number,
            entered: count(entered),
            left: count(left),
            ..Port::default()
        };
        GetResponse {
            device_id: 1,
            time_ns,
            ports: vec![port(1, entered, 1), port(2, 3, left)],
            ..GetResponse::default()
        }
    }

    #[test]
    fn counters_of_a_direction_combine_both_ends() {
        let mut report = Report {
            names: ["a -> b".to_owned(), "b -> a".to_owned()],
            format: Format::Table,
        };
        let (before, now) = (counts(0, 0, 0), counts(500_000_000, 2000, 1000));
        let total = report.total(&now).expect("text");
        let cells: Vec<Vec<&str>> = (total.lines().skip(1))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(cells[0][..6], ["a", "->", "b", "2000", "1000", "0"]);
        assert_eq!(cells[1][..6], ["b", "->", "a", "3", "1", "0"]);
        let progress = report.progress(&before, &now).expect("text");
        assert!(
            progress.starts_with("a -> b: 2000 packets/s, 2.000 Mbit/s; 0 lost"),
            "{progress}"
        );
        report.format = Format::Json;
        let total = report.total(&now).expect("text");
        let total: serde_json::Value = serde_json::from_str(&total).expect("JSON");
        assert_eq!(total["a_to_b"]["left"], 1000);
        assert_eq!(total["b_to_a"]["entered_bytes"], 375);
    }
}
