//! What commands print, and files that they write.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// What was to be printed is lost, whatever the command has done before.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}; what was done stays done")]
pub struct Unprinted(#[from] io::Error);

/// Prints `text`; that nobody reads it any more (`ultima … | head`) is no error.
pub fn print(text: &str) -> Result<(), Unprinted> {
    print_on(text).map(|_| ())
}

/// The same for one who has more to print: not if nobody reads it any more.
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

/// `text` as one line that a terminal shows and does not obey: control characters, as names of files and keys may have them, as Rust
/// writes them.
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

/// Writes `name` in `folder` at once: who reads it meanwhile sees the former one or this.
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

/// How a command prints what it found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// As the command line has it.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Table => "table",
            Format::Json => "json",
            Format::Yaml => "yaml",
        })
    }
}

/// The option by which a command is told: all that print something to work with have it.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Output {
    /// How it is printed
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value_t)]
    format: Format,
}

impl Output {
    /// What was asked for.
    pub fn format(self) -> Format {
        self.format
    }

    /// As [`Format::print`].
    ///
    /// # Errors
    /// As there.
    pub fn print(
        self,
        document: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String> {
        self.format.print(document, table)
    }
}

impl Format {
    /// `document` in this form; `table` makes the one for people.
    ///
    /// # Errors
    /// The document has no such form: none of ours.
    pub fn print(
        self,
        document: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String> {
        Ok(match self {
            Format::Table => table(),
            Format::Json => serde_json::to_string_pretty(document)? + "\n",
            Format::Yaml => serde_yaml::to_string(document)?,
        })
    }

    /// One of several documents, as they come: JSON on a line, YAML behind the line that begins it.
    ///
    /// # Errors
    /// As [`print`](Self::print).
    pub fn print_one(
        self,
        document: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String> {
        Ok(match self {
            Format::Table => table(),
            Format::Json => serde_json::to_string(document)? + "\n",
            Format::Yaml => format!("---\n{}", serde_yaml::to_string(document)?),
        })
    }
}

/// Columns as wide as their widest cell, two spaces apart.
pub fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(header.map(String::from))
        .chain(rows)
        .collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
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
    fn what_a_terminal_would_obey_is_shown() {
        let name = "s1\n\u{1b}[2J\r\u{9b}é \"x\\y\"";
        assert_eq!(visible(name), r#"s1\n\u{1b}[2J\r\u{9b}é "x\y""#);
    }

    #[test]
    fn documents_that_come_one_by_one_are_told_apart() {
        let print = |format: Format| {
            let one = |number: u8| format.print_one(&[number], || format!("{number} of them\n"));
            [1, 2]
                .map(|number| one(number).expect("it has a form"))
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
