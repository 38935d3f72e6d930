//! The state of each packet that the others owe this rank in a phase: a contribution to its shard, or an
//! aggregate of theirs.
//!
//! | state | arrival | arrival after its slot closed | header without payload | later packet of its source | silent source | its slot closes |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | outstanding | arrived | too late | trimmed or late | overtaken | silent | overdue |
//! | overdue | arrived | too late | trimmed or late | overtaken | silent | – |
//! | overtaken, silent | arrived | too late | trimmed or late | – | – | – |
//! | trimmed, late | arrived | too late | – | – | – | – |
//! | arrived, too late | – | – | – | – | – | – |
//!
//! So the first cause counts, but a switch's report replaces a guess, and a packet that arrives before its slot
//! closes counts. Aggregates have no slot that closes: one that is outstanding when its operation ends is overdue.

use std::ops::Range;

use crate::bits::Bits;
use crate::cause::Cause;
use crate::loss_detection::LossDetection;
use crate::time::Time;

/// The state of a packet that another rank owes this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Outstanding,
    /// It arrived before its slot closed.
    Arrived,
    /// It arrived after its slot had closed.
    TooLate,
    /// Lost, or believed to be.
    Lost(Cause),
}

/// A packet of a phase that arrived, with or without its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) at: Time,
    /// The rank that sent it: for an aggregate, the owner.
    pub(super) source: u16,
    pub(super) slot: u32,
    /// True if it is its source's last packet of the phase to this rank.
    pub(super) last: bool,
}

/// An event that concerns a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It arrives.
    Arrival,
    /// It arrives after its slot closed.
    LateArrival,
    /// Its header arrives without its payload, which a switch removed for this cause.
    Header(Cause),
    /// A packet arrives that its source sent later.
    LaterPacket,
    /// Its source was silent for too long.
    Silence,
    /// Its slot closes.
    SlotCloses,
}

impl State {
    /// The next state.
    fn after(self, sign: Sign) -> Self {
        use Cause::{Late, Overdue, Overtaken, Silent, Trimmed};
        use State::{Arrived, Lost, Outstanding, TooLate};
        match (self, sign) {
            (Arrived | TooLate, _) => self,
            (_, Sign::Arrival) => Arrived,
            (_, Sign::LateArrival) => TooLate,
            (Lost(Trimmed | Late), _) => self,
            (_, Sign::Header(cause)) => Lost(cause),
            (Outstanding | Lost(Overdue), Sign::LaterPacket) => Lost(Overtaken),
            (Outstanding | Lost(Overdue), Sign::Silence) => Lost(Silent),
            (Outstanding, Sign::SlotCloses) => Lost(Overdue),
            (Lost(_), Sign::LaterPacket | Sign::Silence | Sign::SlotCloses) => self,
        }
    }

    /// True if this rank waits for the packet.
    fn is_awaited(self, loss_detection: LossDetection) -> bool {
        match self {
            State::Outstanding => true,
            State::Lost(Cause::Trimmed | Cause::Late) => !loss_detection.trimmed(),
            State::Arrived | State::TooLate | State::Lost(_) => false,
        }
    }

    /// The cause of the packet being absent when its operation ends.
    pub(super) fn cause(self) -> Option<Cause> {
        match self {
            State::Arrived | State::TooLate => None,
            State::Lost(cause) => Some(cause),
            State::Outstanding => Some(Cause::Overdue),
        }
    }

    /// True if the packet was given up, because packets arrived that its source sent later.
    pub(super) fn is_overtaken(self) -> bool {
        self == State::Lost(Cause::Overtaken)
    }

    /// Three bits: none of them for an outstanding packet, all for one that arrived.
    fn to_bits(self) -> u64 {
        match self {
            State::Outstanding => 0,
            State::TooLate => 0b110,
            State::Arrived => 0b111,
            State::Lost(cause) => 1 + cause as u64,
        }
    }

    fn from_bits(bits: u64) -> Self {
        match bits {
            0 => State::Outstanding,
            0b110 => State::TooLate,
            0b111 => State::Arrived,
            lost => State::Lost(Cause::ALL[lost as usize - 1]),
        }
    }
}

/// The states of all packets that one phase owes. Keeps its memory from one operation to the next.
#[derive(Default)]
pub(super) struct States {
    words: Vec<u64>,
    loss_detection: LossDetection,
}

/// A change of a packet's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) from: State,
    /// True if the packet's state is another one now.
    pub(super) is_new: bool,
    /// True if this rank waited for the packet until now.
    pub(super) ends_wait: bool,
}

/// Bits of a state.
const BITS: usize = 3;
/// States in a word. The last bit is not used.
const PER_WORD: usize = 21;
/// The lowest bit of each state in a word.
const LOWEST: u64 = 0o111_111_111_111_111_111_111;

impl States {
    /// Makes `len` packets outstanding. Allocates only if there were never so many.
    pub(super) fn reset(&mut self, len: usize, loss_detection: LossDetection) {
        self.words.clear();
        self.words.resize(len.div_ceil(PER_WORD), 0);
        self.loss_detection = loss_detection;
    }

    pub(super) fn of(&self, packet: usize) -> State {
        let state = self.words[packet / PER_WORD] >> (packet % PER_WORD * BITS);
        State::from_bits(state & 0b111)
    }

    /// True if this rank waits for the packet.
    pub(super) fn is_awaited(&self, packet: usize) -> bool {
        self.of(packet).is_awaited(self.loss_detection)
    }

    /// True if the packet arrived before its slot closed.
    pub(super) fn has_arrived(&self, packet: usize) -> bool {
        self.of(packet) == State::Arrived
    }

    /// Notes an event.
    #[inline]
    pub(super) fn note(&mut self, packet: usize, sign: Sign) -> Change {
        let shift = packet % PER_WORD * BITS;
        let word = &mut self.words[packet / PER_WORD];
        let from = State::from_bits(*word >> shift & 0b111);
        let to = from.after(sign);
        let is_new = from != to;
        if is_new {
            *word ^= (from.to_bits() ^ to.to_bits()) << shift;
        }
        Change {
            from,
            is_new,
            ends_wait: is_new
                && from.is_awaited(self.loss_detection)
                && !to.is_awaited(self.loss_detection),
        }
    }

    /// Number of packets of `range` that arrived.
    pub(super) fn count_arrived(&self, range: Range<usize>) -> usize {
        if range.is_empty() {
            return 0;
        }
        let (first, last) = (range.start / PER_WORD, (range.end - 1) / PER_WORD);
        // The states of the first and the last word that are outside the range.
        let from = u64::MAX << (range.start % PER_WORD * BITS);
        let to = u64::MAX >> (u64::BITS as usize - BITS - (range.end - 1) % PER_WORD * BITS);
        let count = |word: u64| (word & word >> 1 & word >> 2 & LOWEST).count_ones() as usize;
        if first == last {
            return count(self.words[first] & from & to);
        }
        let between = self.words[first + 1..last].iter().map(|word| count(*word));
        count(self.words[first] & from) + between.sum::<usize>() + count(self.words[last] & to)
    }
}

/// The ranks whose last packets of a phase have begun to arrive, or that have nothing outstanding.
#[derive(Default)]
pub(super) struct Ending {
    ranks: Bits,
    /// Number of the other ranks.
    coming: u16,
}

impl Ending {
    /// No rank of `ranks`.
    pub(super) fn reset(&mut self, ranks: u16) {
        self.ranks.reset(ranks.into());
        self.coming = ranks;
    }

    pub(super) fn insert(&mut self, rank: u16) {
        if self.ranks.insert(rank.into()) {
            self.coming -= 1;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.coming == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIMMED: Sign = Sign::Header(Cause::Trimmed);
    const LATE: Sign = Sign::Header(Cause::Late);

    fn states(loss_detection: LossDetection) -> States {
        let mut states = States::default();
        states.reset(100, loss_detection);
        states
    }

    #[test]
    fn a_report_replaces_a_guess_and_an_arrival_both() {
        let mut states = states(LossDetection::InOrder);
        let mut causes = Vec::new();
        for sign in [
            Sign::Silence,
            Sign::LaterPacket,
            LATE,
            TRIMMED,
            Sign::LaterPacket,
            Sign::Arrival,
            LATE,
        ] {
            let change = states.note(17, sign);
            causes.push((states.of(17).cause(), change.is_new, change.ends_wait));
        }
        let [silent, late] = [Cause::Silent, Cause::Late].map(Some);
        let expected = [
            (silent, true, true),
            (silent, false, false),
            (late, true, false),
            (late, false, false),
            (late, false, false),
            (None, true, false),
            (None, false, false),
        ];
        assert_eq!(causes, expected);
        assert!(
            [16, 18]
                .iter()
                .all(|other| states.of(*other) == State::Outstanding)
        );
    }

    #[test]
    fn every_transition_is_the_tables() {
        use Cause::{Late, Overdue, Overtaken, Silent, Trimmed};
        use State::{Arrived, Lost, Outstanding, TooLate};
        let signs = [
            Sign::Arrival,
            Sign::LateArrival,
            TRIMMED,
            Sign::LaterPacket,
            Sign::Silence,
            Sign::SlotCloses,
        ];
        let [trimmed, overtaken, silent, overdue] = [Trimmed, Overtaken, Silent, Overdue].map(Lost);
        let table = [
            (
                Outstanding,
                [Arrived, TooLate, trimmed, overtaken, silent, overdue],
            ),
            (
                overdue,
                [Arrived, TooLate, trimmed, overtaken, silent, overdue],
            ),
            (
                overtaken,
                [Arrived, TooLate, trimmed, overtaken, overtaken, overtaken],
            ),
            (silent, [Arrived, TooLate, trimmed, silent, silent, silent]),
            (
                trimmed,
                [Arrived, TooLate, trimmed, trimmed, trimmed, trimmed],
            ),
            (
                Lost(Late),
                [
                    Arrived,
                    TooLate,
                    Lost(Late),
                    Lost(Late),
                    Lost(Late),
                    Lost(Late),
                ],
            ),
            (Arrived, [Arrived; 6]),
            (TooLate, [TooLate; 6]),
        ];
        for (from, expected) in table {
            assert_eq!(State::from_bits(from.to_bits()), from);
            assert_eq!(signs.map(|sign| from.after(sign)), expected, "{from:?}");
        }
    }

    #[test]
    fn a_header_without_payload_ends_the_wait_but_with_timeout_only() {
        for (loss_detection, expected) in [
            (LossDetection::TimeoutOnly, [false, true]),
            (LossDetection::Trimmed, [true, false]),
            (LossDetection::InOrder, [true, false]),
        ] {
            let mut states = states(loss_detection);
            let waits = [TRIMMED, Sign::Arrival].map(|sign| states.note(3, sign).ends_wait);
            assert_eq!(waits, expected, "{loss_detection:?}");
        }
    }

    #[test]
    fn arrived_packets_of_a_range_are_counted() {
        let mut states = states(LossDetection::InOrder);
        let arrives = |packet: usize| packet.is_multiple_of(3) || (21..63).contains(&packet);
        for packet in 0..100 {
            match arrives(packet) {
                true => states.note(packet, Sign::Arrival),
                false => states.note(
                    packet,
                    [Sign::LaterPacket, Sign::Silence, TRIMMED, LATE][packet % 4],
                ),
            };
        }
        for start in [0, 1, 20, 21, 22, 62, 63, 99, 100] {
            for end in (start..=100).chain([start]) {
                let expected = (start..end).filter(|packet| arrives(*packet)).count();
                assert_eq!(states.count_arrived(start..end), expected, "{start}..{end}");
            }
        }
    }
}
