//! `ultima events`: recent events.

use std::process::ExitCode;

use anyhow::Result;
use ultima_api::client::Client;

use crate::controller_address::ControllerAddress;
use crate::listing;
use crate::names;
use crate::runtime::run_beside;
use crate::view::{Row, View};
use crate::which::Kind;
use crate::which::Which;

/// List recent events: members that join, leave or are suspected, reroutes, lost switches, ports and links, drains
///
/// A repeated event is one line with its COUNT. The controller that leads keeps the last 512 events of each object and 4,096
/// in all, in memory, and stores the latest 512 every 5 s. With `-o wide`, the UID tells jobs apart that had the same name.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima events\n  \
    ultima events job/train --watch")]
pub struct Arguments {
    /// Only events of these objects, such as job/train, or of this kind, such as jobs
    #[arg(value_name = "KIND[/NAME]", add = names::objects())]
    of: Vec<Which>,
    /// Only events of this object or kind (as `kubectl events --for`)
    #[arg(long = "for", value_name = "KIND[/NAME]", conflicts_with = "of", add = names::objects())]
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
        let of = arguments.of.iter().chain(&arguments.about);
        show(&client, &of.cloned().collect::<Vec<_>>(), &arguments.view).await
    })
}

/// Prints the events of these objects, or all if there are none, until interrupted if they are watched.
///
/// # Errors
/// The controller does not answer.
pub async fn show(client: &Client, of: &[Which], view: &View) -> Result<ExitCode> {
    let is_any = of.is_empty() || of.contains(&Which::All(vec![Kind::Events]));
    let list = async || {
        let mut events = listing::events(client, "", None).await?;
        // The third cell is the object.
        let is_of = |row: &Row| is_any || of.iter().any(|it| it.has(&row.cells[2]));
        events.rows.retain(is_of);
        Ok(events)
    };
    view.show_until_interrupted(&[], list).await
}
