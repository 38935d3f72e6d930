//! What is known of words and fields at a point of a path.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::super::bits::{Place, Slot};
use super::super::expression::Comparison;
use super::super::layout::{Layout, validity};
use super::super::phv::OPERANDS;
use super::super::word::{self, At, Word};

/// A field's or validity's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    Is(u64),
    Not(u64),
}

/// Facts by the operation that reads the number.
pub(super) type Facts = Map<word::Op, Fact>;

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// The most facts that are kept: every jump copies them when a program is loaded.
const MAX_FACTS: usize = 256;

/// The place of a result in the working memory.
fn address(at: usize) -> At {
    ((OPERANDS + at) * size_of::<u64>()) as At
}

#[derive(Clone, Default)]
pub(super) struct Known {
    /// Where the results of operations are.
    pub results: Map<word::Op, At>,
    pub facts: Facts,
    /// How many bits each word's number has at most.
    bits: Map<At, u32>,
    /// Words of the working memory that hold results.
    pub used: usize,
}

impl Known {
    /// A new word for a result.
    pub fn add(&mut self, op: word::Op, bits: u32) -> At {
        let at = self.temporary();
        self.bits.insert(at, bits);
        self.results.insert(op, at);
        at
    }

    /// A new word for a number that no operation finds again.
    pub fn temporary(&mut self) -> At {
        self.used += 1;
        address(self.used - 1)
    }

    /// Forgets all but the first results, to use their words again.
    pub fn recycle(&mut self, kept: usize) {
        let used = address(kept)..address(self.used);
        self.results.retain(|_, at| !used.contains(at));
        self.used = kept;
    }

    /// A header has got other content, and is valid.
    pub fn extracted(&mut self, header: usize, layout: &Layout) {
        let (bytes, base) = (layout.shape(header).bytes, layout.instances[header].base);
        self.forget_words();
        self.stored(Slot::new(base * 8, bytes as u32 * 8, false));
        self.set_valid(header, true);
    }

    /// A header has become valid or invalid.
    pub fn set_valid(&mut self, header: usize, valid: bool) {
        self.stored(validity(header));
        self.learn(word::Op::Valid(header), Fact::Is(valid.into()));
    }

    /// How many bits a word's number has at most.
    pub fn bits(&self, at: At) -> u32 {
        self.bits.get(&at).copied().unwrap_or(64)
    }

    /// Notes how many bits a field in a word has.
    pub fn read(&mut self, at: At, bits: u32) {
        self.bits.insert(at, bits);
    }

    /// A field is about to be written.
    pub fn stored(&mut self, slot: Slot) {
        let word = match slot.place() {
            Some(Place::Word(at) | Place::Part(at, _)) => Some(at),
            _ => None,
        };
        let reads = |op: &word::Op| match op {
            word::Op::Field(other) => other.overlaps(slot),
            word::Op::Valid(header) => validity(*header).overlaps(slot),
            word::Op::Element(_) | word::Op::ElementValid(_) | word::Op::EqualHeaders(..) => true,
            _ => false,
        };
        self.facts.retain(|op, _| !reads(op));
        self.results.retain(|op, result| {
            !reads(op) && word.is_none_or(|word| *result != word && !op.uses(word))
        });
        if let Some(word) = word {
            self.bits.insert(word, slot.width);
        }
    }

    /// Forgets all but facts.
    pub fn forget_words(&mut self) {
        let facts = std::mem::take(&mut self.facts);
        *self = Known {
            facts,
            ..Known::default()
        };
    }

    /// Keeps what another path knows too.
    pub fn meet(&mut self, other: &Known) {
        (self.results).retain(|op, at| other.results.get(op) == Some(at));
        (self.facts).retain(|op, fact| other.facts.get(op) == Some(fact));
        (self.bits).retain(|at, bits| match other.bits.get(at) {
            Some(more) => {
                *bits = (*bits).max(*more);
                true
            }
            None => false,
        });
        self.used = self.used.max(other.used);
    }

    /// Whether a comparison holds, as far as that is known.
    pub fn decide(&self, how: Comparison, op: word::Op, value: u64) -> Option<bool> {
        match (self.facts.get(&op)?, how) {
            (Fact::Is(known), how) => Some(how.holds_for(*known, value)),
            (Fact::Not(known), Comparison::Equal) if *known == value => Some(false),
            (Fact::Not(known), Comparison::NotEqual) if *known == value => Some(true),
            _ => None,
        }
    }

    pub fn learn(&mut self, op: word::Op, fact: Fact) {
        let fits = self.facts.len() < MAX_FACTS || self.facts.contains_key(&op);
        if fits && matches!(op, word::Op::Field(_) | word::Op::Valid(_)) {
            let fact = match fact {
                Fact::Not(value) if op.bits(|_| 64) == 1 => Fact::Is(value ^ 1),
                fact => fact,
            };
            self.facts.insert(op, fact);
        }
    }

    /// Notes that a comparison holds.
    pub fn learn_compared(&mut self, op: word::Op, how: Comparison, value: u64) {
        match how {
            Comparison::Equal => self.learn(op, Fact::Is(value)),
            Comparison::NotEqual => self.learn(op, Fact::Not(value)),
            _ => {}
        }
    }

    /// What is known of a field when a number is stored there.
    pub fn fact(&self, word: &Word, to: Slot) -> Option<Fact> {
        let value = match word {
            Word::Const(value) => *value,
            Word::Field(slot) => match self.facts.get(&word::Op::Field(*slot))? {
                Fact::Is(value) => *value,
                Fact::Not(_) => return None,
            },
            _ => return None,
        };
        let plain = !to.signed && (1..=64).contains(&to.width);
        plain.then(|| Fact::Is(value & u64::MAX >> (64 - to.width)))
    }
}
