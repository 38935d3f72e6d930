//! The YAML form of a front panel: its port map and its ports' settings.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// A known board's name, or the first device port of each connector.
#[derive(Debug)]
pub(super) enum PortMapFile {
    Board(String),
    Connectors(Vec<(u16, u16)>),
}

impl<'de> Deserialize<'de> for PortMapFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = PortMapFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a board's name, or the first device port of each connector")
            }

            fn visit_str<E>(self, name: &str) -> Result<PortMapFile, E> {
                Ok(PortMapFile::Board(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PortMapFile, A::Error> {
                let mut connectors = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    connectors.push(entry);
                }
                Ok(PortMapFile::Connectors(connectors))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The schema of a port; a connector alone is a number.
fn port_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "integer"] })
}

/// Settings of one port, or of all channels of a connector.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PortFile {
    /// CONNECTOR/CHANNEL, or CONNECTOR for all of its channels.
    #[schemars(schema_with = "port_schema")]
    pub port: String,
    /// The channels of the connector, CHANNELSxSPEED: 4x25G.
    pub breakout: Option<String>,
    /// The speed.
    pub speed: Option<String>,
    /// The forward error correction.
    pub fec: Option<String>,
    /// True if the port negotiates its speed with the other end.
    pub autoneg: Option<bool>,
}
