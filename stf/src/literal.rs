//! Numbers of the Simple Test Framework: `17`, `0x0a0*`, `0b1**1`, `0o17`, `10.0.0.1`.

use std::net::Ipv4Addr;

use num_bigint::BigUint;
use ultima_p4runtime::bytestring::Bytestring;

/// A number with optional wildcard digits (`*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// The number, with zeros for wildcards.
    pub value: BigUint,
    /// Ones for written digits, zeros for wildcards. `None` for a decimal number, which covers all bits of a field.
    pub mask: Option<BigUint>,
    /// Number of bits of the written digits.
    pub prefix: u32,
    /// True if there are wildcards.
    pub open: bool,
}

impl Literal {
    /// Parses a number.
    pub fn parse(text: &str) -> Option<Literal> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Literal {
                value: u32::from(address).into(),
                mask: Some(u32::MAX.into()),
                prefix: 32,
                open: false,
            });
        }
        let (digits, bits) = match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => (&text[2..], 4),
            Some("0o") => (&text[2..], 3),
            Some("0b") => (&text[2..], 1),
            _ => {
                let decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let value = BigUint::parse_bytes(text.as_bytes(), 10).filter(|_| decimal)?;
                return Some(Literal {
                    value,
                    mask: None,
                    prefix: 0,
                    open: false,
                });
            }
        };
        if digits.is_empty() {
            return None;
        }
        let (mut value, mut mask, mut prefix) = (BigUint::ZERO, BigUint::ZERO, 0);
        for digit in digits.chars() {
            value <<= bits;
            mask <<= bits;
            if digit != '*' {
                value |= BigUint::from(digit.to_digit(1 << bits)?);
                mask |= BigUint::from((1u32 << bits) - 1);
                prefix += bits;
            }
        }
        Some(Literal {
            value,
            mask: Some(mask),
            prefix,
            open: digits.contains('*'),
        })
    }

    /// Returns the number as a bytestring.
    pub fn bytestring(&self) -> Bytestring {
        bytestring(&self.value)
    }
}

/// Returns a number as a bytestring.
pub fn bytestring(value: &BigUint) -> Bytestring {
    Bytestring::from_be_bytes(&value.to_bytes_be())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(u64, Option<u64>, u32, bool)> {
        let narrow = |number: BigUint| u64::try_from(number).expect("a small number");
        let Literal {
            value,
            mask,
            prefix,
            open,
        } = Literal::parse(text)?;
        Some((narrow(value), mask.map(narrow), prefix, open))
    }

    #[test]
    fn numbers_have_a_base_and_open_digits() {
        assert_eq!(parts("17"), Some((17, None, 0, false)));
        assert_eq!(parts("0x0A"), Some((10, Some(0xff), 8, false)));
        assert_eq!(parts("0X1*"), Some((0x10, Some(0xf0), 4, true)));
        assert_eq!(parts("0x*1"), Some((1, Some(0xf), 4, true)));
        assert_eq!(parts("0b1*1"), Some((5, Some(5), 2, true)));
        assert_eq!(parts("0o17"), Some((15, Some(0x3f), 6, false)));
        assert_eq!(
            parts("10.0.0.1"),
            Some((0x0a00_0001, Some(0xffff_ffff), 32, false))
        );
        for wrong in ["", "0x", "0b2", "1*", "-1", "+1", "0xg", "ten", "1.2.3"] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
