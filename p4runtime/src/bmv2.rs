//! BMv2's device config in a forwarding pipeline config: p4c's JSON, bare or in PI's message `p4.tmp.P4DeviceConfig`.
//!
//! BMv2 accepts both. p4runtime_lib of p4lang/tutorials sends the message.

use std::borrow::Cow;

use prost::{DecodeError, Message as _};

/// PI's `p4.tmp.P4DeviceConfig`, without its fields for BMv2's own use (`reassign` and `extras`).
#[derive(Clone, PartialEq, prost::Message)]
struct P4DeviceConfig {
    #[prost(bytes = "vec", tag = "3")]
    device_data: Vec<u8>,
}

/// Returns the JSON in a device config; empty if there is none.
///
/// # Errors
/// The device config has neither form.
pub fn json(device_config: &[u8]) -> Result<Cow<'_, [u8]>, DecodeError> {
    // A JSON object begins with `{`, which is no tag of the message.
    if device_config.trim_ascii_start().starts_with(b"{") {
        return Ok(Cow::Borrowed(device_config));
    }
    let message = P4DeviceConfig::decode(device_config)?;
    Ok(Cow::Owned(message.device_data))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of type bytes, as protobuf encodes it.
    fn bytes_field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut encoded = vec![number << 3 | 2];
        let mut rest = value.len();
        while rest >= 0x80 {
            encoded.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        encoded.push(rest as u8);
        encoded.extend_from_slice(value);
        encoded
    }

    #[test]
    fn both_forms_are_read() {
        let program = [b"{ \"actions\": [".as_slice(), &[b' '; 300], b"] }"].concat();
        for text in [program.clone(), [b"\n ".as_slice(), &program].concat()] {
            assert_eq!(json(&text).expect("JSON"), text);
        }
        let reassign = [1 << 3, 1];
        let extras = bytes_field(2, &bytes_field(1, &bytes_field(1, b"port")));
        let message = [&reassign, extras.as_slice(), &bytes_field(3, &program)].concat();
        assert_eq!(json(&message).expect("a message"), program);
        for empty in [&reassign, b"".as_slice()] {
            assert!(json(empty).expect("without a program").is_empty());
        }
    }

    #[test]
    fn anything_else_is_rejected() {
        let cut = &bytes_field(3, b"{}")[..2];
        for wrong in [b"[1]".as_slice(), b"hello", cut, &[3 << 3, 1]] {
            json(wrong).expect_err("rejected");
        }
    }
}
