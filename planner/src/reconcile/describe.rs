//! Descriptions of entities in the program's names.

use std::fmt::Write as _;

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::Update;

use super::key::{Key, Match, Value, key_of};

/// Names the entity of an update, without its value.
pub fn name(update: &Update, names: &Names) -> String {
    let entity = update.entity.as_ref();
    match entity.and_then(key_of) {
        Some(key) => describe(&key, None, names),
        None => "an empty update".to_owned(),
    }
}

/// Describes a key, and its value if given, on one line.
pub fn describe(key: &Key, value: Option<&Value>, names: &Names) -> String {
    let mut text = match key {
        Key::Row {
            table,
            fields,
            priority,
        } => row(*table, fields, *priority, names),
        Key::Group(id) => format!("multicast group {id}"),
        Key::Session(id) => format!("clone session {id}"),
        Key::Digest(id) => match names.digests.by_id(*id) {
            Some(digest) => format!("digest {}", digest.name),
            None => format!("digest {id}"),
        },
        Key::Meter { meter, index } => match names.meters.by_id(*meter) {
            Some(meter) => format!("{}[{index}]", meter.name),
            None => format!("meter {meter}[{index}]"),
        },
    };
    if let Some(value) = value {
        text.push_str(": ");
        text.push_str(&value.describe(names));
    }
    text
}

impl Value {
    /// Describes the value, on one line.
    pub fn describe(&self, names: &Names) -> String {
        let mut text = String::new();
        say(self, names, &mut text);
        text
    }
}

fn row(id: u32, fields: &[(u32, Match)], priority: i32, names: &Names) -> String {
    let table = names.tables.by_id(id);
    let mut text = table.map_or_else(|| format!("table {id}"), |table| table.name.clone());
    text.push('[');
    for (at, (id, matched)) in fields.iter().enumerate() {
        let field = table.and_then(|table| table.key.iter().find(|field| field.field.id == *id));
        let name = field.map_or_else(|| id.to_string(), |field| field.field.name.clone());
        let comma = if at == 0 { "" } else { ", " };
        // Writing to a `String` cannot fail.
        let _ = match matched {
            Match::Exact(value) | Match::Optional(value) => write!(text, "{comma}{name} {value}"),
            Match::Lpm(value, length) => write!(text, "{comma}{name} {value}/{length}"),
            Match::Ternary(value, mask) => write!(text, "{comma}{name} {value} &&& {mask}"),
            Match::Range(low, high) => write!(text, "{comma}{name} {low}..{high}"),
        };
    }
    if priority != 0 {
        let _ = write!(text, "; priority {priority}");
    }
    text.push(']');
    text
}

fn say(value: &Value, names: &Names, text: &mut String) {
    let _ = match value {
        Value::Action { id, params } => {
            let action = names.actions.by_id(*id);
            let name = action.map_or_else(|| format!("action {id}"), |it| it.alias.clone());
            text.push_str(&name);
            text.push('(');
            for (at, (id, value)) in params.iter().enumerate() {
                let param = action.and_then(|action| action.params.by_id(*id));
                let name = param.map_or_else(|| id.to_string(), |param| param.name.clone());
                let comma = if at == 0 { "" } else { ", " };
                let _ = write!(text, "{comma}{name} {value}");
            }
            text.push(')');
            Ok(())
        }
        Value::Copies { replicas, cut } => {
            let to: Vec<String> = (replicas.iter())
                .map(|replica| format!("{} as {}", replica.port, replica.instance))
                .collect();
            text.push_str(&match to.is_empty() {
                true => "to no port".to_owned(),
                false => format!("to port {}", to.join(", ")),
            });
            match *cut {
                (0, 0) => Ok(()),
                (class, 0) => write!(text, "; class {class}"),
                (class, bytes) => write!(text, "; class {class}, truncated to {bytes} bytes"),
            }
        }
        Value::Digest(config) => write!(
            text,
            "up to {} at once, after {} ns",
            config.max_list_size, config.max_timeout_ns
        ),
        Value::Meter(config) => write!(
            text,
            "{} B/s, bursts of {} and {} B",
            config.pir, config.cburst, config.pburst
        ),
        Value::Other(_) => write!(text, "an unknown value"),
    };
}
