//! The key of a table: its fields, their match kinds, and the encoding of entries.

use std::fmt;

use super::super::bits::Slot;
use super::super::error::ControlError;
use super::super::key::{ones, word_count};
use super::super::p4info::MatchKind;
use super::super::phv::Phv;
use super::super::value::{
    bit_length, check_bytes, compare, is_largest, read_words, significant, trailing_zeros,
};
use super::entry::{FieldMatch, Match};
use super::entry_key::{EntryKey, Range, Words};
use super::matcher::Matcher;
use super::words::SHORT;

/// The owner of a key, for errors: its kind and its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner<'a>(pub &'static str, pub &'a str);

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

#[derive(Debug)]
pub(crate) struct KeyField {
    /// The field's P4Info id.
    pub id: u32,
    /// The field's P4Info name.
    pub name: String,
    pub kind: MatchKind,
    pub slot: Slot,
    /// Width in the control plane, if it differs from the slot's.
    pub outer_width: Option<u32>,
    /// The header whose invalidity makes the field zero in lookups; `None` for `$valid$`.
    pub header: Option<usize>,
    /// The program's own mask on the field.
    pub mask: Option<Vec<u64>>,
}

/// The fields of a key, in order.
#[derive(Debug)]
pub(crate) struct Key {
    pub fields: Vec<KeyField>,
    /// Sources of the key's words.
    pub parts: Vec<Part>,
    words: usize,
}

/// A word of a packet's key.
#[derive(Debug)]
pub(crate) struct Part {
    /// At most 64 bits, unsigned.
    pub slot: Slot,
    /// The header whose invalidity makes the word zero.
    pub header: Option<usize>,
    pub mask: u64,
}

impl Part {
    fn load(&self, phv: &Phv) -> u64 {
        match self.header {
            Some(header) if !phv.is_valid(header) => 0,
            _ => self.slot.load_word(&phv.bytes) & self.mask,
        }
    }
}

impl Key {
    pub fn new(fields: Vec<KeyField>) -> Key {
        let words = fields
            .iter()
            .map(|field| word_count(field.slot.width))
            .sum();
        let parts = fields.iter().flat_map(KeyField::parts).collect();
        Key {
            fields,
            parts,
            words,
        }
    }

    /// True if entries need a priority.
    pub fn has_priority(&self) -> bool {
        use MatchKind::*;
        self.fields
            .iter()
            .any(|field| matches!(field.kind, Ternary | Range | Optional))
    }

    /// An empty lookup structure.
    pub fn matcher(&self) -> Matcher {
        Matcher::new(self.fields.iter().map(|field| field.kind))
    }

    /// The key of a packet.
    pub fn build(&self, phv: &Phv, key: &mut Vec<u64>) {
        key.clear();
        key.extend(self.parts.iter().map(|part| part.load(phv)));
    }

    /// True if code computes the key before a lookup.
    pub fn is_short(&self) -> bool {
        self.parts.len() <= SHORT
    }

    /// Encodes what the control plane writes.
    pub fn encode(
        &self,
        owner: Owner,
        matches: &[FieldMatch],
        priority: i32,
    ) -> Result<EntryKey, ControlError> {
        self.check_priority(owner, priority)?;
        for (index, given) in matches.iter().enumerate() {
            let fault = if !self.fields.iter().any(|field| field.id == given.field) {
                "there is no such match field"
            } else if matches[..index]
                .iter()
                .any(|other| other.field == given.field)
            {
                "it is given twice"
            } else {
                continue;
            };
            let field = given.field;
            return Err(ControlError::invalid(format!(
                "{owner}: match field {field}: {fault}"
            )));
        }
        let mut key = EntryKey {
            value: vec![0; self.words].into(),
            mask: vec![0; self.words].into(),
            ranges: Vec::new(),
            prefix_len: 0,
            priority,
        };
        let mut at = 0;
        for field in &self.fields {
            match matches.iter().find(|given| given.field == field.id) {
                Some(given) => field.encode(owner, &given.matches, &mut key, at)?,
                None if field.kind == MatchKind::Exact => {
                    return Err(field.wrong(owner, "an exact field must be given"));
                }
                None => {}
            }
            at += word_count(field.slot.width);
        }
        Ok(key)
    }

    /// Returns valid matches as reads give them: in the order of the key, with canonical values.
    pub fn canonical(&self, mut matches: Vec<FieldMatch>) -> Vec<FieldMatch> {
        matches.sort_by_key(|given| self.fields.iter().position(|field| field.id == given.field));
        matches.into_iter().map(FieldMatch::canonical).collect()
    }

    fn check_priority(&self, owner: Owner, priority: i32) -> Result<(), ControlError> {
        let what = match self.has_priority() {
            true if priority <= 0 => "it must be 1 or more",
            false if priority != 0 => "it must be 0: the key decides which entry wins",
            _ => return Ok(()),
        };
        Err(ControlError::invalid(format!(
            "{owner}: priority {priority}: {what}"
        )))
    }
}

impl KeyField {
    /// The words of the field, the most significant first.
    fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let words = word_count(self.slot.width);
        (0..words).map(move |word| {
            let low = (words - 1 - word) as u32 * 64;
            let width = (self.slot.width - low).min(64);
            Part {
                slot: self.slot.part(low, width),
                header: self.header,
                mask: self.mask.as_ref().map_or(u64::MAX, |mask| mask[word]),
            }
        })
    }

    /// Writes one match to a key, whose word `at` is the field's first one.
    ///
    /// With `@p4runtime_translation` (P4Runtime §18.1), the control plane's width may differ from the packet's. The number is the
    /// same on both sides; only the padding differs.
    ///
    /// # Errors
    /// The match is invalid at the control plane's width, or no packet can match it.
    fn encode(
        &self,
        owner: Owner,
        given: &Match,
        key: &mut EntryKey,
        at: usize,
    ) -> Result<(), ControlError> {
        let inner = self.slot.width;
        let outer = self.outer_width.unwrap_or(inner);
        let what = || format!("{owner}: match field {}", self.name);
        let words = at..at + word_count(inner);
        let (value_words, mask_words) = (&mut key.value[words.clone()], &mut key.mask[words]);
        let read = |bytes: &[u8], words: &mut [u64]| {
            check_bytes(bytes, inner, what)?;
            read_words(bytes, words);
            Ok::<(), ControlError>(())
        };
        match (self.kind, given) {
            (MatchKind::Exact, Match::Exact(value))
            | (MatchKind::Optional, Match::Optional(value)) => {
                read(value, value_words)?;
                set(mask_words, ones(inner, 0));
            }
            (MatchKind::Lpm, Match::Lpm { value, prefix_len }) => {
                check_bytes(value, outer, what)?;
                if *prefix_len == 0 {
                    return Err(self.wrong(owner, "a prefix of length 0 must be left out"));
                }
                if *prefix_len > outer {
                    let what = format!("a prefix has 1 to {outer} bits, not {prefix_len}");
                    return Err(self.wrong(owner, what));
                }
                let zeros = trailing_zeros(value);
                if zeros.is_some_and(|zeros| zeros < u64::from(outer - prefix_len)) {
                    return Err(self.wrong(owner, "bits behind the prefix must be zero"));
                }
                let prefix_len = (prefix_len + inner).saturating_sub(outer);
                if prefix_len == 0 && zeros.is_none() {
                    return Ok(());
                }
                read(value, value_words)?;
                set(mask_words, ones(inner, inner - prefix_len));
                key.prefix_len += prefix_len;
            }
            (MatchKind::Ternary, Match::Ternary { value, mask }) => {
                check_bytes(value, outer, what)?;
                check_bytes(mask, outer, what)?;
                if significant(mask).is_empty() {
                    return Err(self.wrong(owner, "a mask of zeros must be left out"));
                }
                let mut mask_bytes = mask.iter().rev();
                let ignored = |byte: &u8| byte & !mask_bytes.next().unwrap_or(&0) != 0;
                if value.iter().rev().any(ignored) {
                    return Err(self.wrong(owner, "bits that the mask ignores must be zero"));
                }
                read(value, value_words)?;
                // Bits that the control plane does not see are zero in all its values.
                let unseen = ones(inner, outer.min(inner));
                read_words(mask, mask_words);
                for (word, (all, unseen)) in mask_words.iter_mut().zip(ones(inner, 0).zip(unseen)) {
                    *word = *word & all | unseen;
                }
            }
            (MatchKind::Range, Match::Range { low, high }) => {
                check_bytes(low, outer, what)?;
                check_bytes(high, outer, what)?;
                if compare(low, high).is_gt() {
                    return Err(self.wrong(owner, "the low end is above the high end"));
                }
                let from_zero = significant(low).is_empty();
                if from_zero && is_largest(high, outer) {
                    return Err(self.wrong(owner, "a range of all values must be left out"));
                }
                let to_all = bit_length(high) > inner.into() || is_largest(high, inner);
                if from_zero && to_all {
                    return Ok(());
                }
                let mut ends = [0, 1].map(|_| ones(inner, 0).collect::<Words>());
                read(low, &mut ends[0])?;
                if !to_all {
                    read(high, &mut ends[1])?;
                }
                let [low, high] = ends;
                key.ranges.push(Range { at, low, high });
            }
            (kind, _) => {
                return Err(self.wrong(owner, format!("it matches by {kind:?}").to_lowercase()));
            }
        }
        Ok(())
    }

    fn wrong(&self, owner: Owner, what: impl Into<String>) -> ControlError {
        let (field, name, what) = (self.id, &self.name, what.into());
        ControlError::invalid(format!("{owner}: match field {field}: {name}: {what}"))
    }
}

fn set(words: &mut [u64], to: impl Iterator<Item = u64>) {
    words.iter_mut().zip(to).for_each(|(word, to)| *word = to);
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;

    use super::super::super::error::ErrorKind;
    use super::*;

    fn key(kinds: &[(MatchKind, u32)]) -> Key {
        let mut bit = 0;
        let fields = kinds.iter().enumerate().map(|(i, (kind, width))| {
            let slot = Slot::new(bit, *width, false);
            bit += *width as usize;
            let (id, name) = (i as u32 + 1, format!("f{}", i + 1));
            KeyField {
                id,
                name,
                kind: *kind,
                slot,
                outer_width: None,
                header: None,
                mask: None,
            }
        });
        Key::new(fields.collect())
    }

    fn field(field: u32, matches: Match) -> FieldMatch {
        FieldMatch { field, matches }
    }

    fn refused(key: &Key, matches: &[FieldMatch], priority: i32) -> String {
        let error = key
            .encode(Owner("table", "t"), matches, priority)
            .unwrap_err();
        let kind = match error.to_string().contains(" bits wide: ") {
            true => ErrorKind::OutOfRange,
            false => ErrorKind::InvalidArgument,
        };
        assert_eq!(error.kind(), kind);
        error.to_string()
    }

    #[test]
    fn exact_fields_must_all_be_there_once() {
        let key = key(&[(MatchKind::Exact, 9), (MatchKind::Exact, 16)]);
        let (one, two) = (
            field(1, Match::Exact(vec![1])),
            field(2, Match::Exact(vec![0, 2])),
        );
        let given = [two.clone(), one.clone()];
        let encoded = key.encode(Owner("table", "t"), &given, 0).unwrap();
        assert_eq!(*encoded.value, [1, 2]);
        let written = key.canonical(given.into());
        assert_eq!(written, [one.clone(), field(2, Match::Exact(vec![2]))]);
        let text = refused(&key, std::slice::from_ref(&one), 0);
        assert_eq!(
            text,
            "table t: match field 2: f2: an exact field must be given"
        );
        assert!(refused(&key, &[one.clone(), one.clone()], 0).ends_with("given twice"));
        assert!(refused(&key, &[field(3, Match::Exact(vec![1]))], 0).contains("no such"));
        assert!(refused(&key, &[one, two], 4).contains("priority 4: it must be 0"));
        let wide = field(1, Match::Exact(vec![2, 0]));
        assert_eq!(
            refused(&key, &[wide], 0),
            "table t: match field f1 is 9 bits wide: the value does not fit"
        );
        let other = field(1, Match::Optional(vec![1]));
        assert!(refused(&key, &[other], 0).ends_with("it matches by exact"));
    }

    #[test]
    fn masked_bits_must_be_zero() {
        let key = key(&[(MatchKind::Ternary, 16), (MatchKind::Lpm, 32)]);
        let ternary = |value, mask| field(1, Match::Ternary { value, mask });
        let lpm = |value, prefix_len| field(2, Match::Lpm { value, prefix_len });
        let both = [
            ternary(vec![0x12, 0], vec![0xff, 0]),
            lpm(vec![10, 0, 0, 0], 8),
        ];
        let encoded = key.encode(Owner("table", "t"), &both, 1).unwrap();
        assert_eq!(*encoded.value, [0x1200, 0x0a00_0000]);
        assert_eq!(*encoded.mask, [0xff00, 0xff00_0000]);
        assert!(refused(&key, &[ternary(vec![0x12, 1], vec![0xff, 0])], 1).contains("ignores"));
        assert!(refused(&key, &[ternary(vec![0], vec![0])], 1).contains("left out"));
        assert!(refused(&key, &[lpm(vec![10, 0, 0, 1], 8)], 1).contains("behind the prefix"));
        assert!(refused(&key, &[lpm(vec![0], 0)], 1).contains("left out"));
        assert!(refused(&key, &[lpm(vec![0], 33)], 1).contains("1 to 32 bits"));
        assert!(refused(&key, &both, 0).contains("it must be 1 or more"));
    }

    #[test]
    fn ranges_are_in_order_and_not_everything() {
        let key = key(&[(MatchKind::Range, 8)]);
        let range = |low, high| {
            [field(
                1,
                Match::Range {
                    low: vec![low],
                    high: vec![high],
                },
            )]
        };
        let encoded = key.encode(Owner("table", "t"), &range(3, 9), 1).unwrap();
        assert_eq!(
            encoded.ranges[0],
            Range {
                at: 0,
                low: [3].into(),
                high: [9].into()
            }
        );
        assert!(refused(&key, &range(9, 3), 1).contains("above"));
        assert!(refused(&key, &range(0, 255), 1).contains("left out"));
    }

    /// Encodes a match on a field whose width differs in the control plane.
    fn carried(outer: u32, inner: u32, given: Match) -> Result<EntryKey, String> {
        let kind = match given {
            Match::Exact(_) => MatchKind::Exact,
            Match::Optional(_) => MatchKind::Optional,
            Match::Lpm { .. } => MatchKind::Lpm,
            Match::Ternary { .. } => MatchKind::Ternary,
            Match::Range { .. } => MatchKind::Range,
        };
        let mut key = key(&[(kind, inner)]);
        key.fields[0].outer_width = Some(outer);
        let priority = i32::from(key.has_priority());
        let encoded = key.encode(Owner("table", "t"), &[field(1, given)], priority);
        encoded.map_err(|error| error.to_string())
    }

    /// The value and mask of a key without ranges.
    fn masked(key: Result<EntryKey, String>) -> (u64, u64) {
        let key = key.expect("it can match");
        assert!(key.ranges.is_empty());
        (key.value[0], key.mask[0])
    }

    fn ranged(key: Result<EntryKey, String>) -> Option<(u64, u64)> {
        let key = key.expect("it can match");
        key.ranges
            .first()
            .map(|range| (range.low[0], range.high[0]))
    }

    fn bytes(number: u32) -> Vec<u8> {
        BigUint::from(number).to_bytes_be()
    }

    fn ternary(value: u32, mask: u32) -> Match {
        let (value, mask) = (bytes(value), bytes(mask));
        Match::Ternary { value, mask }
    }

    fn lpm(value: u32, prefix_len: u32) -> Match {
        let value = bytes(value);
        Match::Lpm { value, prefix_len }
    }

    fn range(low: u32, high: u32) -> Match {
        let (low, high) = (bytes(low), bytes(high));
        Match::Range { low, high }
    }

    #[test]
    fn wider_outside_loses_what_is_always_zero() {
        let narrow = |given| carried(32, 9, given);
        assert_eq!(masked(narrow(ternary(5, u32::MAX))), (5, 0x1ff));
        assert_eq!(masked(narrow(ternary(0, 0xffff_0000))), (0, 0));
        assert_eq!(masked(narrow(lpm(0x100, 24))), (0x100, 0x100));
        assert_eq!(masked(narrow(lpm(7, 32))), (7, 0x1ff));
        assert_eq!(masked(narrow(lpm(0, 20))), (0, 0));
        assert_eq!(ranged(narrow(range(3, 9_000))), Some((3, 511)));
        assert_eq!(ranged(narrow(range(0, 9_000))), None);
        assert_eq!(masked(narrow(Match::Exact(vec![7]))), (7, 0x1ff));
        for given in [ternary(512, 512), lpm(512, 23), range(512, 600)] {
            let error = narrow(given).unwrap_err();
            assert!(
                error.ends_with("f1 is 9 bits wide: the value does not fit"),
                "{error}"
            );
        }
    }

    #[test]
    fn narrower_outside_asks_for_zeros_in_front() {
        let wide = |given| carried(9, 16, given);
        assert_eq!(masked(wide(ternary(5, 0xff))), (5, 0xfeff));
        assert_eq!(masked(wide(lpm(0x100, 1))), (0x100, 0xff00));
        assert_eq!(ranged(wide(range(3, 9))), Some((3, 9)));
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
