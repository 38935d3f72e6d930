//! Quantities in the notation of command lines and YAML: parsing and formatting.

use std::fmt::Display;
use std::time::Duration;

/// The reason that a quantity is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a rate.
    #[error("expected bits per second, more than 0, such as 100000000, 100M or 2.5G")]
    BitRate,
    /// Not a packet rate.
    #[error("expected packets per second, more than 0, such as 100 or 2.5k")]
    PacketRate,
    /// Not a size.
    #[error("expected bytes, more than 0, such as 65536, 64k or 1M")]
    Bytes,
    /// Not a time.
    #[error("expected a time with its unit, such as 250us, 1.5ms, 2s or 5m")]
    Duration,
}

/// Bits per second, at least 1: `100000000`, `100M`, `2.5G` (powers of 1,000).
pub fn bit_rate(text: &str) -> Result<u64, UnitError> {
    decimal(text)
        .filter(|rate| *rate > 0)
        .ok_or(UnitError::BitRate)
}

/// Packets per second, at least 1: `100`, `2.5k` (powers of 1,000).
pub fn packet_rate(text: &str) -> Result<u64, UnitError> {
    decimal(text)
        .filter(|rate| *rate > 0)
        .ok_or(UnitError::PacketRate)
}

/// A number, `400000`, `400K`, `2.5G` (powers of 1,000); `None` for any other text.
pub fn decimal(text: &str) -> Option<u64> {
    scaled(text, 1000.0)
}

/// Bytes, at least 1: `65536`, `64k`, `1M` (powers of 1,024).
pub fn bytes(text: &str) -> Result<u64, UnitError> {
    scaled(text, 1024.0)
        .filter(|bytes| *bytes > 0)
        .ok_or(UnitError::Bytes)
}

/// A time with its unit: `800ns`, `250us`, `1.5ms`, `2s`, `5m`, `24h`.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.find(char::is_alphabetic).ok_or(UnitError::Duration)?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(UnitError::Duration),
    };
    let seconds = number.parse::<f64>().map_err(|_| UnitError::Duration)? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|_| UnitError::Duration)
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

/// Formats a rate for [`bit_rate`]: `2.5G`.
pub fn show_bit_rate(rate: u64) -> String {
    shortest(rate, 1000.0, |text| bit_rate(text) == Ok(rate))
}

/// Formats a packet rate for [`packet_rate`]: `2.5k`.
pub fn show_packet_rate(rate: u64) -> String {
    show_bit_rate(rate)
}

/// Formats a size for [`bytes`]: `64k`.
pub fn show_bytes(size: u64) -> String {
    shortest(size, 1024.0, |text| bytes(text) == Ok(size))
}

/// Formats a time for [`duration`]: `1.5ms`.
pub fn show_duration(span: Duration) -> String {
    let nanos = span.as_nanos();
    let (scale, unit) = match nanos {
        0 => (1.0, "s"),
        1..1_000 => (1.0, "ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{}{unit}", nanos as f64 / scale)
}

/// A number of things: `1 rank`, `2 ranks`, `2 switches`. The noun is in the singular.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = match noun.ends_with("ch") {
        _ if number == N::from(1) => "",
        true => "es",
        false => "s",
    };
    format!("{number} {noun}{ending}")
}

/// The value in the largest unit that needs at most three decimals and parses to the same value.
fn shortest(value: u64, base: f64, same: impl Fn(&str) -> bool) -> String {
    [(3, "G"), (2, "M"), (1, "k")]
        .into_iter()
        .map(|(exponent, unit)| (value as f64 / base.powi(exponent), unit))
        .filter(|(scaled, _)| *scaled >= 1.0 && (scaled * 1000.0).fract() == 0.0)
        .map(|(scaled, unit)| format!("{scaled}{unit}"))
        .find(|text| same(text))
        .unwrap_or_else(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_sizes() {
        assert_eq!(bit_rate("2.5G"), Ok(2_500_000_000));
        assert_eq!(bit_rate("9600"), Ok(9600));
        assert_eq!(bytes("64k"), Ok(65536));
        for wrong in ["", "0", "k", "-1", "1T", "NaN", "inf", "1e400", "1µ"] {
            assert!(bit_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(duration("20µs"), Ok(Duration::from_micros(20)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["", "5", "ms", "-1s", "1d", "NaNs", "1e300s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_noun_has_the_number_of_its_count() {
        assert_eq!(counted(1_u16, "rank"), "1 rank");
        assert_eq!(counted(0_u64, "rank"), "0 ranks");
        assert_eq!(counted(2_usize, "switch"), "2 switches");
    }

    #[test]
    fn formatted_values_parse_again() {
        for (rate, shown) in [
            (2_500_000_000, "2.5G"),
            (100_000_000, "100M"),
            (9600, "9.6k"),
            (1, "1"),
            (1_000_001, "1000.001k"),
            (1_234_567, "1234.567k"),
            (12_345_678_901, "12345678.901k"),
        ] {
            assert_eq!(show_bit_rate(rate), shown);
            assert_eq!(bit_rate(shown), Ok(rate));
        }
        for (size, shown) in [(1 << 20, "1M"), (1536, "1.5k"), (1500, "1500"), (60, "60")] {
            assert_eq!(show_bytes(size), shown);
            assert_eq!(bytes(shown), Ok(size));
        }
        for (nanos, shown) in [
            (0, "0s"),
            (800, "800ns"),
            (250_000, "250us"),
            (1_500_000, "1.5ms"),
            (2_000_000_000, "2s"),
            (1_000_001, "1.000001ms"),
        ] {
            assert_eq!(show_duration(Duration::from_nanos(nanos)), shown);
            assert_eq!(duration(shown), Ok(Duration::from_nanos(nanos)));
        }
    }
}
