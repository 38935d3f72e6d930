//! Quantities as people write them on a command line.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

/// Bits per second: `100000000`, `100M`, `2.5G` (powers of 1,000).
pub fn bit_rate(text: &str) -> Result<u64, String> {
    scaled(text, 1000.0)
        .filter(|rate| *rate > 0)
        .ok_or_else(|| "expected bits per second, such as 100000000, 100M or 2.5G".into())
}

/// Bytes: `65536`, `64k`, `1M` (powers of 1,024).
pub fn bytes(text: &str) -> Result<u64, String> {
    scaled(text, 1024.0)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected bytes, such as 65536, 64k or 1M".into())
}

fn scaled(text: &str, base: f64) -> Option<u64> {
    let exponent = match text.chars().last()?.to_ascii_lowercase() {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        _ => 0,
    };
    let number = if exponent == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    let value = number.parse::<f64>().ok()? * base.powi(exponent);
    (value.is_finite() && value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

/// A span of time with its unit: `250us`, `1.5ms`, `2s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || String::from("expected a time with its unit, such as 250us, 1.5ms or 2s");
    let digits = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Where a server listens: `127.0.0.1:9559`, `[::1]:0`.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:9559".into())
}

/// A range of integers, its end excluded: `3..7`.
pub fn range(text: &str) -> Result<Range<u32>, String> {
    let wrong = || String::from("expected a range A..B with A < B, such as 3..7");
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let range = start.parse().map_err(|_| wrong())?..end.parse().map_err(|_| wrong())?;
    if range.is_empty() {
        Err(wrong())
    } else {
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_sizes() {
        assert_eq!(bit_rate("2.5G"), Ok(2_500_000_000));
        assert_eq!(bit_rate("9600"), Ok(9600));
        assert_eq!(bytes("64k"), Ok(65536));
        for wrong in ["", "0", "k", "-1", "1T", "NaN", "inf", "1e400"] {
            assert!(bit_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "5", "ms", "-1s", "1h", "NaNs", "1e300s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(range("3..7"), Ok(3..7));
        for wrong in ["", "3", "7..3", "3..3", "a..b", "-1..3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
