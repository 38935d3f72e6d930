//! Parses a trace, line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ultima_host::trace::{self, Head, Record};

/// The longest line, in bytes; real ones have a few hundred.
const MAX_LINE: u64 = 64 << 10;

/// Reads the lines of a trace. Errors name file and line.
pub struct TraceReader {
    path: PathBuf,
    lines: BufReader<File>,
    /// The number of the last line, from 1.
    number: u64,
    line: String,
    head: Head,
}

impl TraceReader {
    /// Opens a file and reads its first line, the header.
    ///
    /// # Errors
    /// The file cannot be read or is not a trace.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let mut lines = BufReader::with_capacity(1 << 20, file);
        let mut line = String::new();
        let place = format!("{}:1", path.display());
        let not_a_trace = || format!("{place}: not a trace (docs/trace.md)");
        if !next_line(&mut lines, &mut line).with_context(not_a_trace)? {
            bail!("{place}: empty file; expected a trace (docs/trace.md)");
        }
        Ok(Self {
            head: trace::read_head(line.trim_end()).with_context(not_a_trace)?,
            path: path.to_owned(),
            lines,
            number: 1,
            line,
        })
    }

    /// The header.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next record; none at the end, also if the last line is incomplete.
    ///
    /// # Errors
    /// A line is not a record.
    pub fn next_record(&mut self) -> Result<Option<Record>> {
        self.number += 1;
        let more = next_line(&mut self.lines, &mut self.line).with_context(|| self.place())?;
        if !more {
            return Ok(None);
        }
        match trace::read_record(&self.head, self.line.trim_end()) {
            Ok(record) => Ok(Some(record)),
            Err(_) if !self.line.ends_with('\n') => Ok(None),
            Err(error) => Err(error).with_context(|| self.place()),
        }
    }

    /// File and number of the last line.
    pub fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.number)
    }
}

/// Reads a line with its line break; false at the end of the file.
fn next_line(from: &mut impl BufRead, line: &mut String) -> Result<bool> {
    line.clear();
    let read = from.by_ref().take(MAX_LINE).read_line(line);
    if matches!(&read, Err(error) if error.kind() == ErrorKind::InvalidData) {
        bail!("not UTF-8");
    }
    let read = read?;
    if read as u64 == MAX_LINE && !line.ends_with('\n') {
        bail!("line longer than {MAX_LINE} bytes");
    }
    Ok(read > 0)
}
