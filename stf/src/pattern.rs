//! Patterns of frames: hexadecimal digits, `*` for any digit, `$` for the end.

use std::fmt;

/// An expected frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Hexadecimal digits in upper case and `*`.
    digits: String,
    /// True if the frame must end with the pattern.
    exact: bool,
}

/// The difference between a frame and a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// The frame is too short.
    Short,
    /// The frame continues after the end of the pattern.
    Long,
    /// They differ at this digit, from 0.
    Digit(usize),
}

impl Pattern {
    /// Parses a pattern.
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

    /// Compares a frame with the pattern. Without `$`, the frame may continue.
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

/// Prints a frame in hexadecimal digits.
pub fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Parses a frame in hexadecimal digits.
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
    fn a_pattern_is_a_prefix_unless_it_ends_with_a_dollar() {
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
