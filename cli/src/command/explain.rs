//! `ultima explain`: the fields of the YAML files, from their JSON schemas.

use anyhow::Result;
use serde_json::Value;
use ultima_console::output;

use super::schema::Kind;
use crate::exit::Exit;

/// Explain a kind of YAML file, or a field of one
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima explain job\n  \
    ultima explain fabric.hosts.ranks")]
pub struct Arguments {
    /// Kind of file (fabric, job or tm) and the path of a field, such as job.members
    path: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    output::print(&explain(&arguments.path)?)?;
    Ok(())
}

fn explain(path: &str) -> Result<String> {
    let mut names = path.split('.');
    let kind = names.next().unwrap_or_default();
    let kind: Kind = clap::ValueEnum::from_str(kind, false).map_err(|_| {
        Exit::NotFound.because(format!(
            "unknown kind of file {kind:?}; there are fabric, job and tm"
        ))
    })?;
    let schema = kind.schema();
    let root = Schema {
        root: &schema,
        own: &schema,
    };
    let mut at = root;
    for name in names {
        at = at.field(name).ok_or_else(|| {
            let known: Vec<&str> = at.fields().map(|(name, _)| name).collect();
            let said = match known.is_empty() {
                true => format!("unknown field {path}: {name:?} is below a plain value"),
                false => format!("unknown field {path}; there are {}", known.join(", ")),
            };
            Exit::NotFound.because(said)
        })?;
    }
    let mut text = format!("{path} <{}>\n", at.kind());
    text += &indented(at.description(), "  ");
    let required = at.required();
    for (name, field) in at.fields() {
        let note = if required.contains(&name) {
            " -required-"
        } else {
            ""
        };
        text += &format!("\n  {name} <{}>{note}\n", field.kind());
        text += &indented(field.description(), "    ");
    }
    Ok(text)
}

/// The lines of a text, each after `margin`.
fn indented(text: &str, margin: &str) -> String {
    text.lines()
        .map(|line| format!("{margin}{line}\n"))
        .collect()
}

/// A part of a JSON schema.
#[derive(Clone, Copy)]
struct Schema<'a> {
    /// The whole schema, which has the definitions.
    root: &'a Value,
    /// The part, with its own description.
    own: &'a Value,
}

impl<'a> Schema<'a> {
    /// The definition behind references, alternatives to `null`, and lists.
    fn value(self) -> &'a Value {
        let mut at = self.own;
        loop {
            let alternatives = at["anyOf"].as_array().or(at["allOf"].as_array());
            let mut alternatives = alternatives.into_iter().flatten();
            at = match (
                at["$ref"].as_str(),
                alternatives.find(|it| it["type"] != "null"),
            ) {
                (Some(name), _) => self.root.pointer(&name[1..]).unwrap_or(&Value::Null),
                (None, Some(other)) => other,
                (None, None) => return at,
            };
        }
    }

    fn of(self, own: &'a Value) -> Self {
        Schema { own, ..self }
    }

    /// The elements of a list, or the value itself.
    fn element(self) -> Self {
        match self.value().get("items") {
            Some(Value::Array(items)) => self.of(items.first().unwrap_or(&Value::Null)),
            Some(items) => self.of(items),
            None => self,
        }
    }

    fn kind(self) -> String {
        let value = self.value();
        let word = |kind: &Value| kind.as_str().filter(|it| *it != "null").map(str::to_owned);
        if let Some(values) = value["enum"].as_array() {
            let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            return words.join("|");
        }
        match &value["type"] {
            Value::String(kind) if kind == "array" => format!("[]{}", self.element().kind()),
            Value::Array(kinds) => {
                let words: Vec<String> = kinds.iter().filter_map(word).collect();
                match &words[..] {
                    [list] if list == "array" => format!("[]{}", self.element().kind()),
                    words => words.join("|"),
                }
            }
            kind => word(kind).unwrap_or_else(|| "value".to_owned()),
        }
    }

    fn description(self) -> &'a str {
        let own = self.own["description"].as_str();
        own.or(self.value()["description"].as_str())
            .unwrap_or_default()
    }

    fn fields(self) -> impl Iterator<Item = (&'a str, Schema<'a>)> {
        let fields = self.element().value()["properties"].as_object();
        let fields = fields.into_iter().flatten();
        fields.map(move |(name, own)| (name.as_str(), self.of(own)))
    }

    fn field(self, name: &str) -> Option<Self> {
        self.fields()
            .find(|(known, _)| *known == name)
            .map(|(_, field)| field)
    }

    fn required(self) -> Vec<&'a str> {
        let names = self.element().value()["required"].as_array();
        names
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_fields_are_explained() {
        let job = explain("job").expect("a kind");
        for line in [
            "job <object>\n  A job of Ultima: its members and its options.\n",
            "\n  name <string> -required-\n    The job's name, unique in the fabric.\n",
            "\n  gather <multicast|unicast>\n",
            "\n  weight <integer>\n",
        ] {
            assert!(job.contains(line), "{job}");
        }
        let members = explain("job.members").expect("a field");
        assert!(
            members.starts_with("job.members <[]string>\n  The members' hosts"),
            "{members}"
        );
        let ranks = explain("fabric.hosts.ranks").expect("a field");
        assert!(
            ranks.starts_with("fabric.hosts.ranks <integer>\n"),
            "{ranks}"
        );
        for (path, said) in [
            (
                "pod",
                "unknown kind of file \"pod\"; there are fabric, job and tm",
            ),
            (
                "fabric.hosts.rank",
                "unknown field fabric.hosts.rank; there are ip, mac, name, ranks, udp_port",
            ),
            (
                "job.name.x",
                "unknown field job.name.x: \"x\" is below a plain value",
            ),
        ] {
            let error = explain(path).expect_err(path);
            assert_eq!(error.to_string(), said);
            assert_eq!(Exit::of(&error), Exit::NotFound);
        }
    }
}
