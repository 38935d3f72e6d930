//! Output of commands: standard output, formats, tables, and files written atomically.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_transcode::transcode;

/// Standard output cannot be written. The command itself may have succeeded.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}; the command itself may have succeeded")]
pub struct Unprinted(#[from] io::Error);

/// Prints `text`. A closed pipe (`ultima … | head`) is not an error.
pub fn print(text: &str) -> Result<(), Unprinted> {
    print_on(text).map(|_| ())
}

/// Prints `text`; `Break` means that the reader has closed the pipe.
pub fn print_on(text: &str) -> Result<ControlFlow<()>, Unprinted> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(error.into()),
    }
}

/// Escapes control characters, so that names of files and keys cannot break a line or control the terminal.
pub fn visible(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// Writes `name` in `folder` atomically: a concurrent reader sees the old file or the new one.
///
/// # Errors
/// With the file's path.
pub fn write_whole(folder: &Path, name: &str, content: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let part = folder.join(format!(".{name}.part"));
    fs::write(&part, content)
        .and_then(|()| fs::rename(&part, &path))
        .with_context(|| path.display().to_string())?;
    Ok(path)
}

/// A document as JSON text. It keeps the order of its fields in every format, and the code for each format exists once, not for
/// each type of document.
#[derive(Clone, PartialEq)]
pub struct Json(String);

impl Json {
    /// The text of a document.
    ///
    /// # Errors
    /// The document cannot be serialized; Ultima's documents can.
    pub fn of(document: &impl Serialize) -> Result<Self> {
        Ok(Self(serde_json::to_string(document)?))
    }

    /// The document as a value.
    ///
    /// # Errors
    /// None.
    pub fn value(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.0)?)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        transcode(&mut serde_json::Deserializer::from_str(&self.0), serializer)
    }
}

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Plain text for people.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// The name as on the command line.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Table => "table",
            Format::Json => "json",
            Format::Yaml => "yaml",
        })
    }
}

/// The `-o` option.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Output {
    /// Output format: table, json or yaml
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value_t,
        hide_possible_values = true
    )]
    format: Format,
}

impl Output {
    /// The format.
    pub fn format(self) -> Format {
        self.format
    }

    /// See [`Format::print`].
    ///
    /// # Errors
    /// See there.
    pub fn print(
        self,
        document: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String> {
        self.format.print(document, table)
    }
}

impl Format {
    /// Formats `document`; `table` makes the text for people.
    ///
    /// # Errors
    /// The document cannot be serialized; Ultima's documents can.
    pub fn print(
        self,
        document: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String> {
        Ok(match self {
            Format::Table => table(),
            Format::Json => serde_json::to_string_pretty(&Json::of(document)?)? + "\n",
            Format::Yaml => serde_yaml::to_string(&Json::of(document)?)?,
        })
    }

    /// Formats one document of a stream: JSON on one line, YAML after `---`.
    ///
    /// # Errors
    /// See [`print`](Self::print).
    pub fn print_one(
        self,
        document: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String> {
        Ok(match self {
            Format::Table => table(),
            Format::Json => serde_json::to_string(document)? + "\n",
            Format::Yaml => format!("---\n{}", serde_yaml::to_string(&Json::of(document)?)?),
        })
    }
}

/// A table: columns as wide as their widest cell, two spaces apart.
pub fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let header = header.map(String::from).to_vec();
    let rows = std::iter::once(header).chain(rows.map(Vec::from));
    columns(&rows.collect::<Vec<_>>(), &mut Vec::new())
}

/// Formats rows of equal length. Columns are two spaces apart and as wide as their widest cell, and at least as wide as
/// `widths`, the widths of rows that were printed before. Updates `widths`.
pub fn columns(rows: &[Vec<String>], widths: &mut Vec<usize>) -> String {
    for row in rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&*widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let name = "s1\n\u{1b}[2J\r\u{9b}é \"x\\y\"";
        assert_eq!(visible(name), r#"s1\n\u{1b}[2J\r\u{9b}é "x\y""#);
    }

    #[test]
    fn documents_of_a_stream_are_separate() {
        let print = |format: Format| {
            let one = |number: u8| format.print_one(&[number], || format!("{number} of them\n"));
            [1, 2]
                .map(|number| one(number).expect("a document"))
                .concat()
        };
        assert_eq!(print(Format::Table), "1 of them\n2 of them\n");
        assert_eq!(print(Format::Json), "[1]\n[2]\n");
        assert_eq!(print(Format::Yaml), "---\n- 1\n---\n- 2\n");
    }

    #[test]
    fn columns_align() {
        let rows = [["a", "1"], ["long", "22"]].map(|row| row.map(String::from));
        assert_eq!(
            table(["NAME", "N"], rows.into_iter()),
            "NAME  N\na     1\nlong  22\n"
        );
    }
}
