//! `ultima schema`: JSON schemas of the YAML files, for editors.

use anyhow::Result;
use serde_json::Value;
use ultima_controller::{fabric, job};

use super::{sim, traffic_file};
use crate::output::{self, Format};

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

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// A fabric, for `ultima controller serve --fabric` and `ultima lab up`
    Fabric,
    /// Jobs, for `ultima job create -f` and `ultima apply -f`
    Job,
    /// `ultima sim run`
    Sim,
    /// Traffic manager settings, for `ultima switch --tm` and `ultima switch tm set --tm`
    Tm,
}

impl Kind {
    fn schema(self) -> Value {
        match self {
            Kind::Fabric => fabric::schema(),
            Kind::Job => job::schema(),
            Kind::Sim => sim::file::schema(),
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
pub mod testing {
    use serde_json::Value;

    /// True if a schema accepts a file.
    pub fn accepts(schema: &Value, yaml: &str) -> bool {
        let document: Value = serde_yaml::from_str(yaml).expect("YAML");
        let validator = jsonschema::validator_for(schema).expect("a schema");
        validator.is_valid(&document)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// The controller's own tests compare the schemas of its files.
    #[test]
    fn committed_copies_are_up_to_date() {
        for (kind, copy) in [
            (Kind::Sim, include_str!("../../../docs/schema/sim.json")),
            (Kind::Tm, include_str!("../../../docs/schema/tm.json")),
        ] {
            let name = kind.to_possible_value().expect("a kind");
            let name = name.get_name();
            let now = Format::Json.print(&kind.schema(), String::new);
            assert!(
                now.expect("JSON") == copy,
                "ultima schema {name} > docs/schema/{name}.json"
            );
        }
    }
}
