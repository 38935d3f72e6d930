//! `ultima describe`: everything about one object.

use std::process::ExitCode;

use anyhow::Result;
use ultima_api::client::Client;
use ultima_api::{document, v1 as api};
use ultima_console::output::{self, columns};

use super::job;
use crate::controller_address::ControllerAddress;
use crate::listing;
use crate::objects::Objects;
use crate::runtime::run_beside;
use crate::view::{Listing, Row, all_found};
use crate::which::Kind;

/// Show everything about jobs, switches, hosts, links or ports
///
/// For programs, `ultima get KIND NAME -o json` prints one object.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima describe job train\n  \
    ultima describe switch/s1")]
pub struct Arguments {
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    at: ControllerAddress,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let wanted = arguments.objects.by_kind()?;
        let client = arguments.at.connect_to_read().await?;
        let mut texts = Vec::new();
        let mut unknown = Vec::new();
        for (kind, names) in wanted {
            let mut listing = listing::listing(&client, kind).await?;
            unknown.extend(listing.keep(&names));
            if names.is_empty() && listing.rows.is_empty() {
                eprintln!("no {} found", listing.kind);
            }
            for row in &listing.rows {
                texts.push(about(&client, kind, &listing, row).await?);
            }
        }
        output::print(&texts.join("\n\n"))?;
        all_found(unknown).map(|()| ExitCode::SUCCESS)
    })
}

/// The columns of an object, one a line, and its events.
async fn about(client: &Client, kind: Kind, listing: &Listing, row: &Row) -> Result<String> {
    let names = listing.header.iter().chain(listing.wide);
    let lines = names.zip(&row.cells);
    let mut lines: Vec<Vec<String>> = lines
        .map(|(name, cell)| vec![format!("{name}:"), cell.clone()])
        .collect();
    let name = &row.name;
    let job = match kind {
        Kind::Jobs => Some(client.job(name).await?),
        _ => None,
    };
    if let Some(job) = &job {
        lines.extend(settings(job).map(Vec::from));
    }
    let mut text = columns(&lines, &mut Vec::new());
    if let Some(job) = &job {
        text += &job::details(client, job).await?;
    }
    let object = format!("{}/{name}", kind.singular());
    let uid = job.map(|job| job.uid);
    let events = listing::events(client, &object, uid).await?;
    if !events.rows.is_empty() {
        text += &format!("\nEVENTS:\n{}", events.table(false)?);
    }
    Ok(text)
}

/// The settings of a job, and its uid.
fn settings(job: &api::Job) -> [[String; 2]; 4] {
    let eviction = match job.evict_after_s {
        0 => "never".to_owned(),
        seconds => format!("after {seconds} s"),
    };
    [
        ("UID:", document::uid(job.uid)),
        ("SEALED:", job.sealed.to_string()),
        ("LOSS-THRESHOLD:", job.loss_threshold.to_string()),
        ("EVICTION:", eviction),
    ]
    .map(|(name, value)| [name.to_owned(), value])
}
