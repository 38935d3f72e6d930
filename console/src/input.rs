//! Text files that commands read: size limit, UTF-8 check, and the name that errors give a file.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

/// The largest text file, in bytes. A longer file is a mistake or endless (`/dev/zero`).
const MAX_TEXT: usize = 64 << 20;

/// An input file: a positional argument, or the value of `-f`.
#[derive(clap::Args, Clone, Debug)]
pub struct File {
    /// YAML file; `-` reads standard input. `-f FILE` is the same
    #[arg(value_name = "FILE", required_unless_present = "option")]
    word: Option<PathBuf>,
    #[arg(
        short = 'f',
        long = "file",
        value_name = "FILE",
        hide = true,
        conflicts_with = "word"
    )]
    option: Option<PathBuf>,
}

impl File {
    /// The file's path.
    pub fn path(&self) -> &Path {
        let path = self.word.as_deref().or(self.option.as_deref());
        path.expect("one of both is required")
    }
}

/// Reads a text file; `-` is standard input.
pub fn read_text(path: &Path) -> Result<String> {
    let name = name_of(path);
    if path == Path::new("-") {
        return text_of(io::stdin().lock(), &name, MAX_TEXT);
    }
    let file = fs::File::open(path).with_context(|| name.clone())?;
    text_of(file, &name, MAX_TEXT)
}

/// Reads `source` to its end, at most `max` bytes. Errors begin with its `name`.
fn text_of(source: impl Read, name: &str, max: usize) -> Result<String> {
    let mut bytes = Vec::new();
    let mut limited = source.take(max as u64 + 1);
    let read = limited.read_to_end(&mut bytes);
    read.with_context(|| name.to_owned())?;
    if bytes.len() > max {
        let most = max >> 20;
        bail!("{name}: larger than {most} MiB, the limit for input files");
    }
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let mut line = right.split(|byte| *byte == b'\n');
        let (line, column) = (
            line.clone().count(),
            line.next_back().map_or(0, characters) + 1,
        );
        anyhow!("{name}:{line}:{column}: not UTF-8; save the file as UTF-8 text")
    })
}

/// The number of characters in a line of UTF-8.
fn characters(line: &[u8]) -> usize {
    String::from_utf8_lossy(line).chars().count()
}

/// A file's name in error messages.
pub fn name_of(path: &Path) -> String {
    match path == Path::new("-") {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_utf8_and_of_limited_size() {
        let read = |bytes: &[u8]| text_of(bytes, "f.yaml", 16).map_err(|error| error.to_string());
        assert_eq!(read("ä: [ö]\n".as_bytes()), Ok("ä: [ö]\n".to_owned()));
        assert_eq!(read(b""), Ok(String::new()));
        for (bytes, place) in [
            (&b"\xff\xfeu"[..], "f.yaml:1:1: not UTF-8"),
            (b"a\nb\n\xc3\xa4\xe4", "f.yaml:3:2: not UTF-8"),
        ] {
            let wrong = read(bytes).unwrap_err();
            assert!(wrong.starts_with(place), "{wrong}");
        }
        assert!(read(&[b'a'; 16]).is_ok());
        let too_large = text_of(io::repeat(0), "zeros", 16 << 20).unwrap_err();
        let too_large = too_large.to_string();
        assert!(
            too_large.starts_with("zeros: larger than 16 MiB"),
            "{too_large}"
        );
    }
}
