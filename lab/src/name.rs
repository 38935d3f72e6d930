//! Names of labs.

use std::fmt;
use std::str::FromStr;

/// A lab's name. It is part of namespaces' names and of paths of sockets, which the kernel limits to 107
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabName(String);

/// The text is not a lab name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a lab name: expected 1 to 32 letters, digits, '-', '_' or '.', starting with a letter or digit; \
     choose one with --name"
)]
pub struct ParseNameError(String);

impl FromStr for LabName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let fits = (1..=32).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match fits {
            true => Ok(LabName(text.to_owned())),
            false => Err(ParseNameError(text.to_owned())),
        }
    }
}

impl LabName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_in_paths() {
        for good in ["a", "star4", "2.leaf-spine_x"] {
            assert_eq!(good.parse::<LabName>().unwrap().as_str(), good);
        }
        for wrong in ["", ".hidden", "..", "a/b", "a:b", "ü", &"a".repeat(33)] {
            assert!(wrong.parse::<LabName>().is_err(), "{wrong}");
        }
    }
}
