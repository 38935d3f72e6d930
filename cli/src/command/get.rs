//! `ultima get`: lists jobs, switches, hosts, links, ports and events.

use std::process::ExitCode;

use anyhow::{Result, bail};
use ultima_api::client::Client;

use super::events;
use crate::controller_address::ControllerAddress;
use crate::exit::Exit;
use crate::listing::listing;
use crate::objects::Objects;
use crate::runtime::run_beside;
use crate::view::{View, all_found};
use crate::which::Kind;
use crate::which::Which;
use ultima_console::output;

/// List jobs, switches, hosts, links, ports or events
///
/// Links are those between switches; a host's link is shown as its port.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima get jobs\n  \
    ultima get switches -o wide\n  \
    ultima get job train --watch\n  \
    ultima get job/train switch/s1 -o yaml\n  \
    ultima get jobs,switches\n  \
    ultima get events job/train\n  \
    ultima get hosts -o jsonpath='{[*].ip}'")]
pub struct Arguments {
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    at: ControllerAddress,
    #[command(flatten)]
    view: View,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let wanted = arguments.objects.by_kind()?;
        let view = &arguments.view;
        let client = arguments.at.connect_to_read().await?;
        if let [(kind, names)] = &wanted[..] {
            let objects: Result<Vec<Which>, _> = names.iter().map(|name| name.parse()).collect();
            // `get events job/train` is `events job/train`; other names of events are numbers.
            if let (Kind::Events, Ok(of)) = (kind, objects) {
                return events::show(&client, &of, view).await;
            }
            return show(&client, *kind, names, view).await;
        }
        if view.is_watch() {
            bail!(Exit::InvalidInput.because("--watch: needs objects of one kind"));
        }
        let mut listings = Vec::new();
        let mut unknown = Vec::new();
        for (kind, names) in &wanted {
            let mut listing = listing(&client, *kind).await?;
            unknown.extend(listing.keep(names));
            if names.is_empty() || !listing.rows.is_empty() {
                listings.push(listing);
            }
        }
        if !listings.is_empty() {
            output::print(&view.text_of_all(listings)?)?;
        }
        all_found(unknown).map(|()| ExitCode::SUCCESS)
    })
}

/// Prints the objects of a kind, or those of these names, until interrupted if they are watched.
///
/// # Errors
/// The controller does not answer; no object has one of the names.
pub async fn show(client: &Client, kind: Kind, names: &[String], view: &View) -> Result<ExitCode> {
    view.show_until_interrupted(names, async || listing(client, kind).await)
        .await
}
