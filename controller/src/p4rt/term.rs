//! Terms of leadership, and the election ids derived from them.

use std::fmt;

use ultima_wire::MAGIC;

use super::ELECTION_ID;

/// A term of leadership; later terms are greater. The primary's election id is derived from its
/// term, so that a switch obeys the latest primary and reports its term to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// The number of terms claimed so far, 0 for a controller without peers.
    pub number: u64,
    /// The claiming controller's number, drawn with its store, which makes simultaneous claims
    /// distinct.
    pub by: u32,
}

/// The largest plausible distance between terms: at one claim per second, it takes a century. A
/// larger one is an error, and must not use up terms.
const LEAP: u64 = 1 << 32;

/// The bit position of Ultima's mark in election ids, which other clients are unlikely to have.
const MARK: u32 = 48;

impl Term {
    /// The primary's election id: the term's number in the upper 64 bits, the mark and the
    /// controller in the lower. [`ELECTION_ID`] for a controller without peers.
    pub fn election_id(self) -> u128 {
        match self.number {
            0 => ELECTION_ID,
            number => u128::from(number) << 64 | u128::from(MAGIC) << MARK | u128::from(self.by),
        }
    }

    /// True if the term is implausibly far after a known one.
    pub fn is_leap_from(self, known: Term) -> bool {
        self.number.saturating_sub(known.number) > LEAP
    }

    /// The term of an election id; none for another client's id.
    pub fn of(election_id: u128) -> Option<Term> {
        let (number, by) = ((election_id >> 64) as u64, election_id as u32);
        let term = Term { number, by };
        (number > 0 && term.election_id() == election_id).then_some(term)
    }
}

/// `3 of controller 1f00a2b4`.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of controller {:08x}", self.number, self.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn election_ids_encode_their_term() {
        let term = Term {
            number: 3,
            by: 0x1f00_a2b4,
        };
        assert_eq!(term.election_id(), 0x3_554c_0000_1f00_a2b4);
        assert_eq!(Term::of(term.election_id()), Some(term));
        for other in [0, 1, ELECTION_ID, u128::MAX, 3 << 64, 3 << 64 | 1] {
            assert_eq!(Term::of(other), None, "{other}");
        }
        let absurd = Term::of(
            Term {
                number: u64::MAX,
                ..term
            }
            .election_id(),
        )
        .unwrap();
        assert!(absurd.is_leap_from(term) && !term.is_leap_from(absurd));
        let alone = Term { number: 0, by: 7 };
        assert_eq!(alone.election_id(), ELECTION_ID);
    }

    #[test]
    fn later_terms_have_higher_election_ids() {
        let term = |number, by| Term { number, by };
        let rising = [term(0, 9), term(1, 2), term(1, 3), term(2, 1)];
        assert!(rising.is_sorted() && rising.map(Term::election_id).is_sorted());
    }
}
