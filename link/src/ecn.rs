//! The threshold at which a queue marks frames with explicit congestion notification (RFC 3168).
//!
//! It applies to the current queue, not to an average, as data centre switches do for DCTCP (RFC 8257 §3.1).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::units::{self, UnitError, show_bytes, show_duration};

/// The threshold above which a frame is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EcnThreshold {
    /// Packets in the queue when the frame arrived.
    Packets(u32),
    /// Bytes in the queue when the frame arrived.
    Bytes(u64),
    /// The frame's time in the queue.
    Time(Duration),
}

/// The reason that a threshold is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EcnError {
    /// Not one of the three kinds.
    #[error(
        "ECN threshold `{0}`: expected packets:NUMBER, bytes:SIZE or time:SPAN, such as packets:65, \
         bytes:90k or time:500us"
    )]
    Syntax(String),
    /// An invalid quantity.
    #[error("ECN threshold `{text}`: {source}")]
    Quantity {
        /// The text.
        text: String,
        /// The error in the quantity.
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

/// In the format of the parser.
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
    fn formatted_text_parses_and_other_text_is_rejected() {
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
