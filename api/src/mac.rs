//! MAC addresses.

use std::fmt;
use std::str::FromStr;

use ultima_wire::frame;

/// A host's MAC address, written as six hexadecimal octets: `02:00:00:00:00:01`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub frame::Mac);

impl MacAddr {
    /// True if this can be a station's own address: not zero, and the group bit (IEEE 802, the
    /// lowest of the first octet) is clear.
    pub fn is_station(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

/// The text is not six hexadecimal octets separated by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid MAC address; expected six hexadecimal octets, such as 02:00:00:00:00:01")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(ParseMacError)?;
            // `from_str_radix` would accept a sign.
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        match parts.next() {
            None => Ok(MacAddr(octets)),
            Some(_) => Err(ParseMacError),
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_text() {
        let mac: MacAddr = "02:AB:00:ff:00:01".parse().unwrap();
        assert_eq!(mac.0, [2, 0xab, 0, 0xff, 0, 1]);
        assert_eq!(mac.to_string(), "02:ab:00:ff:00:01");
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(ParseMacError), "{text:?}");
        }
    }

    #[test]
    fn group_and_zero_addresses_are_not_stations() {
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_station());
        assert!(!MacAddr([1, 0, 0x5e, 0, 0, 1]).is_station());
        assert!(!MacAddr([0; 6]).is_station());
    }
}
