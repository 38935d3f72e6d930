//! Match fields with different widths for control plane and packet (`@p4runtime_translation`, P4Runtime §18.1).
//!
//! The number is the same on both sides; only the padding differs. So every match kind can be converted.

use num_bigint::BigUint;

use super::super::bits::big_mask;
use super::super::error::ControlError;
use super::super::value::check_bytes;
use super::entry::Match;
use super::key::{KeyField, Owner};

impl KeyField {
    /// Converts a match to the packet's width. `None` if it matches every value.
    ///
    /// # Errors
    /// The match is invalid at the control plane's width, or no packet can match it.
    pub(super) fn carried_over(
        &self,
        owner: Owner,
        given: &Match,
    ) -> Result<Option<Match>, ControlError> {
        let inner = self.slot.width;
        let Some(outer) = self.outer_width.filter(|outer| *outer != inner) else {
            return Ok(Some(given.clone()));
        };
        let number = |bytes: &[u8]| {
            check_bytes(bytes, outer, || {
                format!("{owner}: match field {}", self.name)
            })?;
            Ok(BigUint::from_bytes_be(bytes))
        };
        let zero = BigUint::ZERO;
        let bytes = |number: &BigUint| number.to_bytes_be();
        Ok(match given {
            Match::Exact(_) | Match::Optional(_) => Some(given.clone()),
            Match::Lpm { value, prefix_len } => {
                if *prefix_len == 0 || *prefix_len > outer {
                    let what = format!("a prefix has 1 to {outer} bits, not {prefix_len}");
                    return Err(self.wrong(owner, what));
                }
                if number(value)? & big_mask(outer - prefix_len) != zero {
                    return Err(self.wrong(owner, "bits behind the prefix must be zero"));
                }
                let prefix_len = (prefix_len + inner).saturating_sub(outer);
                let any = prefix_len == 0 && number(value)? == zero;
                (!any).then(|| Match::Lpm {
                    value: value.clone(),
                    prefix_len: prefix_len.max(1),
                })
            }
            Match::Ternary { value, mask } => {
                let (value, mask) = (number(value)?, number(mask)?);
                if mask == zero {
                    return Err(self.wrong(owner, "a mask of zeros must be left out"));
                }
                if &value & &mask != value {
                    return Err(self.wrong(owner, "bits that the mask ignores must be zero"));
                }
                // What the control plane does not see is zero in all values that it can give.
                let unseen = big_mask(inner) - big_mask(outer.min(inner));
                let mask = (mask & big_mask(inner)) | unseen;
                let any = mask == zero && value == zero;
                (!any).then(|| Match::Ternary {
                    value: bytes(&value),
                    mask: bytes(&mask),
                })
            }
            Match::Range { low, high } => {
                let (low, high) = (number(low)?, number(high)?);
                if low > high {
                    return Err(self.wrong(owner, "the low end is above the high end"));
                }
                if low == zero && high == big_mask(outer) {
                    return Err(self.wrong(owner, "a range of all values must be left out"));
                }
                let high = high.min(big_mask(inner));
                let any = low == zero && high == big_mask(inner);
                (!any).then(|| Match::Range {
                    low: bytes(&low),
                    high: bytes(&high),
                })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::bits::Slot;
    use super::super::key::MatchKind;
    use super::*;

    fn carried(outer: u32, inner: u32, given: Match) -> Result<Option<Match>, String> {
        let field = KeyField {
            id: 1,
            name: "port".into(),
            kind: MatchKind::Ternary,
            slot: Slot::new(0, inner, false),
            outer_width: Some(outer),
            header: None,
            mask: None,
        };
        let carried = field.carried_over(Owner::Table("t"), &given);
        carried.map_err(|error| error.to_string())
    }

    fn ternary(value: u32, mask: u32) -> Match {
        let bytes = |number: u32| BigUint::from(number).to_bytes_be();
        Match::Ternary {
            value: bytes(value),
            mask: bytes(mask),
        }
    }

    fn lpm(value: u32, prefix_len: u32) -> Match {
        let value = BigUint::from(value).to_bytes_be();
        Match::Lpm { value, prefix_len }
    }

    fn range(low: u32, high: u32) -> Match {
        let bytes = |number: u32| BigUint::from(number).to_bytes_be();
        Match::Range {
            low: bytes(low),
            high: bytes(high),
        }
    }

    #[test]
    fn wider_outside_loses_what_is_always_zero() {
        let narrow = |given| carried(32, 9, given);
        assert_eq!(narrow(ternary(5, u32::MAX)), Ok(Some(ternary(5, 0x1ff))));
        assert_eq!(narrow(ternary(0, 0xffff_0000)), Ok(None));
        assert_eq!(narrow(lpm(0x100, 24)), Ok(Some(lpm(0x100, 1))));
        assert_eq!(narrow(lpm(7, 32)), Ok(Some(lpm(7, 9))));
        assert_eq!(narrow(lpm(0, 20)), Ok(None));
        assert_eq!(narrow(range(3, 9_000)), Ok(Some(range(3, 511))));
        assert_eq!(narrow(range(0, 9_000)), Ok(None));
        assert_eq!(
            narrow(Match::Exact(vec![7])),
            Ok(Some(Match::Exact(vec![7])))
        );
    }

    #[test]
    fn narrower_outside_asks_for_zeros_in_front() {
        let wide = |given| carried(9, 16, given);
        assert_eq!(wide(ternary(5, 0xff)), Ok(Some(ternary(5, 0xfeff))));
        assert_eq!(wide(lpm(0x100, 1)), Ok(Some(lpm(0x100, 8))));
        assert_eq!(wide(range(3, 9)), Ok(Some(range(3, 9))));
    }

    #[test]
    fn rules_hold_at_the_control_planes_width() {
        let narrow = |given| carried(32, 9, given).unwrap_err();
        assert!(narrow(ternary(0, 0)).ends_with("a mask of zeros must be left out"));
        assert!(narrow(ternary(3, 1)).ends_with("bits that the mask ignores must be zero"));
        assert!(narrow(lpm(0, 33)).ends_with("a prefix has 1 to 32 bits, not 33"));
        assert!(narrow(lpm(1, 31)).ends_with("bits behind the prefix must be zero"));
        assert!(narrow(range(2, 1)).ends_with("the low end is above the high end"));
        assert!(narrow(range(0, u32::MAX)).ends_with("a range of all values must be left out"));
    }
}
