//! A front panel's YAML form: its port map, and what its ports are set to.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_yaml::Spanned;

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

/// A connector alone is a number.
fn port_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "integer"] })
}

/// What one port, or all channels of one connector, are set to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PortFile {
    /// CONNECTOR/CHANNEL, or CONNECTOR for all of its channels.
    #[schemars(schema_with = "port_schema")]
    pub port: Spanned<String>,
    /// Into which channels the connector is divided, CHANNELSxSPEED: 4x25G.
    #[schemars(with = "Option<String>")]
    pub breakout: Option<Spanned<String>>,
    /// Bits per second.
    #[schemars(with = "Option<String>")]
    pub speed: Option<Spanned<String>>,
    /// Forward error correction.
    #[schemars(with = "Option<String>")]
    pub fec: Option<Spanned<String>>,
    /// Whether it agrees on its speed with the other end.
    #[schemars(with = "Option<bool>")]
    pub autoneg: Option<Spanned<bool>>,
}
