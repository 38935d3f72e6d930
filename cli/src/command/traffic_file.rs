//! Traffic manager settings of a switch's ports as YAML.
//!
//! ```yaml
//! default: { rate: 10G, delay: 5us }
//! ports:
//!   3: { rate: 1G, jitter: normal:100us, loss: [0.001, 0.01:8], ecn: packets:65 }
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use ultima_console::input;

use anyhow::Result;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_yaml::Spanned;
use ultima_planner::settings::{self, Settings, settings_schema};
use ultima_planner::yaml::{self, FilePosition, LoadError};
use ultima_switch::tm::WireChange;

/// The settings of a file.
#[derive(Debug, Default, PartialEq)]
pub struct TrafficFile {
    /// Settings of all ports.
    pub default: WireChange,
    /// Settings of single ports, which override those of all.
    pub ports: BTreeMap<u16, WireChange>,
}

/// How a switch's ports and the wires behind them treat frames.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Ultima traffic manager")]
#[serde(deny_unknown_fields)]
struct Form {
    /// Settings of all ports.
    #[serde(default)]
    #[schemars(schema_with = "settings_schema")]
    default: Settings,
    /// Settings by port number, which override those of all ports.
    #[serde(default)]
    #[schemars(schema_with = "ports_schema")]
    ports: BTreeMap<u16, Spanned<Settings>>,
}

/// The schema of settings by port number.
fn ports_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": { "pattern": "^[0-9]+$" },
        "additionalProperties": settings_schema(generator),
    })
}

/// The JSON schema of a file.
pub fn schema() -> serde_json::Value {
    yaml::schema::<Form>()
}

impl TrafficFile {
    /// Reads a file, and checks its port numbers against `ports` if given.
    ///
    /// # Errors
    /// The file is invalid; the error has the place.
    pub fn load(path: &Path, ports: Option<&[u16]>) -> Result<TrafficFile> {
        let text = input::read_text(path)?;
        Ok(parse(&text, &path.display().to_string(), ports)?)
    }
}

fn parse(text: &str, source: &str, ports: Option<&[u16]>) -> Result<TrafficFile, LoadError> {
    let form: Form = yaml::parse(text, source)?;
    let mut file = TrafficFile {
        default: change(&form.default, source, "default")?,
        ports: BTreeMap::new(),
    };
    for (number, settings) in &form.ports {
        let field = format!("ports.{number}");
        if let Some(ports) = ports
            && !ports.contains(number)
        {
            let there: Vec<String> = ports.iter().map(u16::to_string).collect();
            let problem = match ports {
                [] => format!("the switch has no ports; add this one with -i {number}@WHERE"),
                _ => format!(
                    "the switch has no such port; it has the ports {}",
                    there.join(", ")
                ),
            };
            return Err(yaml::invalid(source, settings, &field, problem));
        }
        let change = change(&settings.value, source, &field)?;
        file.ports.insert(*number, change);
    }
    let all = file.ports.values().chain([&file.default]);
    if all.into_iter().all(WireChange::is_empty) {
        let problem = "no settings; expected `default: {rate: 10G}` or \
                       `ports: {3: {delay: 1ms}}`";
        return Err(LoadError::at(&FilePosition::whole(source), "", problem));
    }
    Ok(file)
}

fn change(settings: &Settings, source: &str, of: &str) -> Result<WireChange, LoadError> {
    let settings = settings
        .iter()
        .map(|(name, values)| (name.as_str(), values));
    settings::change(settings, source, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the schema allows the document.
    fn accepts(schema: &serde_json::Value, yaml: &str) -> bool {
        let document = serde_yaml::from_str(yaml).expect("YAML");
        let validator = jsonschema::validator_for(schema).expect("a schema");
        validator.is_valid(&document)
    }

    fn change(text: &str) -> WireChange {
        text.parse().expect(text)
    }

    #[test]
    fn the_schema_and_the_parser_agree() {
        let schema = schema();
        for good in [
            "{ default: { rate: 10G }, ports: { 3: { loss: [0.001, 0.02:8], queue_packets: 65 } } }",
            "ports: { 3: { rate: null, reorder: true, queue-packets: 7 } }",
        ] {
            assert!(accepts(&schema, good), "{good}");
            parse(good, "tm.yaml", None).expect(good);
        }
        for wrong in [
            "defaults: { rate: 10G }",
            "default: { speed: 10G }",
            "default: { rate: { of: 10G } }",
            "default: 10G",
            "ports: { x: { rate: 10G } }",
            "ports: { 3: { speed: 10G } }",
            "ports: [{ rate: 10G }]",
        ] {
            assert!(!accepts(&schema, wrong), "{wrong}");
            assert!(parse(wrong, "tm.yaml", None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_may_be_numbers_or_text() {
        let text = "
default:
  rate: 10G
  delay: 5us
ports:
  3:
    rate: 1000000
    loss: 0.01
    jitter: normal:100us
    queue_packets: 65
    reorder: true
  4: { loss: [0.001, 0.02:8, 'field:74:4:3..7'], ecn: packets:65, queue-packets: 7 }
  5: { rate: null, delay: none }
";
        let file = parse(text, "tm.yaml", Some(&[3, 4, 5])).expect("well formed");
        assert_eq!(file.default, change("rate=10G,delay=5us"));
        let ports: Vec<_> = file.ports.into_iter().collect();
        let expected = [
            (
                3,
                "rate=1M,loss=0.01,jitter=normal:100us,queue-packets=65,reorder=true",
            ),
            (
                4,
                "loss=0.001,loss=0.02:8,loss=field:74:4:3..7,ecn=packets:65,queue-packets=7",
            ),
            (5, "rate=none,delay=0s"),
        ];
        assert_eq!(ports, expected.map(|(port, text)| (port, change(text))));
    }

    #[test]
    fn a_file_without_settings_is_rejected() {
        for text in ["", "# nothing\n", "default: {}\n", "ports: {3: {}}\n"] {
            let error = parse(text, "tm.yaml", None).expect_err(text).to_string();
            let said = "tm.yaml: no settings; expected";
            assert!(error.starts_with(said), "{text}: {error}");
        }
        let error = parse("ports: {3: {rate: 1G}}\n", "tm.yaml", Some(&[]));
        let error = error.expect_err("no ports").to_string();
        assert!(error.ends_with("the switch has no ports; add this one with -i 3@WHERE"));
    }

    #[test]
    fn errors_have_a_place() {
        for (text, said) in [
            (
                "ports:\n  3: { rate: fast }\n",
                "tm.yaml:2:14: ports.3.rate: expected bits per second",
            ),
            (
                "ports:\n  3: { speed: 1G }\n",
                "tm.yaml:2:15: ports.3.speed: unknown setting `speed`",
            ),
            (
                "default:\n  loss: [0.1, 2]\n",
                "tm.yaml:2:9: default.loss: loss probability 2",
            ),
            (
                "ports:\n  9: { rate: 1G }\n",
                "tm.yaml:2:6: ports.9: the switch has no such port; it has the ports 3",
            ),
            ("ports:\n  x: { rate: 1G }\n", "tm.yaml:2:3: "),
            ("port: {}\n", "tm.yaml:1:1: "),
            ("ports: [\n", "tm.yaml:1:8: expected fields"),
        ] {
            let error = parse(text, "tm.yaml", Some(&[3]))
                .expect_err(text)
                .to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
