//! Election ids that say which controller leads since when.

use std::fmt;

use ultima_wire::MAGIC;

use super::ELECTION_ID;

/// The time during which one controller leads: later ones are greater. Its primary bids with an election id made of it, so
/// that a switch obeys the latest, and tells everybody which that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// How many have been claimed, 0 while one controller has led alone.
    pub number: u64,
    /// Who claimed it: a controller's number, drawn with its store. Two that claim the same are not equal.
    pub by: u32,
}

/// By how much a term may be later than another one: were one claimed each second, that many take a century. Whoever speaks of a later
/// one is broken, and is not to use terms up for everybody.
const LEAP: u64 = 1 << 32;

/// Where the election ids of terms have our mark, which other clients' are not likely to have.
const MARK: u32 = 48;

impl Term {
    /// What a primary of this term bids: its number in the upper 64 bits, our mark and who it is in the lower.
    /// [`ELECTION_ID`] for a controller that leads alone.
    pub fn election_id(self) -> u128 {
        match self.number {
            0 => ELECTION_ID,
            number => u128::from(number) << 64 | u128::from(MAGIC) << MARK | u128::from(self.by),
        }
    }

    /// Whether it is too far from one that is known to have been claimed by one of ours.
    pub fn is_leap_from(self, known: Term) -> bool {
        self.number.saturating_sub(known.number) > LEAP
    }

    /// The term that an election id is made of; none if it is another client's.
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
    fn an_election_id_says_its_term() {
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
    fn later_terms_outbid_earlier_ones() {
        let term = |number, by| Term { number, by };
        let rising = [term(0, 9), term(1, 2), term(1, 3), term(2, 1)];
        assert!(rising.is_sorted() && rising.map(Term::election_id).is_sorted());
    }
}
