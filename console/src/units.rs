//! Parsers for quantities and addresses on the command line.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::str::FromStr;

pub use ultima_link::units::{bit_rate, bytes, counted, decimal, duration};

/// The address that a server listens on: `127.0.0.1:9559`, `[::1]:0`.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:9559".into())
}

/// The address of a server: `localhost:9559`, `[::1]:9559`.
pub fn authority(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').and_then(|(host, port)| {
        let port: u16 = port.parse().ok()?;
        (!host.is_empty()).then_some(port)
    });
    match port {
        Some(1..) => Ok(text.to_owned()),
        _ => Err("expected HOST:PORT, such as 127.0.0.1:9559".into()),
    }
}

/// The address of a controller: `10.0.0.2:9555`, `unix:/run/ultima.sock`.
pub fn control_address(text: &str) -> Result<String, String> {
    let is_one = match text.strip_prefix("unix:") {
        Some(path) => !path.is_empty(),
        None => authority(text).is_ok() && !text.contains(|it: char| it == '/' || it.is_control()),
    };
    match is_one {
        true => Ok(text.to_owned()),
        false => Err("expected HOST:PORT or unix:PATH, such as 10.0.0.2:9555".into()),
    }
}

/// A fraction from 0 to 1: `0.25`.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a fraction from 0 to 1, such as 0.25".into())
}

/// A fraction from 0 to below 1: `0.01`.
pub fn share_under_one(text: &str) -> Result<f64, String> {
    let share = share(text).ok().filter(|share| *share < 1.0);
    share.ok_or_else(|| "expected a fraction from 0 to under 1, such as 0.01".into())
}

/// An integer from 1 to `most`, the largest value of `T`: `4`, `25M`.
pub fn count<T: FromStr>(text: &str, most: impl fmt::Display) -> Result<T, String> {
    let scaled = || match text.ends_with(char::is_alphabetic) {
        true => decimal(text)?.to_string().parse().ok(),
        false => None,
    };
    let count = text.parse().ok().or_else(scaled);
    count.ok_or_else(|| format!("expected an integer from 1 to {most}"))
}

/// A half-open range of integers: `3..7`.
pub fn range(text: &str) -> Result<Range<u32>, String> {
    let wrong = || String::from("expected a range A..B with A < B, B excluded, such as 3..7");
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let range = start.parse().map_err(|_| wrong())?..end.parse().map_err(|_| wrong())?;
    if range.is_empty() {
        Err(wrong())
    } else {
        Ok(range)
    }
}

/// The address of a metrics endpoint; a port alone means loopback.
pub fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let port = text
        .parse()
        .map(|port: u16| (Ipv4Addr::LOCALHOST, port).into());
    port.or_else(|_| listen_address(text))
        .map_err(|_| "expected PORT or ADDRESS:PORT, such as 9464 or 10.0.0.1:9464".into())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn counts() {
        let parsed = |text| count::<NonZeroU16>(text, NonZeroU16::MAX);
        for (text, value) in [("1", 1), ("65535", 65_535), ("4K", 4000), ("0.5K", 500)] {
            assert_eq!(parsed(text).map(NonZeroU16::get), Ok(value));
        }
        for wrong in ["0", "65536", "1M", "-1", "1.5", "K", ""] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn control_addresses() {
        for right in ["127.0.0.1:9555", "[::1]:9555", "leaf:1", "unix:run/x"] {
            assert_eq!(control_address(right), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "leaf",
            ":1",
            "leaf:0",
            "leaf:x",
            "unix:",
            "http://leaf:1",
            "le\naf:1",
        ] {
            assert!(control_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn authorities() {
        for good in ["localhost:9559", "[::1]:1", "10.0.0.1:65535"] {
            assert_eq!(authority(good).as_deref(), Ok(good));
        }
        for wrong in ["", "localhost", ":9559", "host:0", "host:x", "host:65536"] {
            assert!(authority(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!((share("1"), share_under_one("0.5")), (Ok(1.0), Ok(0.5)));
        for wrong in ["", "-0.1", "1.1", "NaN", "half"] {
            assert!(
                share(wrong).is_err() && share_under_one(wrong).is_err(),
                "{wrong}"
            );
        }
        assert!(share_under_one("1").is_err());
    }

    #[test]
    fn ranges() {
        assert_eq!(range("3..7"), Ok(3..7));
        for wrong in ["", "3", "7..3", "3..3", "a..b", "-1..3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn metrics_listen_on_loopback_by_default() {
        let address = |text: &str| metrics_address(text).map(|address| address.to_string());
        assert_eq!(address("9464").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(address("[::]:1").as_deref(), Ok("[::]:1"));
        for wrong in ["", "x", "70000", "localhost:1", ":1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
