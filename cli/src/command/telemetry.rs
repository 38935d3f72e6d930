//! `ultima telemetry`: what jobs lose, where and why.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tonic::Code;
use ultima_controller::api;
use ultima_controller::client::{Client, ClientError};

use super::controller_address::ControllerAddress;
use crate::output::{self, table};

/// Lossy operations that are shown of each job; `--json` has all that the controller keeps.
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
    /// Print JSON, one document a line
    #[arg(long)]
    json: bool,
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
                () = super::interrupted() => Ok(ExitCode::from(super::INTERRUPTED)),
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
    let mut text = String::new();
    let mut jobs = Vec::new();
    for name in names {
        let telemetry = match client.telemetry(&name).await {
            // Deleted since it was listed.
            Err(ClientError::Refused {
                code: Code::NotFound,
                ..
            }) if arguments.job.is_none() => {
                continue;
            }
            answer => answer?,
        };
        if arguments.json {
            jobs.push(document(&name, &telemetry));
        } else {
            text += &tables(&name, &telemetry);
        }
    }
    if arguments.json {
        text = format!("{}\n", json!({ "version": 1, "jobs": jobs }));
    } else if text.is_empty() {
        "there are no jobs\n".clone_into(&mut text);
    }
    Ok(text)
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

fn document(job: &str, telemetry: &api::GetTelemetryResponse) -> Value {
    let count = |count: &Option<api::Count>| {
        let count = count.unwrap_or_default();
        json!({ "packets": count.packets, "bytes": count.bytes })
    };
    let switches = telemetry.switches.iter().filter_map(|switch| {
        let counters = switch.counters.as_ref()?;
        if !counters.problem.is_empty() {
            return Some(json!({ "switch": counters.switch, "away": counters.problem }));
        }
        let ports = switch.ports.iter().map(|port| {
            json!({
                "port": port.port,
                "peer": port.peer,
                "sent": count(&port.sent),
                "late": count(&port.late),
                "trimmed": count(&port.trimmed),
                "cut_sealed": count(&port.cut_sealed),
            })
        });
        let sources = switch.sources.iter().map(|source| {
            json!({
                "rank": source.rank,
                "lost": source.lost,
                "overtaken": source.overtaken,
                "renumbered": source.renumbered,
                "duplicated": source.duplicated,
            })
        });
        Some(json!({
            "switch": counters.switch,
            "away": null,
            "received": count(&counters.received),
            "rejected": count(&counters.rejected),
            "replicated": count(&counters.replicated),
            "unicast": count(&counters.unicast),
            "reflected": count(&counters.reflected),
            "undeliverable": count(&counters.undeliverable),
            "delivered": count(&counters.delivered),
            "own_copy": count(&counters.own_copy),
            "unknown_rank": count(&counters.unknown_rank),
            "late": count(&counters.late),
            "trimmed": count(&counters.trimmed),
            "cut_sealed": count(&counters.cut_sealed),
            "tail_dropped": switch.tail_dropped,
            "ports": ports.collect::<Vec<_>>(),
            "sources": sources.collect::<Vec<_>>(),
            "digest_lists_dropped": switch.digest_lists_dropped,
        }))
    });
    let losses = telemetry.losses.iter().map(|loss| {
        json!({
            "told_at_ms": loss.told_at_ms,
            "switch": loss.switch,
            "port": loss.port,
            "epoch": loss.epoch,
            "step": loss.step,
            "bucket": loss.bucket,
            "source": loss.source,
            "trimmed_when_told": loss.trimmed,
            "late_when_told": loss.late,
            "upstream_lost_when_told": loss.upstream_lost,
        })
    });
    json!({
        "job": job,
        "switches": switches.collect::<Vec<_>>(),
        "losses": losses.collect::<Vec<_>>(),
        "losses_forgotten": telemetry.losses_forgotten,
    })
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
        let document = document("train", &telemetry);
        assert_eq!(document["losses_forgotten"], 7);
        assert_eq!(document["switches"][0]["digest_lists_dropped"], 3);
    }
}
