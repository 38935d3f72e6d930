//! Repeated packets of a sealed job: whoever sees its packets can send copies of them, which pass the check of their tags.
//!
//! For each source a window over its latest sequence numbers ([`Header::sequence`]) has those that arrived, as IPsec's receivers have
//! (RFC 4303, section 3.4.3). Requires flow control, which numbers packets. In a job without a key an attacker needs no copies.
//!
//! [`Header::sequence`]: ultima_wire::Header::sequence

use ultima_wire::Header;

use crate::config::Config;

/// Sequence numbers in a window. They count packets to all ranks: at 10 Gbit/s a rank sends as many, of 1,400 bytes, in 4.6 ms.
const WINDOW: u32 = 4096;
const WORDS: usize = (WINDOW / u64::BITS) as usize;
/// A packet of an operation that has ended is not newer than the window by more. It is a copy from before the numbers wrapped.
const LARGEST_GAP: u32 = 1 << 24;

/// What a packet's sequence number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It arrives for the first time: its source has just sent it.
    New,
    /// Its number is older than the window, or it has none and belongs to an operation that has ended: it may be a copy.
    Old,
    /// A copy.
    Repeated,
}

/// The windows of all sources.
pub(super) struct Replays {
    /// By rank; empty if packets are not checked.
    windows: Vec<Window>,
}

#[derive(Clone)]
struct Window {
    /// The newest number that arrived.
    newest: u32,
    /// By number modulo [`WINDOW`]: those of the last [`WINDOW`] that arrived.
    arrived: [u64; WORDS],
}

impl Replays {
    pub(super) fn new(config: &Config) -> Self {
        let ranks = match config.key.is_some() && config.receive_buffer.is_some() {
            true => config.ranks,
            false => 0,
        };
        let window = Window {
            newest: 0,
            arrived: [0; WORDS],
        };
        Self {
            windows: vec![window; ranks.into()],
        }
    }

    /// Notes a packet of the job. `has_ended` says that its operation has ended here.
    pub(super) fn arrival(&mut self, header: &Header, has_ended: bool) -> Arrival {
        match (
            self.windows.get_mut(usize::from(header.source)),
            header.sequence(),
        ) {
            (None, _) => Arrival::New,
            (Some(window), Some(sequence)) => window.arrival(sequence, has_ended),
            (Some(_), None) if has_ended => Arrival::Old,
            (Some(_), None) => Arrival::New,
        }
    }
}

impl Window {
    fn arrival(&mut self, sequence: u32, has_ended: bool) -> Arrival {
        let ahead = sequence.wrapping_sub(self.newest);
        if (ahead as i32) > 0 {
            if has_ended && self.newest != 0 && ahead > LARGEST_GAP {
                return Arrival::Old;
            }
            // The places of numbers between the two are those of numbers that leave the window.
            for gap in 1..ahead.min(WINDOW) {
                self.set(sequence.wrapping_sub(gap), false);
            }
            self.newest = sequence;
        } else if ahead.wrapping_neg() >= WINDOW {
            return Arrival::Old;
        } else if self.has(sequence) {
            return Arrival::Repeated;
        }
        self.set(sequence, true);
        Arrival::New
    }

    fn place(sequence: u32) -> (usize, u64) {
        let at = sequence % WINDOW;
        ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
    }

    fn has(&self, sequence: u32) -> bool {
        let (word, bit) = Self::place(sequence);
        self.arrived[word] & bit != 0
    }

    fn set(&mut self, sequence: u32, arrived: bool) {
        let (word, bit) = Self::place(sequence);
        match arrived {
            true => self.arrived[word] |= bit,
            false => self.arrived[word] &= !bit,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn window(newest: u32) -> Window {
        let mut window = Window {
            newest,
            arrived: [0; WORDS],
        };
        window.set(newest, true);
        window
    }

    proptest! {
        /// Against a set of all numbers that arrived, also where numbers wrap.
        #[test]
        fn a_number_arrives_once(start: u32, moves in prop::collection::vec(-6_000i32..6_000, 1..200)) {
            let mut window = window(start);
            let mut arrived = BTreeSet::from([0i64]);
            let mut newest = 0i64;
            for by in moves {
                let at = newest + i64::from(by);
                let expected = match at {
                    _ if at + i64::from(WINDOW) <= newest => Arrival::Old,
                    _ if !arrived.insert(at) => Arrival::Repeated,
                    _ => Arrival::New,
                };
                newest = newest.max(at);
                prop_assert_eq!(window.arrival(start.wrapping_add(at as u32), false), expected);
            }
        }
    }

    /// 2^31 packets later, a copy of an old packet seems newer than the newest.
    #[test]
    fn a_copy_from_before_the_numbers_wrapped_moves_no_window() {
        let mut window = window(5);
        let old = 5 + LARGEST_GAP + 1;
        assert_eq!(window.arrival(old, true), Arrival::Old);
        assert_eq!(window.arrival(6, true), Arrival::New);
        assert_eq!(window.arrival(old, false), Arrival::New);
    }
}
