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
    // kubectl takes plurals, too.
    let kind: Kind =
        clap::ValueEnum::from_str(kind.trim_end_matches('s'), false).map_err(|_| {
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
    fn of(self, own: &'a Value) -> Self {
        Schema { own, ..self }
    }

    /// The definitions behind references and alternatives, without `null`.
    fn values(self) -> Vec<&'a Value> {
        let own = self.own;
        if let Some(name) = own["$ref"].as_str() {
            let definition = self.root.pointer(&name[1..]);
            return definition.map_or_else(Vec::new, |it| self.of(it).values());
        }
        let alternatives = own["anyOf"].as_array().or(own["allOf"].as_array());
        let Some(alternatives) = alternatives else {
            return vec![own];
        };
        let alternatives = alternatives.iter().filter(|it| it["type"] != "null");
        alternatives.flat_map(|it| self.of(it).values()).collect()
    }

    /// The values, and in place of lists their elements.
    fn elements(self) -> impl Iterator<Item = &'a Value> {
        let values = self.values().into_iter();
        values.flat_map(move |value| match items(value) {
            Some(items) => self.of(items).values(),
            None => vec![value],
        })
    }

    fn kind(self) -> String {
        let kinds = self.values().into_iter().map(|it| self.kind_of(it));
        kinds.collect::<Vec<_>>().join("|")
    }

    fn kind_of(self, value: &'a Value) -> String {
        if let Some(values) = value["enum"].as_array() {
            let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            return words.join("|");
        }
        let kinds = value["type"].as_array().map(Vec::as_slice);
        let kinds = kinds.unwrap_or(std::slice::from_ref(&value["type"]));
        let kinds = kinds.iter().filter_map(Value::as_str);
        let words = kinds.filter(|it| *it != "null").map(|kind| match kind {
            "array" => {
                let element = items(value).map(|it| self.of(it).kind());
                format!("[]{}", element.unwrap_or_default())
            }
            kind => kind.to_owned(),
        });
        match words.collect::<Vec<_>>() {
            none if none.is_empty() => "value".to_owned(),
            words => words.join("|"),
        }
    }

    fn description(self) -> &'a str {
        let own = self.own["description"].as_str();
        let mut behind = self.values().into_iter();
        own.or_else(|| behind.find_map(|it| it["description"].as_str()))
            .unwrap_or_default()
    }

    fn fields(self) -> impl Iterator<Item = (&'a str, Schema<'a>)> {
        let fields = self
            .elements()
            .filter_map(|it| it["properties"].as_object());
        let fields = fields.flatten();
        fields.map(move |(name, own)| (name.as_str(), self.of(own)))
    }

    fn field(self, name: &str) -> Option<Self> {
        self.fields()
            .find(|(known, _)| *known == name)
            .map(|(_, field)| field)
    }

    fn required(self) -> Vec<&'a str> {
        let names = self.elements().filter_map(|it| it["required"].as_array());
        names.flatten().filter_map(Value::as_str).collect()
    }
}

/// The schema of a list's elements.
fn items(value: &Value) -> Option<&Value> {
    match &value["items"] {
        Value::Null => None,
        Value::Array(items) => items.first(),
        items => Some(items),
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
        explain("jobs.members").expect("a plural");
        // Alternatives are all named.
        let ports = explain("fabric.switches.port_map").expect("a field");
        let expected = "fabric.switches.port_map <string|object>\n";
        assert!(ports.starts_with(expected), "{ports}");
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
