//! Hash tables from key words to values. Short keys are stored inline, so a lookup follows no pointer.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use rustc_hash::FxBuildHasher;

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// Words of the longest key that is stored inline.
pub(crate) const SHORT: usize = 8;

/// A hash table whose keys all have the same number of words.
#[derive(Debug, Default)]
pub(crate) enum WordMap<V> {
    #[default]
    Empty,
    One(Map<Short<1>, V>),
    Two(Map<Short<2>, V>),
    Four(Map<Short<4>, V>),
    Eight(Map<Short<8>, V>),
    Long(Map<Box<[u64]>, V>),
}

/// A key of at most `N` words, filled up with zeros.
#[derive(Debug, Clone, Copy, Eq)]
pub(crate) struct Short<const N: usize>([u64; N]);

impl<const N: usize> Short<N> {
    #[inline(always)]
    fn new(words: impl Iterator<Item = u64>) -> Short<N> {
        let mut short = [0; N];
        for (to, word) in short.iter_mut().zip(words) {
            *to = word;
        }
        Short(short)
    }
}

impl<const N: usize> PartialEq for Short<N> {
    #[inline(always)]
    fn eq(&self, other: &Short<N>) -> bool {
        let words = self.0.iter().zip(&other.0);
        words.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

/// Factors for the words of a key: digits of π, made odd.
const FACTORS: [u64; SHORT] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6d,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
];

impl<const N: usize> Hash for Short<N> {
    /// A sum of products, which do not wait for one another. Its upper half decides too: the hasher's product carries upwards only.
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let products = self.0.iter().zip(FACTORS);
        let products = products.map(|(word, factor)| word.wrapping_mul(factor));
        let sum = products.fold(0, u64::wrapping_add);
        state.write_u64(sum ^ sum >> 32);
    }
}

/// Evaluates an expression on the map for any key type, with `$key` converted to it.
macro_rules! with_map {
    ($self:expr, $words:expr, |$map:ident, $key:ident| $result:expr, $empty:expr) => {
        match $self {
            WordMap::Empty => $empty,
            WordMap::One($map) => {
                let $key = &Short::<1>::new($words);
                $result
            }
            WordMap::Two($map) => {
                let $key = &Short::<2>::new($words);
                $result
            }
            WordMap::Four($map) => {
                let $key = &Short::<4>::new($words);
                $result
            }
            WordMap::Eight($map) => {
                let $key = &Short::<8>::new($words);
                $result
            }
            WordMap::Long($map) => {
                let $key: &[u64] = &$words.collect::<Vec<_>>();
                $result
            }
        }
    };
}

impl<V> WordMap<V> {
    /// Returns the value of a key.
    #[inline]
    pub fn get(&self, key: &[u64]) -> Option<&V> {
        if let WordMap::Long(map) = self {
            return map.get(key);
        }
        with_map!(self, key.iter().copied(), |map, key| map.get(key), None)
    }

    /// Returns the value of a key that is filled up with zeros, by its words.
    #[inline(always)]
    pub fn get_short(&self, word: impl Fn(usize) -> u64) -> Option<&V> {
        fn first<const N: usize>(word: impl Fn(usize) -> u64) -> Short<N> {
            Short(std::array::from_fn(word))
        }
        match self {
            WordMap::Empty => None,
            WordMap::One(map) => map.get(&first(word)),
            WordMap::Two(map) => map.get(&first(word)),
            WordMap::Four(map) => map.get(&first(word)),
            WordMap::Eight(map) => map.get(&first(word)),
            WordMap::Long(_) => unreachable!("the table's keys are longer"),
        }
    }

    /// Returns the value of `key` under `mask`. `scratch` is working memory.
    #[inline]
    pub fn get_masked(&self, key: &[u64], mask: &[u64], scratch: &mut Vec<u64>) -> Option<&V> {
        let words = key.iter().zip(mask).map(|(key, mask)| key & mask);
        if let WordMap::Long(map) = self {
            scratch.clear();
            scratch.extend(words);
            return map.get(scratch.as_slice());
        }
        with_map!(self, words, |map, key| map.get(key), None)
    }

    pub fn get_mut(&mut self, key: &[u64]) -> Option<&mut V> {
        with_map!(self, key.iter().copied(), |map, key| map.get_mut(key), None)
    }

    pub fn remove(&mut self, key: &[u64]) -> Option<V> {
        with_map!(self, key.iter().copied(), |map, key| map.remove(key), None)
    }
}

impl<V: Default> WordMap<V> {
    /// Returns the value of a key, and inserts the default if it is missing.
    pub fn entry(&mut self, key: &[u64]) -> &mut V {
        if let WordMap::Empty = self {
            *self = match key.len() {
                0..=1 => WordMap::One(Map::default()),
                2 => WordMap::Two(Map::default()),
                3..=4 => WordMap::Four(Map::default()),
                5..=8 => WordMap::Eight(Map::default()),
                _ => WordMap::Long(Map::default()),
            };
        }
        let words = key.iter().copied();
        match self {
            WordMap::Empty => unreachable!("it was replaced above"),
            WordMap::One(map) => map.entry(Short::new(words)).or_default(),
            WordMap::Two(map) => map.entry(Short::new(words)).or_default(),
            WordMap::Four(map) => map.entry(Short::new(words)).or_default(),
            WordMap::Eight(map) => map.entry(Short::new(words)).or_default(),
            WordMap::Long(map) => map.entry(key.into()).or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_of_any_length_are_told_apart(
            words in 0usize..12,
            keys in prop::collection::vec((prop::collection::vec(0u64..3, 12), any::<bool>()), 0..60),
        ) {
            let (mut map, mut known) = (WordMap::default(), HashMap::new());
            for (at, (key, insert)) in keys.iter().enumerate() {
                let key = &key[..words];
                prop_assert_eq!(map.get(key), known.get(key));
                if *insert {
                    *map.entry(key) = at;
                    known.insert(key, at);
                } else {
                    prop_assert_eq!(map.remove(key), known.remove(key));
                }
                let mask: Vec<u64> = key.iter().map(|word| word | 1).collect();
                let masked: Vec<u64> = key.iter().zip(&mask).map(|(k, m)| k & m).collect();
                let found = map.get_masked(key, &mask, &mut Vec::new());
                prop_assert_eq!(found, known.get(masked.as_slice()));
            }
        }
    }
}
