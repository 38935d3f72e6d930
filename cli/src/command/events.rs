//! `ultima events`: recent events.

use std::process::ExitCode;

use anyhow::Result;

use super::get;
use crate::controller_address::ControllerAddress;
use crate::listing::{self, Kind};
use crate::names;
use crate::objects::Which;
use crate::runtime::run_beside;
use crate::view::{Row, View};

/// List recent events: members that join, leave or are suspected, reroutes, lost switches, ports and links, drains
///
/// A repeated event is one line with its COUNT. The controller that leads keeps the last 64 events of each object and 2,048 in
/// all, in memory, and stores the latest 256 every 5 s.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima events\n  \
    ultima events job/train --watch")]
pub struct Arguments {
    /// Only events of this object, such as job/train, or of this kind, such as jobs
    #[arg(value_name = "KIND[/NAME]", add = names::kinds())]
    of: Option<Which>,
    /// Only events of this object or kind (as `kubectl events --for`)
    #[arg(long = "for", value_name = "KIND[/NAME]", conflicts_with = "of", add = names::kinds())]
    about: Option<Which>,
    #[command(flatten)]
    at: ControllerAddress,
    #[command(flatten)]
    view: View,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let client = arguments.at.connect_to_read().await?;
        let list = async || match arguments.of.as_ref().or(arguments.about.as_ref()) {
            Some(Which::One(kind, name)) => {
                listing::events(&client, &format!("{}/{name}", kind.singular())).await
            }
            Some(Which::All(kinds)) if !kinds.contains(&Kind::Events) => {
                let mut events = listing::events(&client, "").await?;
                let is_of = |row: &Row| {
                    let of = row.cells[2].split_once('/').map(|(kind, _)| kind);
                    kinds.iter().any(|kind| of == Some(kind.singular()))
                };
                events.rows.retain(is_of);
                Ok(events)
            }
            Some(Which::All(_)) | None => listing::events(&client, "").await,
        };
        get::show_all(&[], &arguments.view, list).await
    })
}
