//! Lists of the controller's objects: jobs, switches, hosts, links, ports and events.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_console::output::Json;

use crate::command::resume::asked;
use crate::view::{Listing, Row, age};
use crate::which::Kind;
use ultima_api::document;

/// All objects of a kind.
pub async fn listing(client: &Client, kind: Kind) -> Result<Listing> {
    match kind {
        Kind::Jobs => jobs(client).await,
        Kind::Switches => switches(client).await,
        Kind::Hosts => hosts(client).await,
        Kind::Links => links(client).await,
        Kind::Ports => ports(client).await,
        Kind::Events => events(client, "", None).await,
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
        (false, _) if switch.unknown => "Unknown",
        (false, _) => "NotReady",
    }
}

async fn hosts(client: &Client) -> Result<Listing> {
    let fabric = asked(client, async |client| client.fabric().await).await?;
    let switches = asked(client, async |client| client.switches().await).await?;
    let jobs = asked(client, async |client| client.jobs().await).await?;
    let row = |host: &api::FabricHost| {
        let state = document::port_state(&host.port_name, &fabric, &switches);
        let shown = document::Host::new(host, state, &jobs);
        let cells = [
            shown.name.to_owned(),
            capitalized(&shown.state),
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
        header: &["NAME", "STATUS", "ADDRESS", "PORT", "JOBS"],
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

/// A state as a STATUS.
fn capitalized(state: &str) -> String {
    let mut status = state.to_owned();
    status[..1].make_ascii_uppercase();
    status
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
    let row = |(name, peer): (&String, &String)| {
        let state = document::port_state(name, &fabric, &switches);
        let status = capitalized(&state);
        Ok(Row {
            name: name.clone(),
            cells: vec![name.clone(), status, peer.clone()],
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

/// The recent events of an object, or of all with an empty name; of several jobs of one name, only those of the job with this `uid`,
/// if given.
///
/// # Errors
/// The controller does not answer.
pub async fn events(client: &Client, object: &str, uid: Option<u64>) -> Result<Listing> {
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
            match event.uid {
                0 => "-".to_owned(),
                uid => document::uid(uid),
            },
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
        wide: &["FIRST-SEEN", "ID", "UID"],
        rows: (events.iter())
            .filter(|event| uid.is_none_or(|uid| uid == event.uid))
            .map(row)
            .collect::<Result<_>>()?,
    })
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
