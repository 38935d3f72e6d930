//! What a frame must look like: hexadecimal digits, `*` for any, `$` for "and no more".

use std::fmt;

/// An expected frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Hexadecimal digits in upper case and `*`.
    digits: String,
    /// Nothing may follow.
    exact: bool,
}

/// Where a frame differs from its pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// It ends too early.
    Short,
    /// It goes on behind a pattern that ends with `$`.
    Long,
    /// At this digit, from 0.
    Digit(usize),
}

impl Pattern {
    /// Reads a pattern; `None` when it is none.
    pub fn parse(text: &str) -> Option<Pattern> {
        let text: String = text.split_whitespace().collect();
        let (digits, exact) = match text.strip_suffix('$') {
            Some(digits) => (digits.to_owned(), true),
            None => (text, false),
        };
        let known = digits
            .chars()
            .all(|digit| digit == '*' || digit.is_ascii_hexdigit());
        known.then(|| Pattern {
            digits: digits.to_ascii_uppercase(),
            exact,
        })
    }

    /// Compares a frame with the pattern; what follows a pattern without `$` does not count.
    pub fn compare(&self, frame: &[u8]) -> Result<(), Mismatch> {
        let got = hex(frame);
        let differs = |(wanted, got): (u8, u8)| wanted != b'*' && wanted != got;
        if let Some(place) = (self.digits.bytes().zip(got.bytes())).position(differs) {
            return Err(Mismatch::Digit(place));
        }
        if got.len() < self.digits.len() {
            return Err(Mismatch::Short);
        }
        if self.exact && got.len() > self.digits.len() {
            return Err(Mismatch::Long);
        }
        Ok(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.exact { "$" } else { "" };
        write!(f, "{}{end}", self.digits)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Short => f.write_str("the frame is too short"),
            Mismatch::Long => f.write_str("the frame is too long"),
            Mismatch::Digit(place) => write!(f, "they differ at digit {}", place + 1),
        }
    }
}

/// A frame in hexadecimal digits.
pub fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// A frame from hexadecimal digits; `None` when they are none, or half a byte is left.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = (text.chars().filter(|c| !c.is_whitespace()))
        .map(|digit| digit.to_digit(16))
        .collect::<Option<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair: &[u32]| (pair[0] << 4 | pair[1]) as u8;
    Some(digits.chunks_exact(2).map(byte).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_beginning_unless_it_says_otherwise() {
        let compare = |pattern: &str, frame: &str| {
            let pattern = Pattern::parse(pattern).expect("a pattern");
            pattern.compare(&unhex(frame).expect("a frame"))
        };
        assert_eq!(compare("0a *B", "0a1b"), Ok(()));
        assert_eq!(compare("0a", "0a1b"), Ok(()));
        assert_eq!(compare("0a 1", "0a1b"), Ok(()));
        assert_eq!(compare("", "0a1b"), Ok(()));
        assert_eq!(compare("0a$", "0a1b"), Err(Mismatch::Long));
        assert_eq!(compare("0a1b **", "0a1b"), Err(Mismatch::Short));
        assert_eq!(compare("0a2b", "0a1b"), Err(Mismatch::Digit(2)));
        assert_eq!(Pattern::parse("0$a"), None);
        assert_eq!(Pattern::parse("0g"), None);
        assert_eq!(unhex("0a1"), None);
    }
}
