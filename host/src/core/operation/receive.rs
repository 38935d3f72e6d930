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

/// Ranks whose values were coded differently from this rank's.
pub(super) struct CodedOtherwise {
    ranks: u16,
    /// Allocated at the first one.
    heard: Bits,
    pub(super) count: u16,
}

impl CodedOtherwise {
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
        if header.kind == Kind::Feedback {
            // A trimmed FEEDBACK has no content.
            let Some(feedback) = Feedback::parse(payload) else {
                return Ok(Fate::Heard.into());
            };
            self.waits
                .advertised(header.source, arrival + feedback.wait.into());
            if !feedback.notice {
                return Ok(Fate::Heard.into());
            }
        }
        let shape = self.shape();
        let Some(waiting) = &mut self.waiting else {
            count(header.kind, self.outbox.counters_mut(), 1, |phase, n| {
                phase.late += n
            });
            return Ok(match header.kind {
                Kind::Feedback => Fate::Heard.into(),
                _ => Fate::Late.into(),
            });
        };
        let source = header.source;
        let packet = Arrival {
            at: arrival,
            source,
            slot: header.slot,
            last: header.host_flags.last,
        };
        if header.kind != Kind::Feedback {
            let checked = packet::check(config, shape, header, payload);
            if checked == Err(Rejection::Coding) {
                self.coded_otherwise.note(source);
            }
            checked?;
            match (self.part, header.kind) {
                (Part::Whole, _)
                | (Part::Scatter, Kind::Scatter)
                | (Part::Gather, Kind::Gather) => {}
                _ => return Err(Rejection::Part),
            }
            if let Some(cause) = packet::cause_of(header.switch_flags) {
                let trimmed = packet::slot_trimmed(header, self.id, cause);
                count(header.kind, self.outbox.counters_mut(), 1, |phase, n| {
                    phase.trimmed += n
                });
                let is_new = waiting.slot_trimmed(packet, trimmed.phase, cause);
                if is_new {
                    self.by_hops.count(&trimmed);
                }
                return Ok(Received {
                    fate: match cause {
                        Cause::Late => Fate::MarkedLate,
                        _ => Fate::Trimmed,
                    },
                    trimmed: is_new.then_some(trimmed),
                });
            }
        }
        let acceptance = match header.kind {
            Kind::Scatter => {
                let acceptance = waiting.reduce.contribute(packet);
                if acceptance == Acceptance::InTime {
                    let range = self.layout.slot(config.rank, header.slot);
                    let (sums, bucket) = (&mut waiting.sums, &mut self.bucket);
                    sums.take(&waiting.reduce, packet, payload, &range, bucket);
                }
                acceptance
            }
            Kind::Gather => {
                waiting.reduce.sent_after(arrival, source);
                let counted = packet::counts_us(config, header, payload);
                let acceptance = (waiting.collect).store(packet, header.contributions, counted);
                if acceptance == Acceptance::InTime {
                    let range = self.layout.slot(source, header.slot);
                    let result = self.bucket.result_mut().get_mut(range);
                    config.element.read(payload, result);
                }
                acceptance
            }
            _ => {
                waiting.reduce.all_sent(arrival, source);
                if packet.last {
                    waiting.collect.all_sent(arrival, source);
                }
                return Ok(Fate::Heard.into());
            }
        };
        if acceptance == Acceptance::InTime {
            let came = Some(arrival.since(self.started));
            match header.kind {
                Kind::Scatter => {
                    let last = &mut self.last;
                    if last.contribution_from != Some(source) {
                        last.others_came = last.contribution_came;
                        last.contribution_from = Some(source);
                    }
                    last.contribution_came = came;
                }
                _ => self.last.aggregate_came = came,
            }
        }
        count(
            header.kind,
            self.outbox.counters_mut(),
            1,
            |phase: &mut PhaseCounters, n| match acceptance {
                Acceptance::InTime => phase.in_time += n,
                Acceptance::Late => phase.late += n,
                Acceptance::Duplicate => phase.duplicates += n,
            },
        );
        Ok(Fate::from(acceptance).into())
    }
}
