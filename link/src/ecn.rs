//! When a queue marks frames with explicit congestion notification (RFC 3168).
//!
//! One threshold on the queue as it is, not on an average of it: what data centre switches do for
//! DCTCP (RFC 8257 §3.1).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::units::{self, UnitError, show_bytes, show_duration};

/// Above what a frame is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EcnThreshold {
    /// Packets that the frame found in its queue when it came.
    Packets(u32),
    /// Bytes that it found there.
    Bytes(u64),
    /// How long it stayed in the queue.
    Time(Duration),
}

/// Why a threshold is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EcnError {
    /// None of the three kinds.
    #[error(
        "ECN threshold `{0}`: expected packets:NUMBER, bytes:SIZE or time:SPAN, such as packets:65, \
         bytes:90k or time:500us"
    )]
    Syntax(String),
    /// Its quantity is none.
    #[error("ECN threshold `{text}`: {source}")]
    Quantity {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: UnitError,
    },
}

/// `packets:N`, `bytes:SIZE` or `time:SPAN`.
impl FromStr for EcnThreshold {
    type Err = EcnError;

    fn from_str(text: &str) -> Result<Self, EcnError> {
        let syntax = || EcnError::Syntax(text.to_owned());
        let quantity = |source| EcnError::Quantity {
            text: text.to_owned(),
            source,
        };
        let (kind, value) = text.split_once(':').ok_or_else(syntax)?;
        match kind {
            "packets" => Ok(EcnThreshold::Packets(value.parse().map_err(|_| syntax())?)),
            "bytes" => units::bytes(value)
                .map(EcnThreshold::Bytes)
                .map_err(quantity),
            "time" => units::duration(value)
                .map(EcnThreshold::Time)
                .map_err(quantity),
            _ => Err(syntax()),
        }
    }
}

/// As it is read.
impl fmt::Display for EcnThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EcnThreshold::Packets(packets) => write!(f, "packets:{packets}"),
            EcnThreshold::Bytes(bytes) => write!(f, "bytes:{}", show_bytes(bytes)),
            EcnThreshold::Time(span) => write!(f, "time:{}", show_duration(span)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_shows_and_refuses_the_rest() {
        for text in ["packets:65", "bytes:90k", "time:500us"] {
            assert_eq!(text.parse::<EcnThreshold>().expect(text).to_string(), text);
        }
        for wrong in [
            "",
            "65",
            "packets:-1",
            "packets:1k",
            "bytes:",
            "time:5",
            "cells:3",
        ] {
            assert!(wrong.parse::<EcnThreshold>().is_err(), "{wrong}");
        }
    }
}
