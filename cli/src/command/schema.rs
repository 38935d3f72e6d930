//! `ultima schema`: JSON schemas of the YAML files, for editors.

use anyhow::Result;
use serde_json::Value;
use ultima_planner::{fabric, job};

use super::traffic_file;
use ultima_console::output::{self, Format};

/// Print the JSON schema of a kind of YAML file
///
/// Editors with a YAML language server complete and check a file whose first line is
/// `# yaml-language-server: $schema=FILE`.
#[derive(clap::Args)]
#[command(after_help = "Example: ultima schema job > job.schema.json")]
pub struct Arguments {
    /// Kind of file
    kind: Kind,
}

/// A kind of YAML file.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Kind {
    /// A fabric, for `ultima controller serve --fabric` and `ultima lab up`
    Fabric,
    /// Jobs, for `ultima job create -f` and `ultima apply -f`
    Job,
    /// Traffic manager settings, for `ultima switch --tm` and `ultima switch tm set --tm`
    Tm,
}

impl Kind {
    /// The JSON schema.
    pub fn schema(self) -> Value {
        match self {
            Kind::Fabric => fabric::schema(),
            Kind::Job => job::schema(),
            Kind::Tm => traffic_file::schema(),
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let schema = arguments.kind.schema();
    output::print(&Format::Json.print(&schema, String::new)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The controller's own tests compare the schemas of its files.
    #[test]
    fn the_committed_copy_is_up_to_date() {
        let now = Format::Json.print(&Kind::Tm.schema(), String::new);
        assert!(
            now.expect("JSON") == include_str!("../../../docs/schema/tm.json"),
            "ultima schema tm > docs/schema/tm.json"
        );
    }
}
