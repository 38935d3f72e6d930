//! Values as P4Runtime writes them: big-endian bytes.

use super::error::ControlError;

/// Checks that `bytes` are a number of at most `bits` bits. Leading zeros are accepted, as the
/// specification asks of servers; reads return the canonical, shortest form.
pub(super) fn check_bytes(
    bytes: &[u8],
    bits: u32,
    what: impl FnOnce() -> String,
) -> Result<(), ControlError> {
    let fault = if bytes.is_empty() {
        "the value is empty"
    } else if bit_length(bytes) > u64::from(bits) {
        "the value does not fit"
    } else {
        return Ok(());
    };
    Err(ControlError::value(&what(), bits, fault))
}

/// The shortest form of a number, at least one byte.
pub(super) fn canonical(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros.min(bytes.len().saturating_sub(1))..].to_vec()
}

/// Bits up to and including the most significant one that is set.
fn bit_length(bytes: &[u8]) -> u64 {
    match bytes.iter().position(|byte| *byte != 0) {
        Some(first) => {
            let below = (bytes.len() - first - 1) as u64;
            below * 8 + u64::from(8 - bytes[first].leading_zeros())
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fit_their_width_or_are_refused() {
        let check = |bytes: &[u8], bits| check_bytes(bytes, bits, || "x".into()).is_ok();
        assert!(check(&[0], 1) && check(&[1], 1) && !check(&[2], 1));
        assert!(check(&[0x01, 0xff], 9) && !check(&[0x02, 0x00], 9));
        assert!(check(&[0, 0, 0, 1], 1));
        assert!(!check(&[], 8));
    }

    #[test]
    fn canonical_is_shortest_but_never_empty() {
        assert_eq!(canonical(&[0, 0, 7]), [7]);
        assert_eq!(canonical(&[0, 0]), [0]);
        assert_eq!(canonical(&[]), [0u8; 0]);
        assert_eq!(canonical(&[1, 0]), [1, 0]);
    }
}
