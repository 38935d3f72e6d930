//! Text files that commands read: size limit, UTF-8 check, and the name that errors give a file.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result};

/// The largest text file, in bytes. A longer one is a mistake, or endless (`/dev/zero`).
const MAX_TEXT: usize = 64 << 20;

/// Reads a text file; `-` is standard input.
pub fn read_text(path: &Path) -> Result<String> {
    let text = match path == Path::new("-") {
        true => text_of(io::stdin().lock(), MAX_TEXT),
        false => fs::File::open(path).and_then(|file| text_of(file, MAX_TEXT)),
    };
    text.with_context(|| name_of(path))
}

/// Reads `source` to its end, at most `max` bytes.
fn text_of(source: impl Read, max: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        let why = format!("larger than {} MiB, the limit for input files", max >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let mut line = right.split(|byte| *byte == b'\n');
        let (line, column) = (
            line.clone().count(),
            line.next_back().map_or(0, characters) + 1,
        );
        let why = format!("line {line}, column {column}: not UTF-8; save the file as UTF-8 text");
        io::Error::new(ErrorKind::InvalidData, why)
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
        let said = |bytes: &[u8]| text_of(bytes, 16).map_err(|error| error.to_string());
        assert_eq!(said("ä: [ö]\n".as_bytes()), Ok("ä: [ö]\n".to_owned()));
        assert_eq!(said(b""), Ok(String::new()));
        for (bytes, place) in [
            (&b"\xff\xfeu"[..], "line 1, column 1: "),
            (b"a\nb\n\xc3\xa4\xe4", "line 3, column 2: "),
        ] {
            let wrong = said(bytes).unwrap_err();
            assert!(wrong.starts_with(place), "{wrong}");
        }
        assert!(said(&[b'a'; 16]).is_ok());
        let endless = text_of(io::repeat(0), 16 << 20).unwrap_err().to_string();
        assert!(endless.starts_with("larger than 16 MiB"), "{endless}");
    }
}
