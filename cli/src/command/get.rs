//! `ultima get`: lists jobs, switches, hosts and links.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use ultima_api::client::Client;
use ultima_api::v1 as api;

use super::resume::asked;
use crate::controller_address::ControllerAddress;
use crate::document;
use crate::exit::Exit;
use crate::names;
use crate::runtime::run_beside;
use crate::view::{Document, Listing, Row, View, age};

/// List jobs, switches, hosts or links
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima get jobs\n  \
    ultima get switches -o wide\n  \
    ultima get job train --watch\n  \
    ultima get hosts -o jsonpath='{[*].ip}'")]
pub struct Arguments {
    /// Kind of object: jobs, switches, hosts or links
    #[arg(value_name = "KIND")]
    kind: Kind,
    /// Only the object of this name
    #[arg(add = names::of_kind())]
    name: Option<String>,
    #[command(flatten)]
    at: ControllerAddress,
    #[command(flatten)]
    view: View,
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Jobs: their ranks, the switches that have them, and their state
    #[value(alias = "job")]
    Jobs,
    /// Switches: connection, health and jobs
    #[value(aliases = ["switch", "sw"])]
    Switches,
    /// Hosts: addresses, port and jobs
    #[value(alias = "host")]
    Hosts,
    /// Links between switches
    #[value(alias = "link")]
    Links,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let client = arguments.at.connect().await?;
        let Arguments {
            kind, name, view, ..
        } = arguments;
        show(&client, *kind, name.as_deref(), view).await
    })
}

/// Prints the objects of a kind, until interrupted if they are watched.
///
/// # Errors
/// The controller does not answer; no object has that name.
pub async fn show(
    client: &Client,
    kind: Kind,
    name: Option<&str>,
    view: &View,
) -> Result<ExitCode> {
    tokio::select! {
        shown = view.show(name, async || listing(client, kind).await) => shown.map(|()| ExitCode::SUCCESS),
        () = crate::runtime::interrupted() => Ok(Exit::Interrupted.into()),
    }
}

/// All objects of a kind.
pub async fn listing(client: &Client, kind: Kind) -> Result<Listing> {
    match kind {
        Kind::Jobs => jobs(client).await,
        Kind::Switches => switches(client).await,
        Kind::Hosts => hosts(client).await,
        Kind::Links => links(client).await,
    }
}

/// Words in one cell; `-` for none.
fn list<T: AsRef<str>>(words: &[T]) -> String {
    match words {
        [] => "-".to_owned(),
        words => words
            .iter()
            .map(AsRef::as_ref)
            .collect::<Vec<&str>>()
            .join(","),
    }
}

async fn jobs(client: &Client) -> Result<Listing> {
    let jobs = asked(client, async |client| client.jobs().await).await?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let row = |job: &api::Job| {
        let is_here = |member: &&api::Member| member.state() == api::MemberState::Joined;
        let joined = job.members.iter().filter(is_here).count();
        let group = match job.group_id {
            0 => "-".to_owned(),
            _ => job.group_address.clone(),
        };
        let cells = [
            job.name.clone(),
            format!("{joined}/{}", job.members.len()),
            document::ready(job),
            document::status(job).to_owned(),
            age(now.saturating_sub(Duration::from_secs(job.created_at))),
            job.id.to_string(),
            job.epoch.to_string(),
            group,
            job.weight.to_string(),
            list(&job.switches),
        ];
        Ok(Row {
            name: job.name.clone(),
            cells: cells.into(),
            aging: Some(4),
            document: Document::new(&document::Job::from(job))?,
        })
    };
    Ok(Listing {
        kind: "job",
        header: &["NAME", "RANKS", "READY", "STATUS", "AGE"],
        wide: &["ID", "EPOCH", "GROUP", "WEIGHT", "SWITCHES"],
        rows: jobs.iter().map(row).collect::<Result<_>>()?,
    })
}

async fn switches(client: &Client) -> Result<Listing> {
    let switches = asked(client, async |client| client.switches().await).await?;
    let row = |switch: &api::Switch| {
        let shown = document::Switch::from(switch);
        let cells = [
            shown.name.to_owned(),
            switch_status(switch).to_owned(),
            shown.health.to_owned(),
            list(shown.jobs),
            shown.target.to_owned(),
            shown.grpc.to_owned(),
            shown.device_id.to_string(),
            match shown.problem {
                "" => "-".to_owned(),
                problem => problem.to_owned(),
            },
        ];
        Ok(Row {
            name: switch.name.clone(),
            cells: cells.into(),
            aging: None,
            document: Document::new(&shown)?,
        })
    };
    Ok(Listing {
        kind: "switch",
        header: &["NAME", "STATUS", "HEALTH", "JOBS"],
        wide: &["TARGET", "ADDRESS", "DEVICE-ID", "PROBLEM"],
        rows: switches.iter().map(row).collect::<Result<_>>()?,
    })
}

fn switch_status(switch: &api::Switch) -> &'static str {
    match (switch.connected, switch.dirty) {
        (true, false) => "Ready",
        (true, true) => "Resync",
        (false, _) => "NotReady",
    }
}

async fn hosts(client: &Client) -> Result<Listing> {
    let fabric = asked(client, async |client| client.fabric().await).await?;
    let jobs = asked(client, async |client| client.jobs().await).await?;
    let row = |host: &api::FabricHost| {
        let shown = document::Host::new(host, &jobs);
        let cells = [
            shown.name.to_owned(),
            shown.ip.to_owned(),
            shown.port_name.to_owned(),
            list(&shown.jobs),
            shown.mac.to_owned(),
            shown.ranks.to_string(),
        ];
        Ok(Row {
            name: host.name.clone(),
            cells: cells.into(),
            aging: None,
            document: Document::new(&shown)?,
        })
    };
    Ok(Listing {
        kind: "host",
        header: &["NAME", "ADDRESS", "PORT", "JOBS"],
        wide: &["MAC", "RANKS"],
        rows: fabric.hosts.iter().map(row).collect::<Result<_>>()?,
    })
}

async fn links(client: &Client) -> Result<Listing> {
    let fabric = asked(client, async |client| client.fabric().await).await?;
    let jobs = asked(client, async |client| client.jobs().await).await?;
    let row = |link: &api::FabricLink| {
        let shown = document::Link::new(link, &jobs);
        let status = if shown.up { "Up" } else { "Down" };
        let cells = [shown.name.clone(), status.to_owned(), list(&shown.jobs)];
        Ok(Row {
            name: shown.name.clone(),
            cells: cells.into(),
            aging: None,
            document: Document::new(&shown)?,
        })
    };
    Ok(Listing {
        kind: "link",
        header: &["NAME", "STATUS", "JOBS"],
        wide: &[],
        rows: fabric.links.iter().map(row).collect::<Result<_>>()?,
    })
}
