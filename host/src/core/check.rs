//! Check packets: sent beside the operations, to see which ways packets take.

use std::collections::VecDeque;

use ultima_wire::{Check, Header, Report};

use super::Destination;
use crate::operation::OperationId;

/// Rounds of which it is kept what came.
const ROUNDS: usize = 8;
/// Check packets that may wait to be sent.
const WAITING: usize = 1 << 16;

/// A check packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckPacket {
    /// Where it goes; a PROBE to a rank on another host, so that it reaches the switch at all.
    pub to: Destination,
    /// It is a PROBE, which the first switch answers with a REPORT whatever it is addressed to.
    pub probe: bool,
    /// The operation that a PROBE asks about.
    pub about: OperationId,
    /// The round that it belongs to.
    pub token: u32,
    /// Bytes of its payload, [`Check::LEN`] (with a PROBE [`Report::LEN`] more) to the job's slot size; what is out of
    /// that is brought there.
    pub payload: usize,
}

/// Check packets that came from one rank by one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Who sent them.
    pub source: u16,
    /// To the job's group, not to this rank alone.
    pub by_group: bool,
    /// How many.
    pub packets: u32,
    /// Switches that the last of them passed.
    pub hops: u8,
}

/// What came in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeardInRound {
    /// Check packets of other ranks.
    pub ranks: Vec<Heard>,
    /// How often the first switch answered this rank's PROBEs.
    pub reports: u32,
    /// Its latest answer, and the operation that it is about.
    pub report: Option<(OperationId, Report)>,
}

/// What is to be sent, and what came in the last few rounds.
#[derive(Default)]
pub(super) struct Checks {
    outgoing: VecDeque<CheckPacket>,
    rounds: VecDeque<Round>,
}

struct Round {
    token: u32,
    heard: HeardInRound,
}

impl Checks {
    /// Sends a packet as soon as pacing allows; one that finds too many waiting is dropped, as a
    /// full queue would.
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

    /// A check packet came from another rank of the job. A packet of a new round is the end of the
    /// oldest one: a rank is told of rounds by the packets themselves, which may come before the
    /// word that there is one.
    pub(super) fn received(&mut self, header: &Header, check: Check) {
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

    /// The first switch answered a PROBE of the round `token`.
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

    /// What came in a round so far; nothing of a round that is forgotten.
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
