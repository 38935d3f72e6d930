//! Templates of `-o jsonpath=`, in the syntax of kubectl: text, paths in braces, and `{range PATH}` … `{end}`.

use std::str::FromStr;

use serde_json::Value;

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Vec<Step>),
    /// Parts that are repeated for each value of a path, with paths relative to it.
    Range(Vec<Step>, Vec<Part>),
}

/// One step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    All,
}

impl FromStr for Template {
    type Err = String;

    /// Parses a template. Errors say which part is wrong, and what is supported.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        // The ranges without an end so far, with the parts before each.
        let mut ranges = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (inside, after) = match after.strip_prefix('"') {
                // Quoted text may contain braces.
                Some(quoted) => quoted.split_once("\"}"),
                None => after.split_once('}'),
            }
            .ok_or_else(|| format!("jsonpath {text:?} has a {{ without its }}"))?;
            parts.push(Part::Text(before.to_owned()));
            let is_text = rest[before.len() + 1..].starts_with('"');
            match inside.trim() {
                _ if is_text => {
                    parts.push(Part::Text(inside.replace("\\n", "\n").replace("\\t", "\t")))
                }
                "end" => {
                    let (steps, outer) = ranges.pop().ok_or_else(|| {
                        format!("jsonpath {text:?} has an {{end}} without its {{range}}")
                    })?;
                    let inner = std::mem::replace(&mut parts, outer);
                    parts.push(Part::Range(steps, inner));
                }
                word => match word.strip_prefix("range ") {
                    Some(of) => ranges.push((path(of.trim())?, std::mem::take(&mut parts))),
                    None => parts.push(Part::Path(path(word)?)),
                },
            }
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        if !ranges.is_empty() {
            return Err(format!(
                "jsonpath {text:?} has a {{range}} without its {{end}}"
            ));
        }
        parts.retain(|part| *part != Part::Text(String::new()));
        match parts.iter().any(|part| !matches!(part, Part::Text(_))) {
            true => Ok(Self(parts)),
            false => Err(format!(
                "jsonpath {text:?} has no path in braces, such as {{[*].name}}"
            )),
        }
    }
}

fn path(text: &str) -> Result<Vec<Step>, String> {
    let wrong = || {
        format!(
            "jsonpath {{{text}}} is not supported; expected .FIELD, [N] and [*], such as {{[*].name}}, or range and end"
        )
    };
    let mut steps = Vec::new();
    let mut rest = text.strip_prefix('$').unwrap_or(text);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']').ok_or_else(wrong)?;
            steps.push(match index {
                "*" => Step::All,
                index => Step::Index(index.parse().map_err(|_| wrong())?),
            });
            rest = after;
        } else {
            let after = rest.strip_prefix('.').ok_or_else(wrong)?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (field, after) = after.split_at(end);
            let is_word = |it: char| it.is_alphanumeric() || it == '_' || it == '-';
            match (field.is_empty(), field.chars().all(is_word)) {
                // `.` alone is the document, `.[0]` its first element.
                (true, _) if steps.is_empty() && !after.starts_with('.') => {}
                (false, true) => steps.push(Step::Field(field.to_owned())),
                _ => return Err(wrong()),
            }
            rest = after;
        }
    }
    Ok(steps)
}

impl Template {
    /// Fills in the values of `document`: several of one path are separated by spaces, and those that are missing left out.
    fn fill(&self, document: &Value) -> String {
        filled(&self.0, document)
    }

    /// The same, with a line break at its end.
    pub fn line(&self, document: &Value) -> String {
        let mut text = self.fill(document);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }
}

fn filled(parts: &[Part], document: &Value) -> String {
    let text = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(steps) => {
            let words = found(steps, document).into_iter().map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            words.collect::<Vec<String>>().join(" ")
        }
        Part::Range(steps, parts) => {
            let values = found(steps, document).into_iter();
            values.map(|value| filled(parts, value)).collect()
        }
    };
    parts.iter().map(text).collect()
}

/// The values of a path.
fn found<'a>(steps: &[Step], document: &'a Value) -> Vec<&'a Value> {
    // A list of kubectl is an object with `items`.
    let steps = match steps {
        [Step::Field(items), rest @ ..] if items == "items" && document.is_array() => rest,
        steps => steps,
    };
    steps.iter().fold(vec![document], |at, step| {
        at.into_iter().flat_map(|value| step.of(value)).collect()
    })
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            // An object of kubectl has its name in `metadata`.
            (Step::Field(name), Value::Object(all)) if name == "metadata" => {
                vec![all.get(name).unwrap_or(value)]
            }
            // A job has its uid in `status`.
            (Step::Field(name), Value::Object(all)) if name == "uid" => {
                let of_status = || all.get("status")?.get(name);
                all.get(name).or_else(of_status).into_iter().collect()
            }
            (Step::Field(name), _) => value.get(name).into_iter().collect(),
            (Step::Index(index), _) => value.get(index).into_iter().collect(),
            (Step::All, Value::Array(all)) => all.iter().collect(),
            (Step::All, Value::Object(all)) => all.values().collect(),
            (Step::All, _) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_select_values() {
        let document = json!([
            { "name": "a", "members": [{ "host": "h1" }, { "host": "h2" }], "id": 1, "status": { "uid": "5" } },
            { "name": "b", "members": [], "id": 2 },
        ]);
        for (template, expected) in [
            ("{[*].name}", "a b"),
            ("{$[0].id}", "1"),
            ("{.[1].name}", "b"),
            ("{.items[*].name}", "a b"),
            ("{.items[*].metadata.name}", "a b"),
            ("{[0].metadata.uid}", "5"),
            ("{.items[*].metadata.uid}", "5"),
            ("{[*].members[*].host}", "h1 h2"),
            ("{[0].members[1].host}{\"\\n\"}", "h2\n"),
            ("first={[0].name}, {\"{}\"}", "first=a, {}"),
            ("{[5].name}", ""),
            (
                "{range .items[*]}{.name}:{range .members[*]} {.host}{end}{\"\\n\"}{end}.",
                "a: h1 h2\nb:\n.",
            ),
            ("{[0].nothing.there}", ""),
            ("{[1].members}", "[]"),
        ] {
            let parsed: Template = template.parse().expect(template);
            assert_eq!(parsed.fill(&document), expected, "{template}");
        }
    }

    #[test]
    fn other_templates_are_refused() {
        for template in [
            "",
            "name",
            "{.name",
            "{name}",
            "{..name}",
            "{[x]}",
            "{[?(@.a)]}",
            "{.a b}",
        ] {
            let error = template.parse::<Template>().expect_err(template);
            assert!(error.starts_with("jsonpath "), "{error}");
        }
    }
}
