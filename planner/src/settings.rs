//! Link settings in YAML, such as `{ rate: 1G, loss: [0.001, 0.01:8] }`, for fabrics and for
//! traffic files.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_yaml::Spanned;
use ultima_link::WireChange;

use crate::yaml::{self, LoadError};

/// The names of a link's settings, as in `ultima wire`; YAML also allows `_` for `-`.
pub(crate) const NAMES: [&str; 12] = [
    "rate",
    "packet-rate",
    "packet_rate",
    "background",
    "delay",
    "jitter",
    "reorder",
    "loss",
    "queue",
    "queue-packets",
    "queue_packets",
    "ecn",
];

/// Settings by name, before validation.
pub type Settings = BTreeMap<String, Spanned<Values>>;

/// One value or a list of values, as text.
#[derive(Clone, Debug)]
pub struct Values(Vec<String>);

/// The JSON schema of [`Values`].
impl JsonSchema for Values {
    fn schema_name() -> Cow<'static, str> {
        "Values".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = ["boolean", "number", "string", "null"];
        json_schema!({
            "description": "A value with its unit, such as 1G or 20us; a list of them; or none.",
            "anyOf": [
                { "type": one },
                { "type": "array", "items": { "type": one } },
            ],
        })
    }
}

/// The JSON schema of [`Settings`], with the names that are allowed.
pub fn settings_schema(generator: &mut SchemaGenerator) -> Schema {
    let values = generator.subschema_for::<Values>();
    let properties: BTreeMap<&str, &Schema> =
        (NAMES.into_iter()).map(|name| (name, &values)).collect();
    json_schema!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or a list of values")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_str<E>(self, value: &str) -> Result<Values, E> {
                Ok(Values(vec![value.to_owned()]))
            }

            fn visit_unit<E>(self) -> Result<Values, E> {
                Ok(Values(vec!["none".to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(Values(more)) = list.next_element()? {
                    values.extend(more);
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Parses `settings`, which stand in the field `of` of `source`.
///
/// # Errors
/// An unknown setting or an invalid value, with its place.
pub fn change<'a>(
    settings: impl IntoIterator<Item = (&'a str, &'a Spanned<Values>)>,
    source: &str,
    of: &str,
) -> Result<WireChange, LoadError> {
    let mut change = WireChange::default();
    for (name, values) in settings {
        for value in &values.value.0 {
            (change.set(name, value)).map_err(|problem| {
                yaml::invalid(source, values, &format!("{of}.{name}"), problem)
            })?;
        }
    }
    Ok(change)
}
