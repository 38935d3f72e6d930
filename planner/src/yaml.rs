//! YAML files with errors that name file, line, column and field.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_yaml::{Location, SnippetMode, Spanned};

mod outline;
mod words;

use outline::Outline;

/// A position in a file, printed as `file:line:column`. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePosition {
    source: String,
    /// 0 if unknown.
    line: u64,
    column: u64,
}

impl FilePosition {
    /// A file as a whole.
    pub fn whole(source: &str) -> Self {
        FilePosition::new(source, Location::UNKNOWN)
    }

    /// A position in a file, which may be unknown.
    pub fn new(source: &str, location: Location) -> Self {
        FilePosition {
            source: source.to_owned(),
            line: location.line(),
            column: location.column(),
        }
    }
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.source),
            line => write!(f, "{}:{line}:{}", self.source, self.column),
        }
    }
}

/// Error in a YAML file, on one line: its place, the field and the problem.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(String);

impl LoadError {
    /// Reports a problem of a field, such as `hosts[2].mac`, or of the whole text if `field` is empty.
    pub fn at(place: &FilePosition, field: &str, problem: impl fmt::Display) -> Self {
        LoadError(match field {
            "" => format!("{place}: {problem}"),
            field => format!("{place}: {field}: {problem}"),
        })
    }
}

/// Reads the file at `path`.
pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path)
        .map_err(|error| LoadError(format!("cannot read {}: {error}", path.display())))
}

/// Parses `text` as a `T`. Errors call the text `source`.
///
/// # Errors
/// The text is not YAML, or of another form.
pub fn parse<T: DeserializeOwned>(text: &str, source: &str) -> Result<T, LoadError> {
    serde_yaml::from_str(text).map_err(|error| {
        let location = error.location().unwrap_or(Location::UNKNOWN);
        let field = Outline::new(text).field_at(location);
        let place = FilePosition::new(source, location);
        LoadError::at(&place, &field, one_line(&error, location))
    })
}

/// A YAML text, with the name that errors give it.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    text: String,
    name: String,
    /// Made for the first place that is looked up: checks look up thousands in a large fabric.
    outline: Arc<OnceLock<Outline>>,
}

impl Text {
    /// The text of this name.
    pub fn new(text: &str, name: &str) -> Self {
        Text {
            text: text.to_owned(),
            name: name.to_owned(),
            outline: Arc::default(),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Parses the text as a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, LoadError> {
        parse(&self.text, &self.name)
    }

    /// The place of a field's value; none if the text does not have the field.
    pub fn find(&self, field: &str) -> Option<FilePosition> {
        let outline = self.outline.get_or_init(|| Outline::new(&self.text));
        let location = outline.place_of(field)?;
        Some(FilePosition::new(&self.name, location))
    }

    /// The place of a field's value, or of the whole text.
    pub fn place(&self, field: &str) -> FilePosition {
        let place = self.find(field).or_else(|| self.find(""));
        place.unwrap_or_else(|| FilePosition::whole(&self.name))
    }

    /// Reports a problem of a field, at its place.
    pub fn fail(&self, field: &str, problem: impl fmt::Display) -> LoadError {
        LoadError::at(&self.place(field), field, problem)
    }
}

/// The JSON schema of a form, draft 7, which YAML language servers read.
pub fn schema<T: JsonSchema>() -> serde_json::Value {
    let generator = SchemaSettings::draft07().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The documents of `text` that have content, each after as many empty lines as precede it, so that
/// places in a document are places in `text`. Lines that begin with `---` separate documents (YAML
/// 1.2.2, §9.2, c-forbidden).
pub fn documents(text: &str) -> impl Iterator<Item = String> {
    let mut documents = vec![String::new()];
    for (number, line) in text.lines().enumerate() {
        let is_separator = line == "---" || line.starts_with("--- ") || line.starts_with("---\t");
        if is_separator {
            documents.push("\n".repeat(number));
        }
        let last = documents.last_mut().expect("there is a first");
        last.push_str(line);
        last.push('\n');
    }
    let says = |line: &str| {
        let line = line.strip_prefix("---").unwrap_or(line).trim();
        !line.is_empty() && !line.starts_with('#')
    };
    (documents.into_iter()).filter(move |document| document.lines().any(says))
}

/// The reader's message on one line, without its excerpt of the text and without the place, which
/// our errors print first.
fn one_line(error: &serde_yaml::Error, location: Location) -> String {
    let plain = error.render_with_options(
        serde_yaml::render_options! { formatter: &words::Words, snippets: SnippetMode::Off },
    );
    let at = format!(" at line {}, column {}", location.line(), location.column());
    let message = plain.strip_suffix(&at).unwrap_or(&plain);
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reports that `field` is invalid, at the place of its value in `source`.
pub fn invalid<T>(
    source: &str,
    value: &Spanned<T>,
    field: &str,
    problem: impl fmt::Display,
) -> LoadError {
    LoadError::at(&FilePosition::new(source, value.referenced), field, problem)
}

/// The pattern of names; see [`ultima_api::is_name`].
pub(crate) const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$";

/// Checks the name of a switch, host or job.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    match ultima_api::is_name(name) {
        true => Ok(()),
        false => Err(format!(
            "invalid name {}; use 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit",
            shown(name)
        )),
    }
}

/// A text for a message: its beginning if it is longer than any name.
fn shown(text: &str) -> String {
    match text.char_indices().nth(64) {
        Some((end, _)) => format!("{:?} ...", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use ultima_api::is_name;

    use super::*;

    #[test]
    fn errors_have_the_beginning_of_a_long_name() {
        let refused = |name: &str| check_name(name).unwrap_err();
        assert!(refused("é b").starts_with("invalid name \"é b\";"));
        let long = "é".repeat(1 << 20);
        let expected = format!("invalid name \"{}\" ...;", &long[..128]);
        assert!(refused(&long).starts_with(&expected));
    }

    #[test]
    fn names_match_the_schema_pattern() {
        // The pattern is one class with a bounded repetition, so each character and each length can
        // be checked alone.
        assert_eq!(NAME, "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$");
        for first in (0..=u8::MAX).map(char::from) {
            assert_eq!(is_name(&first.to_string()), first.is_ascii_alphanumeric());
            let later = first.is_ascii_alphanumeric() || "_.-".contains(first);
            assert_eq!(is_name(&format!("a{first}")), later, "{first:?}");
        }
        assert!(is_name(&"a".repeat(63)) && !is_name(&"a".repeat(64)));
    }

    #[test]
    fn documents_keep_their_line_numbers() {
        let text = "# two jobs\n---\nname: one\n---\n# nothing\n--- # second\nname: two\n";
        let documents: Vec<String> = documents(text).collect();
        let [one, two] = &documents[..] else {
            panic!("{documents:?}")
        };
        let line = |document: &String| document.lines().position(|line| line.starts_with("name"));
        assert_eq!((line(one), line(two)), (Some(2), Some(6)));
    }
}
