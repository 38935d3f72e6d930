//! `ultima schema`: what our YAML files may say, for editors.

use anyhow::Result;
use ultima_controller::{fabric, job};

use crate::output::{self, Format};

/// Prints the JSON schema of a kind of YAML files
///
/// Editors complete and check what begins with `# yaml-language-server: $schema=FILE`.
#[derive(clap::Args)]
#[command(after_help = "Example: ultima schema job > job.schema.json")]
pub struct Arguments {
    /// Which files
    kind: Kind,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// `ultima controller serve --fabric`, `ultima lab up`
    Fabric,
    /// `ultima job create -f`, `ultima apply -f`
    Job,
}

/// Prints it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let schema = match arguments.kind {
        Kind::Fabric => fabric::schema(),
        Kind::Job => job::schema(),
    };
    output::print(&Format::Json.print(&schema, String::new)?)?;
    Ok(())
}
