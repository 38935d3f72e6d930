//! `ultima events`: recent events.

use std::process::ExitCode;

use anyhow::Result;

use super::get::{self, Kind, Which};
use crate::controller_address::ControllerAddress;
use crate::names;
use crate::runtime::run_beside;
use crate::view::View;

/// List recent events: members that join, leave or are suspected, reroutes, lost switches, drains
///
/// A repeated event is one line with its COUNT. The controller that leads keeps the last 64 events of each object and 2,048 in
/// all, in memory: they end with its lead.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima events\n  \
    ultima events job/train --watch")]
pub struct Arguments {
    /// Only events of this object, such as job/train, or of this kind, such as jobs
    #[arg(value_name = "KIND[/NAME]", add = names::kinds())]
    of: Option<Which>,
    #[command(flatten)]
    at: ControllerAddress,
    #[command(flatten)]
    view: View,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let client = arguments.at.connect().await?;
        let of = match &arguments.of {
            Some(of) => of.with(None)?,
            None => (Kind::Events, None),
        };
        let list = async || match of {
            (kind, Some(name)) => {
                get::events(&client, &format!("{}/{name}", kind.singular())).await
            }
            (Kind::Events, None) => get::events(&client, "").await,
            (kind, None) => {
                let mut events = get::events(&client, "").await?;
                let of_kind = format!("{}/", kind.singular());
                events.rows.retain(|row| row.cells[2].starts_with(&of_kind));
                Ok(events)
            }
        };
        get::show_all(None, &arguments.view, list).await
    })
}
