//! `ultima telemetry`: packets that jobs lose in the fabric, by place and cause.

use crate::runtime::{print_beside, run_beside};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_controller::server::{WATCH_INTERVAL, WATCH_INTERVALS};

use super::jobs_of::jobs_of;
use super::resume::resumed;
use crate::controller_address::ControllerAddress;
use crate::exit::{Ended, Exit};
use ultima_api::document;
use ultima_console::output::{self, Format, Output, table};
use ultima_console::units;

/// The number of lossy operations per job in tables; `-o json` prints all that the controller keeps.
const MAX_SHOWN: usize = 20;

/// Show the packets that jobs lose in the fabric, by place and cause
///
/// For each switch: packets received, rejected, trimmed (the queue was full), late (no receiver waits for them any more)
/// and lost. Then the ports and ranks with losses, and the latest operations whose losses reached the job's
/// loss_threshold, with the counts at the time of the report.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima telemetry\n  \
    ultima telemetry train --watch\n  \
    ultima telemetry --watch --every 10s -o json >> losses.jsonl")]
pub struct Arguments {
    /// Name of the job, or of a grid for all its jobs [default: all jobs]
    #[arg(add = crate::names::jobs(), value_parser = crate::names::job)]
    job: Option<String>,
    /// Print again every second until interrupted. JSON and YAML then contain only lossy operations reported since the last
    /// time. If --controller names several controllers, the watch continues with the next leader
    #[arg(long)]
    watch: bool,
    /// Interval of --watch, 100ms to 60s [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = interval, requires = "watch")]
    every: Option<Duration>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    at: ControllerAddress,
}

fn interval(text: &str) -> Result<Duration, String> {
    let every = units::duration(text).map_err(|error| error.to_string())?;
    match WATCH_INTERVALS.contains(&every) {
        true => Ok(every),
        false => {
            let (least, most) = (WATCH_INTERVALS.start(), WATCH_INTERVALS.end());
            Err(format!("expected {least:?} to {most:?}"))
        }
    }
}

/// Runs the command. A watch ends on SIGINT or SIGTERM, or when its reader closes the pipe.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    run_beside(async {
        let client = arguments.at.connect().await?;
        if !arguments.watch {
            let jobs = once(&client, arguments.job.as_deref()).await?;
            output::print(&text(&jobs, arguments.output.format())?)?;
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            ended = watch(&client, &arguments) => ended.map(|()| ExitCode::SUCCESS),
            () = crate::runtime::interrupted() => Ok(Exit::Interrupted.into()),
        }
    })
}

/// The telemetry of jobs by name.
type Jobs = Vec<(String, api::GetTelemetryResponse)>;

/// The current telemetry: the first message of a watch.
async fn once(client: &Client, job: Option<&str>) -> Result<Jobs> {
    let Some(name) = job else {
        let mut watch = client.watch_telemetry(None, WATCH_INTERVAL).await?;
        return Ok(watch.next().await?.map(by_name).ok_or_else(stopped)?);
    };
    let mut all = Vec::new();
    for name in jobs_of(client, name).await? {
        let telemetry = client.telemetry(&name).await?;
        all.push((name, telemetry));
    }
    Ok(all)
}

fn by_name(jobs: Vec<api::JobTelemetry>) -> Jobs {
    let jobs = jobs.into_iter();
    jobs.map(|it| (it.job, it.telemetry.unwrap_or_default()))
        .collect()
}

fn stopped() -> Ended {
    Exit::Unavailable.because("the controller stopped")
}

async fn watch(client: &Client, arguments: &Arguments) -> Result<()> {
    let every = arguments.every.unwrap_or(WATCH_INTERVAL);
    let wanted = match &arguments.job {
        Some(name) => Some(jobs_of(client, name).await?),
        None => None,
    };
    // A watch is of one job or of all.
    let one = wanted.as_deref().and_then(|jobs| match jobs {
        [one] => Some(one.as_str()),
        _ => None,
    });
    let begin = async |client: &Client| client.watch_telemetry(one, every).await;
    let mut watch = begin(client).await?;
    let format = arguments.output.format();
    let mut shown = Shown::default();
    loop {
        let next = watch.next().await.map_err(anyhow::Error::from);
        let mut jobs = match next.and_then(|next| Ok(next.ok_or_else(stopped)?)) {
            Ok(jobs) => by_name(jobs),
            Err(why) => {
                watch = resumed(&arguments.at, why, &begin).await?;
                continue;
            }
        };
        jobs.retain(|(name, _)| wanted.as_ref().is_none_or(|jobs| jobs.contains(name)));
        if format == Format::Table {
            shown.complete(&mut jobs);
        }
        if let ControlFlow::Break(()) = print_beside(text(&jobs, format)?).await? {
            return Ok(());
        }
    }
}

/// The latest lossy operations of each job, which tables repeat.
#[derive(Default)]
struct Shown(HashMap<String, Vec<api::OperationLoss>>);

impl Shown {
    /// Prepends the earlier operations to the new ones, up to [`MAX_SHOWN`].
    fn complete(&mut self, jobs: &mut Jobs) {
        let mut before = std::mem::take(&mut self.0);
        for (name, telemetry) in jobs {
            let mut latest = before.remove(name).unwrap_or_default();
            latest.append(&mut telemetry.losses);
            latest.drain(..latest.len().saturating_sub(MAX_SHOWN));
            telemetry.losses.clone_from(&latest);
            self.0.insert(name.clone(), latest);
        }
    }
}

fn text(jobs: &Jobs, format: Format) -> Result<String> {
    let all = || {
        let documents = jobs.iter().map(|(name, it)| document::telemetry(name, it));
        json!({ "version": 1, "jobs": documents.collect::<Vec<_>>() })
    };
    // A separate document for each update of a watch.
    format.print_one(&all(), || match jobs.is_empty() {
        true => "no jobs\n".to_owned(),
        false => jobs.iter().map(|(name, it)| tables(name, it)).collect(),
    })
}

fn packets(count: &Option<api::Count>) -> u64 {
    count.map_or(0, |count| count.packets)
}

fn tables(job: &str, telemetry: &api::GetTelemetryResponse) -> String {
    let counters = || (telemetry.switches.iter()).filter_map(|switch| switch.counters.as_ref());
    let switches = telemetry.switches.iter().filter_map(|switch| {
        let counters = switch.counters.as_ref()?;
        if !counters.problem.is_empty() {
            let mut row: [String; 11] = Default::default();
            (row[0], row[1]) = (job.to_owned(), counters.switch.clone());
            UNREACHABLE.clone_into(&mut row[2]);
            return Some(row);
        }
        Some([
            job.to_owned(),
            counters.switch.clone(),
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
        "JOB",
        "SWITCH",
        "RECEIVED",
        "REJECTED",
        "UNDELIVERABLE",
        "UNKNOWN-RANK",
        "DELIVERED",
        "TRIMMED",
        "LATE",
        "TAIL-DROPPED",
        "UPSTREAM-LOST",
    ];
    let mut text = table(header, switches) + &unreachable(counters());

    // Only ports and ranks with losses.
    let places = telemetry.switches.iter().flat_map(|switch| {
        let name = switch
            .counters
            .as_ref()
            .map_or("", |counters| &counters.switch);
        let ports = (switch.ports.iter())
            .filter(|port| packets(&port.trimmed) > 0 || packets(&port.late) > 0)
            .map(move |port| {
                [
                    format!("{} to {}", port.port_name, port.peer),
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
            ["LINK", "TRIMMED", "LATE", "UPSTREAM-LOST"],
            places.into_iter(),
        );
    }

    let latest = telemetry.losses.len().saturating_sub(MAX_SHOWN);
    if !telemetry.losses.is_empty() {
        let rows = telemetry.losses[latest..].iter().map(|loss| {
            [
                format!("{}.{}", loss.step, loss.bucket),
                loss.port_name.clone(),
                loss.source.to_string(),
                loss.trimmed.to_string(),
                loss.late.to_string(),
                loss.upstream_lost.to_string(),
            ]
        });
        let header = [
            "OPERATION",
            "REPORTED-BY",
            "RANK",
            "TRIMMED",
            "LATE",
            "UPSTREAM-LOST",
        ];
        text.push('\n');
        text += &table(header, rows);
    }
    if telemetry.losses_forgotten > 0 {
        let discarded = telemetry.losses_forgotten;
        text += &format!("{discarded} older reports were discarded\n");
    }
    for switch in &telemetry.switches {
        if let (dropped @ 1.., Some(counters)) = (switch.digest_lists_dropped, &switch.counters) {
            text += &format!(
                "{}: {dropped} digest lists of loss reports, of any job, were dropped because they arrived too fast\n",
                counters.switch
            );
        }
    }
    text.push('\n');
    text
}

/// The cell in place of the counts of a switch that does not answer.
pub const UNREACHABLE: &str = "unreachable";

/// A line for each switch whose counts are missing, with the reason.
pub fn unreachable<'a>(switches: impl Iterator<Item = &'a api::SwitchCounters>) -> String {
    let missing = switches.filter(|counters| !counters.problem.is_empty());
    missing
        .map(|counters| format!("{}: unreachable: {}\n", counters.switch, counters.problem))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_repeats_the_latest_operations() {
        let reported = |steps: std::ops::Range<u32>| {
            let losses = steps.map(|step| api::OperationLoss {
                step,
                ..api::OperationLoss::default()
            });
            let telemetry = api::GetTelemetryResponse {
                losses: losses.collect(),
                ..api::GetTelemetryResponse::default()
            };
            vec![("train".to_owned(), telemetry)]
        };
        let mut shown = Shown::default();
        let mut complete = |mut jobs: Jobs| {
            shown.complete(&mut jobs);
            let losses = jobs.first().map(|(_, it)| it.losses.iter());
            losses.map_or(Vec::new(), |it| it.map(|loss| loss.step).collect())
        };
        assert_eq!(complete(reported(0..3)), [0, 1, 2]);
        assert_eq!(complete(reported(3..4)), [0, 1, 2, 3]);
        let many = complete(reported(4..34));
        assert_eq!((many.len(), many[0]), (MAX_SHOWN, 14));
        assert_eq!(complete(Vec::new()), [0; 0]);
        assert_eq!(complete(reported(0..1)), [0], "another job of that name");
    }

    #[test]
    fn discarded_reports_are_counted() {
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
        assert!(text.contains("\n7 older reports"), "{text}");
        assert!(text.contains("\ns1: 3 digest lists"), "{text}");
        let document = document::telemetry("train", &telemetry);
        assert_eq!(document["losses_discarded"], 7);
        assert_eq!(document["switches"][0]["digest_lists_dropped"], 3);
    }
}
