//! Packets of recycling: between the ledger, the store and the operations.

use ultima_wire::{Header, RepairRequest, bitmap};

use crate::config::Config;
use crate::operation::OperationId;
use crate::recycling::{
    Asking, Correction, Ledger, Recycling, RecyclingCounters, RoundTrips, Store,
};
use crate::stats::Rejection;
use crate::time::Time;

use super::packet;

/// Corrections that this rank owes and is owed, for operations that ended here.
pub(super) struct Recycler {
    pub(super) ledger: Ledger,
    pub(super) store: Store,
    pub(super) round_trips: RoundTrips,
    lapses_after: u32,
    /// The ranks that a packet's aggregate counts.
    counted: Vec<u8>,
    /// A packet's values.
    values: Vec<f32>,
}

impl Recycler {
    pub(super) fn new(config: &Config, recycling: Recycling) -> Self {
        let Config { rank, ranks, .. } = *config;
        Self {
            ledger: Ledger::new(recycling, rank, ranks, config.element),
            store: Store::new(recycling, rank, ranks),
            round_trips: RoundTrips::new(config.ranks, config.t_b),
            lapses_after: recycling.owner_lapses_after(),
            counted: vec![0; bitmap::len(ranks.into())],
            values: Vec::new(),
        }
    }

    pub(super) fn counters(&self) -> RecyclingCounters {
        let mut counters = self.ledger.counters();
        counters += self.store.counters();
        counters
    }

    /// The first operation of `step` starts.
    pub(super) fn enter_step(&mut self, step: u32, now: Time) {
        self.ledger.enter_step(step, now);
        self.store.enter_step(step);
    }

    /// True if this rank's shard of an operation lapses, given that others have reached step `newest`.
    pub(super) fn lapses(&self, id: OperationId, newest: Option<u32>) -> bool {
        newest.is_some_and(|newest| newest.saturating_sub(id.step) >= self.lapses_after)
    }

    /// Handles a GATHER of an ended operation, or a REPAIR. It is of use if its slot is unresolved.
    pub(super) fn aggregate(
        &mut self,
        config: &Config,
        id: OperationId,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Rejection> {
        let Some(shape) = self.ledger.shape(id) else {
            return Ok(());
        };
        packet::check(config, shape, header, payload)?;
        if packet::cause_of(header.switch_flags).is_none() {
            let count = shape.layout.slot(header.owner, header.slot).len();
            let counted = &payload[count * config.element.size()..];
            self.values.resize(count, 0.0);
            config.element.read(payload, &mut self.values);
            self.ledger.repair(
                id,
                header.owner,
                header.slot,
                &self.values,
                Some(counted).filter(|counted| !counted.is_empty()),
            );
        }
        Ok(())
    }

    /// Notes a packet of another rank.
    pub(super) fn heard(&mut self, now: Time, header: &Header) {
        self.round_trips.heard(now, header.source, header.sent_at);
    }

    /// Handles another rank's repair request.
    pub(super) fn request(
        &mut self,
        now: Time,
        header: &Header,
        id: OperationId,
        request: RepairRequest<'_>,
    ) {
        let rank = header.source;
        self.round_trips.echoed(now, rank, header.echoed);
        let asking = Asking {
            rank,
            round_trip: self.round_trips.of(rank),
        };
        self.store.ask(now, asking, id, header.slots, &request);
    }

    /// The bitmap of the ranks that one of this rank's aggregates counts: from `counted` while its operation
    /// runs, then from the store.
    pub(super) fn counted(
        &mut self,
        id: OperationId,
        slot: u32,
        ranks: u16,
        counted: Option<impl Fn(u16) -> bool>,
    ) -> &[u8] {
        let Some(counted) = counted else {
            return self.store.counted(id, slot).unwrap_or_default();
        };
        self.counted.fill(0);
        (0..ranks)
            .filter(|&rank| counted(rank))
            .for_each(|rank| bitmap::insert(&mut self.counted, rank.into()));
        &self.counted
    }

    /// The time of the next packet to send: now if a rank requested repairs, else when this rank's next request
    /// is due.
    pub(super) fn ready_at(&self) -> Option<Time> {
        match self.store.is_ready() {
            true => Some(Time::ZERO),
            false => self.ledger.due(),
        }
    }

    pub(super) fn take(&mut self, bucket: u16) -> Vec<Correction> {
        self.ledger.take(bucket)
    }
}
