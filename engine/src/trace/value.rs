//! Numbers and bytes as traces write them.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An unsigned number of any width; in JSON a string such as `"0x88b5"`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Value(
    /// Big-endian bytes without leading zeros, at least one.
    Vec<u8>,
);

impl Value {
    /// Bytes that it takes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of these big-endian bytes.
    pub fn new(bytes: &[u8]) -> Value {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match &bytes[zeros..] {
            [] => Value(vec![0]),
            rest => Value(rest.to_vec()),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::new(&number.to_be_bytes())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        write!(f, "{first:#x}")?;
        rest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.strip_prefix("0x").unwrap_or_default();
        let padded = format!("{}{digits}", if digits.len() % 2 == 1 { "0" } else { "" });
        match Octets::parse(&padded) {
            Some(Octets(bytes)) if !bytes.is_empty() => Ok(Value::new(&bytes)),
            _ => Err(D::Error::custom(format!(
                "{text:?} is not a number in hexadecimal"
            ))),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_hexadecimal_and_come_back() {
        for (bytes, text) in [
            (&[0, 0][..], "0x0"),
            (&[0, 7], "0x7"),
            (&[0x12, 0x03], "0x1203"),
            (&[0xab; 9], "0xababababababababab"),
            (&[], "0x0"),
        ] {
            let value = Value::new(bytes);
            assert_eq!(value.to_string(), text);
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
        for wrong in ["\"12\"", "\"0x\"", "\"0xg1\"", "3"] {
            assert!(serde_json::from_str::<Value>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn octets_come_in_pairs() {
        assert_eq!(Octets::parse("00aBff"), Some(Octets(vec![0, 0xab, 0xff])));
        assert_eq!(Octets(vec![0, 0xab, 0xff]).to_string(), "00abff");
        assert_eq!(
            (
                Octets::parse("0"),
                Octets::parse("0x01"),
                Octets::parse("é")
            ),
            (None, None, None)
        );
    }
}
