//! `ultima schema`: what our YAML files may say, for editors.

use anyhow::Result;
use serde_json::Value;
use ultima_controller::{fabric, job};

use super::traffic_file;
use ultima_console::output::{self, Format};

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
    /// `ultima switch --tm`, `ultima switch tm set --tm`
    Tm,
}

impl Kind {
    fn schema(self) -> Value {
        match self {
            Kind::Fabric => fabric::schema(),
            Kind::Job => job::schema(),
            Kind::Tm => traffic_file::schema(),
        }
    }
}

/// Prints it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let schema = arguments.kind.schema();
    output::print(&Format::Json.print(&schema, String::new)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The controller's tests check the other two.
    #[test]
    fn the_committed_copy_is_up_to_date() {
        let now = Format::Json.print(&Kind::Tm.schema(), String::new);
        assert!(
            now.expect("JSON") == include_str!("../../../docs/schema/tm.json"),
            "ultima schema tm > docs/schema/tm.json"
        );
    }
}
