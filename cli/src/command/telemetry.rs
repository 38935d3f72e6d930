//! `ultima telemetry`: what jobs lose, where and why.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tonic::Code;
use ultima_controller::api;
use ultima_controller::client::{Client, ClientError};

use super::controller_address::ControllerAddress;
use crate::document;
use crate::exit::Exit;
use crate::output::{self, Format, Output, table};

/// Lossy operations that tables show of each job; `-o json` has all that the controller keeps.
const SHOWN: usize = 20;

/// Shows what jobs lose in the fabric, where and why
#[derive(clap::Args)]
#[command(after_help = "Example: ultima telemetry train --watch")]
pub struct Arguments {
    /// The job's name; without it all jobs
    job: Option<String>,
    /// Show it anew every second, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    at: ControllerAddress,
}

/// Asks the controller and prints what it says. A watch ends with SIGINT or SIGTERM, or when nobody reads it any more.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let client = Client::connect(&arguments.at.controller).await?;
            if !arguments.watch {
                output::print(&text(&client, &arguments).await?)?;
                return Ok(ExitCode::SUCCESS);
            }
            tokio::select! {
                ended = watch(&client, &arguments) => ended.map(|()| ExitCode::SUCCESS),
                () = super::interrupted() => Ok(Exit::Interrupted.into()),
            }
        })
}

async fn watch(client: &Client, arguments: &Arguments) -> Result<()> {
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        let text = text(client, arguments).await?;
        if let ControlFlow::Break(()) = output::print_on(&text)? {
            return Ok(());
        }
    }
}

async fn text(client: &Client, arguments: &Arguments) -> Result<String> {
    let names = match &arguments.job {
        Some(name) => vec![name.clone()],
        None => client
            .jobs()
            .await?
            .into_iter()
            .map(|job| job.name)
            .collect(),
    };
    let mut jobs = Vec::new();
    for name in names {
        match client.telemetry(&name).await {
            // Deleted since it was listed.
            Err(ClientError::Refused {
                code: Code::NotFound,
                ..
            }) if arguments.job.is_none() => {}
            answer => jobs.push((name, answer?)),
        }
    }
    let all = || {
        let documents = jobs.iter().map(|(name, it)| document::telemetry(name, it));
        json!({ "version": 1, "jobs": documents.collect::<Vec<_>>() })
    };
    match (arguments.output.format(), jobs.is_empty()) {
        (Format::Table, true) => Ok("there are no jobs\n".to_owned()),
        (Format::Table, false) => Ok(jobs.iter().map(|(name, it)| tables(name, it)).collect()),
        // A line each, so that a watch's are told apart.
        (Format::Json, _) => Ok(format!("{}\n", all())),
        (Format::Yaml, _) => Ok(format!("---\n{}", Format::Yaml.print(&all(), String::new)?)),
    }
}

fn packets(count: &Option<api::Count>) -> u64 {
    count.map_or(0, |count| count.packets)
}

fn tables(job: &str, telemetry: &api::GetTelemetryResponse) -> String {
    let counters = || (telemetry.switches.iter()).filter_map(|switch| switch.counters.as_ref());
    let switches = telemetry.switches.iter().filter_map(|switch| {
        let counters = switch.counters.as_ref()?;
        if !counters.problem.is_empty() {
            let mut row: [String; 10] = Default::default();
            row[0] = format!("{job} at {}", counters.switch);
            AWAY.clone_into(&mut row[1]);
            return Some(row);
        }
        Some([
            format!("{job} at {}", counters.switch),
            packets(&counters.received).to_string(),
            packets(&counters.rejected).to_string(),
            packets(&counters.undeliverable).to_string(),
            packets(&counters.unknown_rank).to_string(),
            packets(&counters.delivered).to_string(),
            packets(&counters.trimmed).to_string(),
            packets(&counters.late).to_string(),
            switch.tail_dropped.to_string(),
            switch
                .sources
                .iter()
                .map(|source| source.lost)
                .fold(0, u64::saturating_add)
                .to_string(),
        ])
    });
    let header = [
        "PACKETS OF",
        "RECEIVED",
        "REJECTED",
        "UNDELIVERABLE",
        "UNKNOWN RANK",
        "DELIVERED",
        "TRIMMED",
        "LATE",
        "TAIL-DROPPED",
        "UPSTREAM LOST",
    ];
    let mut text = table(header, switches) + &away(counters());

    // Where: only places that lost anything.
    let places = telemetry.switches.iter().flat_map(|switch| {
        let name = switch
            .counters
            .as_ref()
            .map_or("", |counters| &counters.switch);
        let ports = (switch.ports.iter())
            .filter(|port| packets(&port.trimmed) > 0 || packets(&port.late) > 0)
            .map(move |port| {
                [
                    format!("{name}/{} to {}", port.port, port.peer),
                    packets(&port.trimmed).to_string(),
                    packets(&port.late).to_string(),
                    String::new(),
                ]
            });
        let sources = (switch.sources.iter())
            .filter(|source| source.lost > 0)
            .map(move |source| {
                let place = format!("rank {} to {name}", source.rank);
                [place, String::new(), String::new(), source.lost.to_string()]
            });
        ports.chain(sources)
    });
    let places: Vec<[String; 4]> = places.collect();
    if !places.is_empty() {
        text.push('\n');
        text += &table(
            ["LOST AT", "TRIMMED", "LATE", "UPSTREAM"],
            places.into_iter(),
        );
    }

    let latest = telemetry.losses.len().saturating_sub(SHOWN);
    if !telemetry.losses.is_empty() {
        let rows = telemetry.losses[latest..].iter().map(|loss| {
            [
                format!("{}.{}", loss.step, loss.bucket),
                format!("{}/{}", loss.switch, loss.port),
                loss.source.to_string(),
                loss.trimmed.to_string(),
                loss.late.to_string(),
                loss.upstream_lost.to_string(),
            ]
        });
        let header = [
            "OPERATION",
            "TOLD BY",
            "RANK",
            "TRIMMED WHEN TOLD",
            "LATE WHEN TOLD",
            "UPSTREAM LOST WHEN TOLD",
        ];
        text.push('\n');
        text += &table(header, rows);
    }
    if telemetry.losses_forgotten > 0 {
        let forgotten = telemetry.losses_forgotten;
        text += &format!("{forgotten} older ones were told and are forgotten\n");
    }
    for switch in &telemetry.switches {
        if let (dropped @ 1.., Some(counters)) = (switch.digest_lists_dropped, &switch.counters) {
            text += &format!(
                "{}: {dropped} lists of lossy operations, of any job, came faster than the controller took them\n",
                counters.switch
            );
        }
    }
    text.push('\n');
    text
}

/// What stands in the place of the counts of a switch that did not say them.
pub const AWAY: &str = "away";

/// Why switches did not say their counts, a line each.
pub fn away<'a>(switches: impl Iterator<Item = &'a api::SwitchCounters>) -> String {
    let away = switches.filter(|counters| !counters.problem.is_empty());
    away.map(|counters| format!("{} is away: {}\n", counters.switch, counters.problem))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_and_is_not_known_is_counted() {
        let counters = api::SwitchCounters {
            switch: "s1".to_owned(),
            ..api::SwitchCounters::default()
        };
        let telemetry = api::GetTelemetryResponse {
            switches: vec![api::SwitchTelemetry {
                counters: Some(counters),
                digest_lists_dropped: 3,
                ..api::SwitchTelemetry::default()
            }],
            losses: Vec::new(),
            losses_forgotten: 7,
        };
        let text = tables("train", &telemetry);
        assert!(text.contains("\n7 older ones were told"), "{text}");
        assert!(text.contains("\ns1: 3 lists of lossy operations"), "{text}");
        let document = document::telemetry("train", &telemetry);
        assert_eq!(document["losses_forgotten"], 7);
        assert_eq!(document["switches"][0]["digest_lists_dropped"], 3);
    }
}
