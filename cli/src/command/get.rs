//! `ultima get`: lists jobs, switches, hosts, links, ports and events.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde_json::json;
use ultima_api::client::Client;
use ultima_api::v1 as api;

use super::resume::asked;
use crate::controller_address::ControllerAddress;
use crate::document;
use crate::exit::Exit;
use crate::names;
use crate::runtime::run_beside;
use crate::view::{Listing, Row, View, age};
use ultima_console::output::Json;

/// List jobs, switches, hosts, links, ports or events
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima get jobs\n  \
    ultima get switches -o wide\n  \
    ultima get job train --watch\n  \
    ultima get job/train -o yaml\n  \
    ultima get hosts -o jsonpath='{[*].ip}'")]
pub struct Arguments {
    /// Kind of object: jobs, switches, hosts, links, ports or events; or an object as `-o name` prints it, such as job/train
    #[arg(value_name = "KIND[/NAME]", add = names::kinds())]
    which: Which,
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
    /// Ports of switches with a host or a link
    #[value(alias = "port")]
    Ports,
    /// Recent events, as `ultima events`
    #[value(aliases = ["event", "ev"])]
    Events,
}

impl Kind {
    /// What an object is called, as in `job/train`.
    pub fn singular(self) -> &'static str {
        match self {
            Kind::Jobs => "job",
            Kind::Switches => "switch",
            Kind::Hosts => "host",
            Kind::Links => "link",
            Kind::Ports => "port",
            Kind::Events => "event",
        }
    }
}

/// A kind of object, or one object.
#[derive(Clone, Debug)]
pub struct Which {
    kind: Kind,
    name: Option<String>,
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The name of a link has slashes, too.
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) if !name.is_empty() => (kind, Some(name.to_owned())),
            _ => (text, None),
        };
        match <Kind as ValueEnum>::from_str(kind, false) {
            Ok(kind) => Ok(Which { kind, name }),
            Err(_) => Err(
                "expected jobs, switches, hosts, links, ports or events, or an object such as job/train",
            ),
        }
    }
}

impl Which {
    /// The kind, and the object's name, which may also be an argument of its own.
    ///
    /// # Errors
    /// There are two names.
    pub fn with<'a>(&'a self, name: Option<&'a str>) -> Result<(Kind, Option<&'a str>)> {
        match (self.name.as_deref(), name) {
            (Some(one), Some(other)) => {
                bail!("{other}: expected one name, but there is {one}, too")
            }
            (one, other) => Ok((self.kind, one.or(other))),
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let (kind, name) = arguments.which.with(arguments.name.as_deref())?;
        let client = arguments.at.connect().await?;
        show(&client, kind, name, &arguments.view).await
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
    show_all(name, view, async || listing(client, kind).await).await
}

/// Prints what `list` returns, until interrupted if it is watched.
///
/// # Errors
/// Those of `list`; no object has that name.
pub async fn show_all(
    name: Option<&str>,
    view: &View,
    list: impl AsyncFn() -> Result<Listing>,
) -> Result<ExitCode> {
    tokio::select! {
        shown = view.show(name, list) => shown.map(|()| ExitCode::SUCCESS),
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
        Kind::Ports => ports(client).await,
        Kind::Events => events(client, "").await,
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
    let now = now();
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
            aging: &[4],
            document: Json::of(&document::Job::from(job))?,
        })
    };
    Ok(Listing {
        kind: Kind::Jobs.singular(),
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
            aging: &[],
            document: Json::of(&shown)?,
        })
    };
    Ok(Listing {
        kind: Kind::Switches.singular(),
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
            aging: &[],
            document: Json::of(&shown)?,
        })
    };
    Ok(Listing {
        kind: Kind::Hosts.singular(),
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
        let status = match (shown.drained, shown.up) {
            (true, _) => "Drained",
            (false, true) => "Up",
            (false, false) => "Down",
        };
        let cells = [shown.name.clone(), status.to_owned(), list(&shown.jobs)];
        Ok(Row {
            name: shown.name.clone(),
            cells: cells.into(),
            aging: &[],
            document: Json::of(&shown)?,
        })
    };
    Ok(Listing {
        kind: Kind::Links.singular(),
        header: &["NAME", "STATUS", "JOBS"],
        wide: &[],
        rows: fabric.links.iter().map(row).collect::<Result<_>>()?,
    })
}

/// The ports with a host, and both ports of each link.
async fn ports(client: &Client) -> Result<Listing> {
    let fabric = asked(client, async |client| client.fabric().await).await?;
    let switches = asked(client, async |client| client.switches().await).await?;
    let (hosts, links) = (fabric.hosts.iter(), fabric.links.iter());
    let hosts = hosts.map(|host| (&host.port_name, &host.name));
    let trunks = links
        .filter_map(|link| link.ends.as_ref())
        .flat_map(|it| [(&it.from_name, &it.to_name), (&it.to_name, &it.from_name)]);
    let state = |name: &str| {
        let mut all = switches.iter().flat_map(|switch| &switch.elements);
        let state = all.find(|it| it.element == name);
        state.map_or("up", |it| &it.state)
    };
    let row = |(name, peer): (&String, &String)| {
        let state = state(name);
        Ok(Row {
            name: name.clone(),
            cells: vec![name.clone(), state.to_owned(), peer.clone()],
            aging: &[],
            document: Json::of(&json!({ "name": name, "state": state, "peer": peer }))?,
        })
    };
    Ok(Listing {
        kind: Kind::Ports.singular(),
        header: &["NAME", "STATUS", "PEER"],
        wide: &[],
        rows: hosts.chain(trunks).map(row).collect::<Result<_>>()?,
    })
}

/// The recent events of an object, or of all with an empty name.
///
/// # Errors
/// The controller does not answer.
pub async fn events(client: &Client, object: &str) -> Result<Listing> {
    let events = asked(client, async |client| client.events(object).await).await?;
    let now = now();
    let row = |event: &api::Event| {
        let since = |ms: u64| age(now.saturating_sub(Duration::from_millis(ms)));
        let cells = [
            since(event.last_ms),
            event.count.to_string(),
            event.object.clone(),
            event.reason.clone(),
            event.message.clone(),
            since(event.first_ms),
            event.id.to_string(),
        ];
        Ok(Row {
            name: event.id.to_string(),
            cells: cells.into(),
            aging: &[0, 5],
            document: Json::of(&document::RecentEvent::from(event))?,
        })
    };
    Ok(Listing {
        kind: Kind::Events.singular(),
        header: &["LAST-SEEN", "COUNT", "OBJECT", "REASON", "MESSAGE"],
        wide: &["FIRST-SEEN", "ID"],
        rows: events.iter().map(row).collect::<Result<_>>()?,
    })
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
