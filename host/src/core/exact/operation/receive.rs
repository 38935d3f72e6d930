//! Packets that an exact operation receives, and sums of what has arrived.

use std::ops::Range;

use ultima_wire::{Header, Kind, RepairRequest, Requested};

use crate::core::early::count;
use crate::core::exact::ELEMENT;
use crate::core::packet;
use crate::exact::Exact;
use crate::stats::Rejection;
use crate::time::Time;

use super::ExactOperation;

impl ExactOperation {
    /// Notes that the sender of a rejected packet runs another operation under this id.
    pub(in crate::core::exact) fn differs(&mut self, source: u16) {
        let peer = &mut self.peers[usize::from(source)];
        (peer.heard, peer.differs) = (true, true);
    }

    /// Handles a SCATTER, GATHER, REPAIR or FEEDBACK. A rejected packet changes nothing.
    pub(in crate::core::exact) fn receive(
        &mut self,
        now: Time,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Rejection> {
        let from = usize::from(header.source);
        self.peers[from].last = now;
        if header.kind == Kind::Feedback {
            self.peers[from].heard = true;
            self.peers[from].done |= header.host_flags.last;
            return Ok(());
        }
        let place = self.check(header, payload)?;
        let peer = &mut self.peers[from];
        peer.heard = true;
        let want = match header.kind {
            Kind::Scatter => &mut peer.contributions,
            _ => &mut peer.aggregates,
        };
        let counters = &mut self.phases;
        if self.ended {
            count(header.kind, counters, |phase| &mut phase.late);
            return Ok(());
        }
        if packet::cause_of(header.switch_flags).is_some() {
            want.lost(now);
            count(header.kind, counters, |phase| &mut phase.trimmed);
            return Ok(());
        }
        if !want.insert(header.slot, now) {
            count(header.kind, counters, |phase| &mut phase.duplicates);
            return Ok(());
        }
        if header.host_flags.last {
            want.lost(now);
        }
        count(header.kind, counters, |phase| &mut phase.in_time);
        match header.kind {
            Kind::Scatter => {
                let at = self.received_at(header.source, place);
                ELEMENT.read(payload, &mut self.received[at]);
                self.open[header.slot as usize] -= 1;
                if self.open[header.slot as usize] == 0 {
                    self.close(header.slot);
                }
            }
            _ => {
                ELEMENT.read(payload, &mut self.result[place]);
                self.missing -= 1;
            }
        }
        Ok(())
    }

    /// Checks a packet with a slot's values, or without its payload. Returns the slot's range.
    fn check(&self, header: &Header, payload: &[u8]) -> Result<Range<usize>, Rejection> {
        let (contributes, contributions) = match header.kind {
            Kind::Scatter => (self.exact.contributes(header.source, self.rank), 1),
            _ => (true, self.exact.contributions(self.ranks)),
        };
        if !contributes || header.contributions != contributions {
            return Err(Rejection::Exact);
        }
        let slots = self.layout.slots(header.owner);
        if header.slots != slots || header.slot >= slots {
            return Err(Rejection::Slot);
        }
        if header.dtype != ELEMENT.dtype() {
            return Err(Rejection::Dtype);
        }
        if header.host_flags.hadamard {
            return Err(Rejection::Coding);
        }
        let place = self.layout.slot(header.owner, header.slot);
        let len = match packet::cause_of(header.switch_flags) {
            Some(_) => 0,
            None => place.len() * ELEMENT.size(),
        };
        match payload.len() == len {
            true => Ok(place),
            false => Err(Rejection::Length),
        }
    }

    /// Range of the contribution of `source` to a slot of this rank's shard.
    fn received_at(&self, source: u16, place: Range<usize>) -> Range<usize> {
        let before = (0..source).filter(|&other| other != self.rank);
        let index = match self.exact {
            Exact::Sum | Exact::Mean => before.count(),
            Exact::Broadcast { .. } | Exact::AllGather => 0,
        };
        let shard = self.layout.shard(self.rank);
        let start = index * shard.len() + place.start - shard.start;
        start..start + place.len()
    }

    /// Closes `slot`, whose contributions have all arrived.
    pub(super) fn close(&mut self, slot: u32) {
        let place = self.layout.slot(self.rank, slot);
        let sources = (0..self.ranks).filter(|&rank| self.exact.contributes(rank, self.rank));
        let mut sum = vec![0.0; place.len()];
        for source in sources {
            let values = match source == self.rank {
                true => &self.own[place.clone()],
                false => &self.received[self.received_at(source, place.clone())],
            };
            match self.exact {
                Exact::Sum | Exact::Mean => {
                    sum.iter_mut()
                        .zip(values)
                        .for_each(|(sum, value)| *sum += value);
                }
                // Bit by bit.
                Exact::Broadcast { .. } | Exact::AllGather => sum.copy_from_slice(values),
            }
        }
        if self.exact == Exact::Mean {
            let ranks = f32::from(self.ranks);
            sum.iter_mut().for_each(|sum| *sum /= ranks);
        }
        self.own[place.clone()].copy_from_slice(&sum);
        self.result[place].copy_from_slice(&sum);
        self.closed.push_back(slot);
        self.held = false;
        self.missing -= 1;
    }

    /// Handles another rank's request. Slots that cannot be sent are skipped; the rank requests them again.
    pub(in crate::core::exact) fn request(
        &mut self,
        now: Time,
        header: &Header,
        request: RepairRequest<'_>,
    ) {
        let round = self.spacing.first / 2;
        let to = header.source;
        let asked = match request.of {
            Requested::Aggregates => self.rank,
            Requested::Contributions => to,
        };
        let slots = self.layout.slots(asked);
        if header.slots != slots {
            return;
        }
        let peer = &mut self.peers[usize::from(to)];
        (peer.heard, peer.last) = (true, now);
        self.held = false;
        match request.of {
            Requested::Aggregates => {
                let open = &self.open;
                let closed = |slot: u32| open[slot as usize] == 0;
                (peer.asked_aggregates).ask(now, round, slots, &request, closed);
            }
            Requested::Contributions => {
                // Until all were sent once, this rank knows of no loss.
                let sent = self.scatter == 0 && self.exact.contributes(self.rank, to);
                (peer.asked_contributions).ask(now, round, slots, &request, |_| sent);
            }
        }
    }
}
