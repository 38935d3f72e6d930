//! Repeated packets of a sealed job: an attacker that sees its packets can send copies of them, which pass the check of their tags.
//!
//! A receiver keeps, for each source, a window over its latest sequence numbers ([`Header::sequence`]) and notes which of them have
//! arrived, as IPsec does (RFC 4303, section 3.4.3). Requires flow control, which numbers packets. In a job without a key an attacker needs
//! no copies.
//!
//! [`Header::sequence`]: ultima_wire::Header::sequence

use ultima_wire::Header;

use crate::config::Config;

/// Sequence numbers in a window. They count packets to all ranks: at 10 Gbit/s a rank sends as many, of 1,400 bytes, in 4.6 ms.
const WINDOW: u32 = 4096;
const WORDS: usize = (WINDOW / u64::BITS) as usize;
/// A packet of an operation that has ended is at most this many steps behind the newest packet of its source. An older one with a
/// newer number is a copy from before the numbers wrapped.
const MOST_BEHIND: u32 = 1024;

/// The novelty of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    /// It has not arrived before.
    New,
    /// It may have arrived before: its number is older than the window; or it has no number, and neither its operation nor its step is new.
    Old,
    /// It has arrived before.
    Repeated,
}

/// The windows of all sources.
pub(super) struct Replays {
    /// By rank; empty if packets are not checked.
    windows: Vec<ReplayWindow>,
}

#[derive(Clone)]
struct ReplayWindow {
    /// The newest number that arrived.
    newest: u32,
    /// The newest step of a new packet.
    step: u32,
    /// By number modulo [`WINDOW`]: those of the last [`WINDOW`] that arrived.
    arrived: [u64; WORDS],
}

impl Replays {
    pub(super) fn new(config: &Config) -> Self {
        let ranks = match config.key.is_some() && config.receive_buffer.is_some() {
            true => config.ranks,
            false => 0,
        };
        Self {
            windows: vec![ReplayWindow::new(); ranks.into()],
        }
    }

    /// Notes a packet of the job, whose operation has ended here or not.
    pub(super) fn arrival(&mut self, header: &Header, has_ended: bool) -> Novelty {
        let Some(window) = self.windows.get_mut(usize::from(header.source)) else {
            return Novelty::New;
        };
        let step = header.step;
        let arrival = match header.sequence() {
            Some(_) if has_ended && step.saturating_add(MOST_BEHIND) < window.step => Novelty::Old,
            Some(sequence) => window.arrival(sequence),
            None if has_ended && step <= window.step => Novelty::Old,
            None => Novelty::New,
        };
        if arrival == Novelty::New {
            window.step = window.step.max(step);
        }
        arrival
    }
}

impl ReplayWindow {
    fn new() -> Self {
        ReplayWindow {
            newest: 0,
            step: 0,
            arrived: [0; WORDS],
        }
    }

    fn arrival(&mut self, sequence: u32) -> Novelty {
        let ahead = sequence.wrapping_sub(self.newest);
        let (word, bit) = place(sequence);
        if (ahead as i32) > 0 {
            // Numbers that leave the window have the places of those that enter it.
            self.clear(self.newest.wrapping_add(1), ahead.min(WINDOW));
            self.newest = sequence;
        } else if ahead.wrapping_neg() >= WINDOW {
            return Novelty::Old;
        } else if self.arrived[word] & bit != 0 {
            return Novelty::Repeated;
        }
        self.arrived[word] |= bit;
        Novelty::New
    }

    /// Forgets `count` numbers from `first` on, by words.
    fn clear(&mut self, mut first: u32, mut count: u32) {
        while count > 0 {
            let run = count.min(u64::BITS - first % u64::BITS);
            let ones = u64::MAX >> (u64::BITS - run);
            self.arrived[place(first).0] &= !(ones << (first % u64::BITS));
            first = first.wrapping_add(run);
            count -= run;
        }
    }
}

/// The word and the bit of a number.
fn place(sequence: u32) -> (usize, u64) {
    let at = sequence % WINDOW;
    ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use ultima_wire::{Kind, Ticks};

    use super::*;

    proptest! {
        /// Against a set of all numbers that arrived, also where numbers wrap, and from the first packet on.
        #[test]
        fn a_number_arrives_once(
            start in prop_oneof![Just(1u32), any::<u32>().prop_map(|start| start.max(1))],
            moves in prop::collection::vec(-6_000i32..6_000, 1..200),
        ) {
            let mut window = ReplayWindow::new();
            // A window that has seen nothing begins before the first number.
            if start > 1 {
                window.newest = start.wrapping_sub(1);
            }
            let mut arrived = BTreeSet::from([0i64]);
            prop_assert_eq!(window.arrival(start), Novelty::New);
            let mut newest = 0i64;
            for by in moves {
                let at = newest + i64::from(by);
                let expected = match at {
                    _ if at + i64::from(WINDOW) <= newest => Novelty::Old,
                    _ if !arrived.insert(at) => Novelty::Repeated,
                    _ => Novelty::New,
                };
                newest = newest.max(at);
                prop_assert_eq!(window.arrival(start.wrapping_add(at as u32)), expected);
            }
        }
    }

    fn packet(kind: Kind, step: u32, sequence: u32) -> Header {
        let mut header = Header::new(kind, 7, 1, 1, 0);
        (header.step, header.echoed) = (step, Ticks(sequence));
        header
    }

    fn replays() -> Replays {
        Replays {
            windows: vec![ReplayWindow::new(); 2],
        }
    }

    /// Many packets later, a copy of an old packet seems newer than the newest.
    #[test]
    fn a_copy_from_before_the_numbers_wrapped_moves_no_window() {
        let mut replays = replays();
        let newest = packet(Kind::Scatter, 5_000, 7);
        assert_eq!(replays.arrival(&newest, false), Novelty::New);
        let copy = packet(Kind::Scatter, 3, 1_000);
        assert_eq!(replays.arrival(&copy, true), Novelty::Old);
        let late = packet(Kind::Scatter, 4_990, 8);
        assert_eq!(replays.arrival(&late, true), Novelty::New);
    }

    /// A rank that is late with every step may send nothing but notices, which have no number.
    #[test]
    fn a_notice_of_a_newer_step_is_new_although_its_operation_has_ended() {
        let mut replays = replays();
        for step in [3, 4, 5] {
            let notice = packet(Kind::Feedback, step, 0);
            assert_eq!(replays.arrival(&notice, true), Novelty::New, "{step}");
            assert_eq!(replays.arrival(&notice, true), Novelty::Old, "{step}");
        }
    }
}
