//! `ultima describe`: everything about one object.

use std::process::ExitCode;

use anyhow::{Result, bail};
use ultima_console::output::{self, columns};

use super::get::{self, Kind, Which};
use super::job;
use crate::controller_address::ControllerAddress;
use crate::names;
use crate::runtime::run_beside;

/// Show everything about a job, switch, host, link or port
///
/// For programs, `ultima get KIND NAME -o json` prints one object.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima describe job train\n  \
    ultima describe switch/s1")]
pub struct Arguments {
    /// Kind of object: job, switch, host, link or port; or the object as `get -o name` prints it, such as job/train
    #[arg(value_name = "KIND[/NAME]", add = names::kinds())]
    which: Which,
    /// Its name
    #[arg(add = names::of_kind())]
    name: Option<String>,
    #[command(flatten)]
    at: ControllerAddress,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    run_beside(async {
        let (kind, name) = arguments.which.with(arguments.name.as_deref())?;
        let Some(name) = name else {
            bail!("expected a name after the kind, such as job/train");
        };
        let client = arguments.at.connect().await?;
        let mut listing = get::listing(&client, kind).await?;
        listing.keep(Some(name))?;
        let names = listing.header.iter().chain(listing.wide);
        let cells = listing.rows.iter().flat_map(|row| &row.cells);
        let lines = names.zip(cells);
        let lines: Vec<Vec<String>> = lines
            .map(|(name, cell)| vec![format!("{name}:"), cell.clone()])
            .collect();
        let mut text = columns(&lines, &mut Vec::new());
        if let Kind::Jobs = kind {
            text += &job::details(&client, name).await?;
        }
        let events = get::events(&client, &format!("{}/{name}", kind.singular())).await?;
        if !events.rows.is_empty() {
            text += &format!("\nEVENTS:\n{}", events.table(false)?);
        }
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    })
}
