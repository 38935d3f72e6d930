//! Packets that an operation sends.

use std::time::Duration;

use ultima_wire::Kind;

use crate::cause::Phase;
use crate::config::Gather;
use crate::core::Destination;
use crate::core::batch::InCore;
use crate::core::credit::Credit;
use crate::core::outbox::Packet;
use crate::core::outgoing::Outgoing;
use crate::element::Element;
use crate::time::Time;
use crate::timeout::Policy;
use crate::values::ValueStore;

use super::Operation;

impl<V: ValueStore> Operation<V> {
    /// The next packet to send. `earlier`: see [`Outbox::next`](crate::core::outbox::Outbox::next).
    pub(in crate::core) fn transmit(
        &mut self,
        now: Time,
        timeouts: &mut dyn Policy,
        credit: &mut Credit,
        earlier: Option<Gather>,
    ) -> Option<Outgoing<'_>> {
        let mut packet = self.outbox.next(&self.shape.layout, now, credit, earlier)?;
        if packet.kind == Kind::Gather {
            packet.contributions = packet.contributions.min(self.most);
        }
        if packet.kind == Kind::Scatter && self.outbox.scatter_is_out() {
            self.last.contribution_sent = Some(now.since(self.started));
        }
        let bucket = self.id.bucket;
        let stage = match packet.kind {
            Kind::Scatter => Phase::Scatter,
            Kind::Feedback if !packet.last => Phase::Scatter,
            _ => Phase::Gather,
        };
        if packet.kind != Kind::Feedback {
            timeouts.record_packets(bucket, stage, None, now.since(self.started), 1);
        }
        let range = match packet.kind {
            Kind::Feedback => 0..0,
            _ => self.shape.layout.slot(packet.owner, packet.slot),
        };
        Some(Outgoing {
            shape: self.shape,
            values: Some(match packet.kind {
                Kind::Gather => self.bucket.aggregates(range.clone()),
                _ => self.bucket.own().get(range.clone()),
            }),
            range,
            reduce: self.waiting.as_ref().map(|waiting| &waiting.reduce),
            slots: self.shape.layout.slots(packet.owner),
            budget: self.waits.until(packet.to).since(now),
            remaining: self.deadline.since(now),
            t_c: timeouts.t_c(bucket, stage),
            packet,
        })
    }

    /// The values of a packet in a batch.
    pub(in crate::core) fn values(&self, values: &InCore) -> &[f32] {
        match values.aggregates {
            true => self.bucket.aggregates(values.range.clone()),
            false => self.bucket.own().get(values.range.clone()),
        }
    }

    /// Bytes of the longest slot of `rank`'s shard.
    pub(in crate::core) fn longest_slot(&self, rank: u16, element: Element) -> usize {
        match self.shape.layout.slots(rank) {
            0 => 0,
            _ => self.shape.layout.slot(rank, 0).len() * element.size(),
        }
    }

    /// A FEEDBACK that is not a notice.
    pub(in crate::core) fn feedback(&self, rank: u16, to: Destination, now: Time) -> Outgoing<'_> {
        Outgoing {
            packet: Packet {
                kind: Kind::Feedback,
                owner: rank,
                slot: 0,
                contributions: 0,
                last: false,
                to,
            },
            range: 0..0,
            shape: self.shape,
            values: None,
            reduce: None,
            slots: self.shape.layout.slots(rank),
            budget: self.waits.until(to).since(now),
            remaining: self.deadline.since(now),
            t_c: Duration::ZERO,
        }
    }
}
