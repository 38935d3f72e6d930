//! `ultima schema`: what our YAML files may say, for editors.

use anyhow::Result;
use serde_json::Value;
use ultima_controller::{fabric, job};

use super::{sim, traffic_file};
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
    /// `ultima sim run`
    Sim,
    /// `ultima switch --tm`, `ultima switch tm set --tm`
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

/// Prints it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let schema = arguments.kind.schema();
    output::print(&Format::Json.print(&schema, String::new)?)?;
    Ok(())
}

#[cfg(test)]
pub mod testing {
    use serde_json::Value;

    /// Whether a schema lets a file be so.
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

    /// Those of the controller's files it looks at itself.
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
