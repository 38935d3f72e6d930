//! Bytes and numbers as traces write them.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of a frame; in JSON a string of two hexadecimal digits for each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Octets(
    /// In the order in which they are sent.
    pub Vec<u8>,
);

impl Octets {
    /// Reads pairs of hexadecimal digits; `None` for anything else.
    pub fn parse(digits: &str) -> Option<Octets> {
        let pairs = digits.as_bytes().chunks(2);
        let byte = |pair: &[u8]| match pair {
            [high, low] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                Some((digit(high)? << 4 | digit(low)?) as u8)
            }
            _ => None,
        };
        pairs.map(byte).collect::<Option<_>>().map(Octets)
    }

    /// Prints sixteen bytes per line.
    pub(crate) fn dump(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (row, chunk) in self.0.chunks(16).enumerate() {
            write!(f, "    {:04x} ", row * 16)?;
            for byte in chunk {
                write!(f, " {byte:02x}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Octets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Octets, D::Error> {
        let text = String::deserialize(from)?;
        Octets::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is not a row of octets")))
    }
}

/// Returns the number of some big-endian bytes, such as `0x88b5`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    match &bytes[zeros..] {
        [] => "0x0".to_owned(),
        [first, rest @ ..] => format!("{first:#x}{}", Octets(rest.to_vec())),
    }
}

pub(crate) fn plural(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}
