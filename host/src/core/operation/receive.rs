//! Packets that an operation receives.

use ultima_wire::{Feedback, Header, Kind};

use crate::bits::Bits;
use crate::cause::{Cause, SlotTrimmed};
use crate::config::Config;
use crate::core::early::count;
use crate::core::packet;
use crate::core::reduce::Acceptance;
use crate::core::states::Arrival;
use crate::operation::Part;
use crate::stats::{PhaseCounters, Rejection};
use crate::time::Time;
use crate::trace::Fate;
use crate::values::ValueStore;

use super::Operation;

/// The fate of a received packet.
pub(in crate::core) struct Received {
    pub(in crate::core) fate: Fate,
    /// A loss that it reports, if new.
    pub(in crate::core) trimmed: Option<SlotTrimmed>,
}

impl From<Fate> for Received {
    fn from(fate: Fate) -> Self {
        Self {
            fate,
            trimmed: None,
        }
    }
}

impl From<Acceptance> for Fate {
    fn from(acceptance: Acceptance) -> Self {
        match acceptance {
            Acceptance::InTime => Fate::InTime,
            Acceptance::Late => Fate::Late,
            Acceptance::Duplicate => Fate::Duplicate,
        }
    }
}

/// Ranks whose packets were rejected for one reason.
pub(super) struct RejectedRanks {
    ranks: u16,
    /// Allocated at the first one.
    heard: Bits,
    pub(super) count: u16,
}

impl RejectedRanks {
    pub(super) fn new(ranks: u16) -> Self {
        Self {
            ranks,
            heard: Bits::default(),
            count: 0,
        }
    }

    fn note(&mut self, source: u16) {
        if self.count == 0 {
            self.heard.reset(self.ranks.into());
        }
        self.count += u16::from(self.heard.insert(source.into()));
    }

    pub(super) fn to_vec(&self) -> Vec<u16> {
        let noted = |rank: &u16| self.heard.contains((*rank).into());
        match self.count {
            0 => Vec::new(),
            _ => (0..self.ranks).filter(noted).collect(),
        }
    }
}

impl<V: ValueStore> Operation<V> {
    /// Checks a packet that arrived at `arrival` against the bucket's layout, and gives it to its phase. A
    /// rejected packet changes nothing.
    pub(in crate::core) fn receive(
        &mut self,
        arrival: Time,
        config: &Config,
        header: &Header,
        payload: &[u8],
    ) -> Result<Received, Rejection> {
        let packet = Arrival {
            at: arrival,
            source: header.source,
            slot: header.slot,
            last: header.host_flags.last,
        };
        if header.kind == Kind::Feedback {
            self.take_feedback(packet, payload);
            return Ok(Fate::Heard.into());
        }
        if self.waiting.is_none() {
            self.count(header.kind, |phase| &mut phase.late);
            return Ok(Fate::Late.into());
        }
        let checked = packet::check(config, self.shape, header, payload);
        match checked {
            Err(Rejection::Coding) => self.coded_otherwise.note(packet.source),
            Err(Rejection::Slot | Rejection::Length) => self.differs(packet.source),
            _ => {}
        }
        checked?;
        match (self.part, header.kind) {
            (Part::Whole, _) | (Part::Scatter, Kind::Scatter) | (Part::Gather, Kind::Gather) => {}
            _ => return Err(Rejection::Part),
        }
        if let Some(cause) = packet::cause_of(header.switch_flags) {
            return Ok(self.take_trimmed(packet, header, cause));
        }
        let acceptance = match header.kind {
            Kind::Scatter => self.take_contribution(config, packet, payload),
            _ => self.take_aggregate(config, packet, header, payload),
        };
        self.count(header.kind, |phase| match acceptance {
            Acceptance::InTime => &mut phase.in_time,
            Acceptance::Late => &mut phase.late,
            Acceptance::Duplicate => &mut phase.duplicates,
        });
        Ok(Fate::from(acceptance).into())
    }

    /// Notes a packet of `source` that belongs to another operation with this id.
    pub(in crate::core) fn differs(&mut self, source: u16) {
        self.different.note(source);
    }

    /// Adds one packet to a counter of its phase.
    fn count(&mut self, kind: Kind, counter: impl Fn(&mut PhaseCounters) -> &mut u64) {
        count(kind, self.outbox.counters_mut(), counter);
    }

    /// A FEEDBACK announces how long its sender waits, or that it has sent all its packets. A trimmed one has no
    /// content.
    fn take_feedback(&mut self, packet: Arrival, payload: &[u8]) {
        let Some(feedback) = Feedback::parse(payload) else {
            return;
        };
        self.waits
            .advertised(packet.source, packet.at + feedback.wait.into());
        if let (true, Some(waiting)) = (feedback.notice, &mut self.waiting) {
            waiting.reduce.all_sent(packet.at, packet.source);
            if packet.last {
                waiting.collect.all_sent(packet.at, packet.source);
            }
        }
    }

    /// A switch has removed the packet's payload.
    fn take_trimmed(&mut self, packet: Arrival, header: &Header, cause: Cause) -> Received {
        self.count(header.kind, |phase| &mut phase.trimmed);
        let trimmed = packet::slot_trimmed(header, self.id, cause);
        let waiting = self.waiting.as_mut();
        let is_new = waiting.is_some_and(|all| all.slot_trimmed(packet, trimmed.phase, cause));
        if is_new {
            self.by_hops.count(&trimmed);
        }
        Received {
            fate: match cause {
                Cause::Late => Fate::MarkedLate,
                _ => Fate::Trimmed,
            },
            trimmed: is_new.then_some(trimmed),
        }
    }

    /// A SCATTER: another rank's values for a slot of this rank's shard.
    fn take_contribution(
        &mut self,
        config: &Config,
        packet: Arrival,
        payload: &[u8],
    ) -> Acceptance {
        let Some(waiting) = &mut self.waiting else {
            return Acceptance::Late;
        };
        let acceptance = waiting.reduce.contribute(packet);
        if acceptance == Acceptance::InTime {
            let range = self.shape.layout.slot(config.rank, packet.slot);
            let (sums, bucket) = (&mut waiting.sums, &mut self.bucket);
            sums.take(&waiting.reduce, packet, payload, &range, bucket);
            let last = &mut self.last;
            if last.contribution_from != Some(packet.source) {
                last.others_last_came = last.contribution_came;
                last.contribution_from = Some(packet.source);
            }
            last.contribution_came = Some(packet.at.since(self.started));
        }
        acceptance
    }

    /// A GATHER: the mean of a slot of another rank's shard.
    fn take_aggregate(
        &mut self,
        config: &Config,
        packet: Arrival,
        header: &Header,
        payload: &[u8],
    ) -> Acceptance {
        let Some(waiting) = &mut self.waiting else {
            return Acceptance::Late;
        };
        waiting.reduce.sent_after(packet.at, packet.source);
        let counted = packet::counts_us(config, header, payload);
        let acceptance = (waiting.collect).store(packet, header.contributions, counted);
        if acceptance == Acceptance::InTime {
            let range = self.shape.layout.slot(packet.source, packet.slot);
            let result = self.bucket.result_mut().get_mut(range);
            config.element.read(payload, result);
            self.last.aggregate_came = Some(packet.at.since(self.started));
        }
        acceptance
    }
}
