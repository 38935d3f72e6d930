//! Check packets: packets outside operations that show which paths work.

use std::collections::VecDeque;

use ultima_wire::{Check, Header, Report};

use super::Destination;
use crate::operation::OperationId;

/// Number of rounds whose received packets are stored.
const ROUNDS: usize = 8;
/// Check packets that may wait to be sent.
const WAITING: usize = 1 << 16;

/// A check packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckPacket {
    /// The destination. A PROBE goes to a rank on another host, so that it reaches the switch.
    pub to: Destination,
    /// True for a PROBE, which the first switch answers with a REPORT, whatever its destination.
    pub probe: bool,
    /// The operation that a PROBE asks about.
    pub about: OperationId,
    /// The round of this packet.
    pub token: u32,
    /// Bytes of its payload, clamped to [`Check::LEN`] (with a PROBE [`Report::LEN`] more) and the job's slot
    /// size.
    pub payload: usize,
}

/// Check packets received from one rank on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The sender.
    pub source: u16,
    /// True if they were sent to the job's group, false if to this rank alone.
    pub by_group: bool,
    /// Number of packets.
    pub packets: u32,
    /// Number of switches that the last of them passed.
    pub hops: u8,
}

/// Packets received in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeardInRound {
    /// Check packets from other ranks.
    pub ranks: Vec<Heard>,
    /// Number of REPORTs that answered this rank's PROBEs.
    pub reports: u32,
    /// The latest REPORT and its operation.
    pub report: Option<(OperationId, Report)>,
}

/// Check packets to send, and those received in the last few rounds.
#[derive(Default)]
pub(super) struct Checks {
    outgoing: VecDeque<CheckPacket>,
    rounds: VecDeque<Round>,
    answers: Option<Answers>,
}

/// Rounds whose packets are answered.
struct Answers {
    of: Vec<u32>,
    /// The round of the answers; never one that is answered itself.
    with: u32,
}

struct Round {
    token: u32,
    heard: HeardInRound,
}

impl Checks {
    /// Queues a packet, which is sent as soon as pacing allows. A full queue drops it.
    pub(super) fn push(&mut self, packet: CheckPacket) {
        if self.outgoing.len() < WAITING {
            self.outgoing.push_back(packet);
        }
    }

    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(super) fn next(&mut self) -> Option<CheckPacket> {
        self.outgoing.pop_front()
    }

    /// Counts a check packet from another rank. The first packet of a new round removes the oldest round: a
    /// rank learns of rounds from packets, which may arrive before the controller's request.
    pub(super) fn received(&mut self, header: &Header, check: Check) {
        if let Some(Answers { of, with }) = &self.answers
            && of.contains(&check.token)
        {
            self.push(CheckPacket {
                to: Destination::Rank(header.source),
                probe: false,
                about: OperationId::default(),
                token: *with,
                payload: 0,
            });
        }
        let heard = &mut self.round(check.token).ranks;
        let (source, by_group, hops) = (header.source, check.by_group, header.switch_flags.hops);
        match heard
            .iter_mut()
            .find(|h| (h.source, h.by_group) == (source, by_group))
        {
            Some(heard) => {
                heard.packets = heard.packets.saturating_add(1);
                heard.hops = hops;
            }
            None => heard.push(Heard {
                source,
                by_group,
                packets: 1,
                hops,
            }),
        }
    }

    /// From now on, answers each packet of the rounds `of` with one of the round `with`, which is none of them.
    pub(super) fn answer(&mut self, mut of: Vec<u32>, with: u32) {
        of.retain(|token| *token != with);
        self.answers = Some(Answers { of, with });
    }

    /// Counts the first switch's answer to a PROBE of the round `token`.
    pub(super) fn answered(&mut self, token: u32, report: (OperationId, Report)) {
        let heard = self.round(token);
        heard.reports = heard.reports.saturating_add(1);
        heard.report = Some(report);
    }

    fn round(&mut self, token: u32) -> &mut HeardInRound {
        let at = match self.rounds.iter().position(|r| r.token == token) {
            Some(at) => at,
            None => {
                if self.rounds.len() == ROUNDS {
                    self.rounds.pop_front();
                }
                self.rounds.push_back(Round {
                    token,
                    heard: HeardInRound::default(),
                });
                self.rounds.len() - 1
            }
        };
        &mut self.rounds[at].heard
    }

    /// Packets received in a round so far; empty for a round that was removed.
    pub(super) fn heard(&self, token: u32) -> HeardInRound {
        let round = self.rounds.iter().find(|round| round.token == token);
        round.map(|round| round.heard.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_wire::Kind;

    #[test]
    fn the_last_rounds_are_kept() {
        let mut checks = Checks::default();
        let mut came = |token, source, by_group| {
            let mut header = Header::new(Kind::Control, 7, 1, source, source);
            header.switch_flags.hops = 2;
            checks.received(&header, Check { token, by_group });
        };
        came(1, 0, false);
        came(9, 3, false);
        came(9, 3, true);
        came(9, 3, false);
        for token in 10..17 {
            came(token, 1, false);
        }
        let heard = |by_group, packets| Heard {
            source: 3,
            by_group,
            packets,
            hops: 2,
        };
        let answer = (OperationId::default(), Report::default());
        checks.answered(9, answer);
        let came = HeardInRound {
            ranks: vec![heard(false, 2), heard(true, 1)],
            reports: 1,
            report: Some(answer),
        };
        assert_eq!(checks.heard(9), came);
        assert_eq!(checks.heard(1), HeardInRound::default());
    }
}
