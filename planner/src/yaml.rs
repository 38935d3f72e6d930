//! YAML files with errors that name file, line, column and field.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_yaml::{Location, SnippetMode, Spanned};

mod outline;
mod words;

use words::Words;

/// A place in a file, printed as `file:line:column`. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file's name, or the name of the text's origin.
    pub source: String,
    /// The line, from 1; 0 if unknown.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
}

impl Place {
    /// A file as a whole.
    pub fn whole(source: &str) -> Self {
        Place::new(source, Location::UNKNOWN)
    }

    pub(crate) fn new(source: &str, location: Location) -> Self {
        Place {
            source: source.to_owned(),
            line: location.line(),
            column: location.column(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.source),
            line => write!(f, "{}:{line}:{}", self.source, self.column),
        }
    }
}

/// Error in a YAML file. `P` is the problem of a well-formed file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<P: std::error::Error + 'static> {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The text is not YAML, or not of the expected form.
    #[error("{place}: {}{message}", prefix(field))]
    Form {
        /// The place.
        place: Place,
        /// The field's path, such as `hosts[2].ranks`; empty for the whole text.
        field: String,
        /// The YAML reader's message, on one line.
        message: String,
    },
    /// The text is well-formed, but its content is invalid.
    #[error("{place}: {field}: {problem}")]
    Invalid {
        /// The place.
        place: Place,
        /// The field's path, such as `hosts[2].mac`.
        field: String,
        /// The problem, and what would be right.
        problem: Box<P>,
    },
}

/// Reads the file at `path`.
pub(crate) fn read<P: std::error::Error>(path: &Path) -> Result<String, LoadError<P>> {
    std::fs::read_to_string(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Parses `text` as a `T`. Errors call the text `source`.
///
/// # Errors
/// The text is not YAML, or of another form.
pub fn parse<T: DeserializeOwned, P: std::error::Error>(
    text: &str,
    source: &str,
) -> Result<T, LoadError<P>> {
    serde_yaml::from_str(text).map_err(|error| {
        let location = error.location().unwrap_or(Location::UNKNOWN);
        LoadError::Form {
            place: Place::new(source, location),
            field: outline::field_at(text, location),
            message: one_line(&error, location),
        }
    })
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

/// The part of a message that names the field.
fn prefix(field: &str) -> String {
    match field {
        "" => String::new(),
        field => format!("{field}: "),
    }
}

/// The reader's message on one line, without its excerpt of the text and without the place, which
/// our errors print first.
fn one_line(error: &serde_yaml::Error, location: Location) -> String {
    let plain = error.render_with_options(
        serde_yaml::render_options! { formatter: &Words, snippets: SnippetMode::Off },
    );
    let at = format!(" at line {}, column {}", location.line(), location.column());
    let message = plain.strip_suffix(&at).unwrap_or(&plain);
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reports that `field` is invalid, at the place of its value in `source`.
pub fn invalid<T, P: std::error::Error>(
    source: &str,
    value: &Spanned<T>,
    field: impl Into<String>,
    problem: P,
) -> LoadError<P> {
    LoadError::Invalid {
        place: Place::new(source, value.referenced),
        field: field.into(),
        problem: Box::new(problem),
    }
}

/// The pattern of names; see [`ultima_api::is_name`].
pub(crate) const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$";

#[cfg(test)]
mod tests {
    use ultima_api::is_name;

    use super::*;

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
