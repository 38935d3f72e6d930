//! One AllReduce at one rank: both phases, from its start until its last packet is sent.

mod end;
pub(super) mod parameters;
mod receive;
mod transmit;

use std::time::Duration;

use crate::cause::{ByHops, Cause, Phase};
use crate::config::Config;
use crate::layout::{Layout, Shape};
use crate::operation::{OperationId, Part, Piece};
use crate::rotation::Rotations;
use crate::stats::{ClosedBy, LastPackets, Phases};
use crate::time::Time;
use crate::timeout::Bounds;
use crate::trace::{Happened, Timer};
use crate::values::{Bucket, Spare, ValueStore};

use super::WithoutCredit;
use super::collect::Collect;
use super::outbox::{Held, Outbox};
use super::overtaking::{Order, Window};
use super::reduce::{Closed, Reduce};
use super::states::Arrival;
use super::sums::Sums;
use super::tracer::Tracer;
use super::waits::Waits;

pub(super) use parameters::Start;
pub(super) use receive::Received;
use receive::RejectedRanks;

/// An operation that was started and has not sent its last packet.
pub(super) struct Operation<V> {
    pub(super) id: OperationId,
    pub(super) shape: Shape,
    part: Part,
    /// Maximum of the contribution count in its aggregates: one less than the ranks if this rank's input was
    /// incomplete.
    most: u16,
    pub(super) started: Time,
    /// See [`Members::operation_starts`](super::members::Members::operation_starts).
    pub(super) number: u32,
    bounds: Bounds,
    flush_at: Time,
    flushed: bool,
    /// True if another rank is known to have started a later step.
    knows_behind: bool,
    /// By stage: when the time for missing packets ends, once every rank's last packets have begun to arrive.
    early_at: [Option<Time>; 2],
    pub(super) deadline: Time,
    bucket: Bucket<V>,
    outbox: Outbox,
    by_hops: ByHops,
    waits: Waits,
    last: LastPackets,
    /// Ranks whose values are coded differently from this rank's.
    coded_otherwise: RejectedRanks,
    /// Ranks that run another operation under this id.
    different: RejectedRanks,
    /// None after the operation has ended. Unsent aggregates are in `bucket`.
    waiting: Option<Waiting<V>>,
}

/// The state that an operation needs until it ends.
struct Waiting<V> {
    reduce: Reduce,
    sums: Sums<V>,
    collect: Collect,
    shard_duration: Option<Duration>,
}

impl<V> Waiting<V> {
    /// Notes that a packet arrived whose payload a switch removed. Returns false if the slot is here or the loss was known.
    fn slot_trimmed(&mut self, arrival: Arrival, phase: Phase, cause: Cause) -> bool {
        match phase {
            Phase::Scatter => self.reduce.trimmed(arrival, cause),
            Phase::Gather => {
                self.reduce.sent_after(arrival.at, arrival.source);
                self.collect.trimmed(arrival, cause)
            }
        }
    }
}

/// The phases' buffers, which are passed from one operation to the next.
#[derive(Default)]
pub(super) struct Buffers<V> {
    pub(super) reduce: Reduce,
    pub(super) sums: Sums<V>,
    pub(super) collect: Collect,
}

impl<V: ValueStore> Operation<V> {
    pub(super) fn new(
        config: &Config,
        start: Start,
        own: V,
        mut buffers: Buffers<V>,
        spare: Spare<V>,
    ) -> Self {
        let Start {
            id,
            piece:
                Piece {
                    part,
                    lacks,
                    entries,
                },
            now,
            bounds,
            ..
        } = start;
        let layout = Layout::new(own.count(), config.ranks, config.slot_len());
        let rotations = Rotations::new(config.seed, id);
        let (slots, shard) = match part {
            Part::Gather => (0, 0..0),
            Part::Whole | Part::Scatter => (layout.slots(config.rank), layout.shard(config.rank)),
        };
        buffers.reduce.reset(config, slots, rotations);
        buffers.sums.reset(config, shard, slots, rotations);
        buffers.collect.reset(&layout, part, config);
        let mut operation = Self {
            id,
            shape: Shape {
                layout,
                coding: config.coding,
                length_check: entries.map_or(0, ultima_wire::length_check),
            },
            part,
            most: config.ranks - u16::from(lacks),
            started: now,
            number: start.number,
            bounds,
            flush_at: now + bounds.t_s,
            flushed: false,
            knows_behind: false,
            early_at: [None; 2],
            deadline: now + bounds.t_b,
            outbox: Outbox::new(config, &layout, &start),
            waits: Waits::new(config.ranks, now, bounds.t_b),
            by_hops: ByHops::default(),
            last: LastPackets::default(),
            coded_otherwise: RejectedRanks::new(config.ranks),
            different: RejectedRanks::new(config.ranks),
            bucket: Bucket::new(
                own,
                layout.shard(config.rank),
                config.recycling.is_some(),
                spare,
            ),
            waiting: Some(Waiting {
                reduce: buffers.reduce,
                sums: buffers.sums,
                collect: buffers.collect,
                shard_duration: None,
            }),
        };
        if part == Part::Gather {
            operation.queue_own_shard(config, now);
        }
        operation
    }

    /// For [`Part::Gather`]: rounds this rank's shard as others will read it, and queues it for sending.
    fn queue_own_shard(&mut self, config: &Config, now: Time) {
        let Config { rank, ranks, .. } = *config;
        let shard = self.shape.layout.shard(rank);
        config
            .element
            .round(self.bucket.own_mut().get_mut(shard.clone()));
        self.bucket.close(shard);
        for slot in 0..self.shape.layout.slots(rank) {
            let given = Closed {
                slot,
                contributions: ranks,
                by: ClosedBy::Complete,
            };
            self.outbox.push(given, now);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    pub(super) fn counters(&self) -> &Phases {
        self.outbox.counters()
    }

    /// Gives up this rank's shard, because all others are too far ahead to wait for it or to use its
    /// contributions. The shard becomes zero, no data is sent, and the others' aggregates are still accepted. A notice shows the
    /// others that this rank is not silent: they wait for it again, so that it can catch up.
    pub(super) fn lapse(&mut self, rank: u16, now: Time) {
        self.outbox.abandon(now);
        self.outbox.notify_at_once(now);
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.lapse();
            let shard = self.shape.layout.shard(rank);
            self.bucket.result_mut().get_mut(shard).fill(0.0);
        }
    }

    /// Sets how long overtaken packets are awaited.
    pub(super) fn tolerate(&mut self, window: Window) {
        if let Some(Waiting {
            reduce, collect, ..
        }) = &mut self.waiting
        {
            reduce.order.tolerate(window);
            collect.order.tolerate(window);
        }
    }

    /// Notes a packet of a later step from `source`: it has sent all of this operation.
    pub(super) fn source_is_past(&mut self, arrival: Time, source: u16) {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.sent_after(arrival, source);
            waiting.collect.sent_after(arrival, source);
        }
    }

    /// Shortens this operation's bounds, because another rank has started a later step.
    pub(super) fn catch_up(&mut self, now: Time) {
        if let Some([flush, end]) = self.bounds.catch_up().filter(|_| !self.knows_behind) {
            self.knows_behind = true;
            self.flush_at = self.flush_at.min(now + flush);
            self.deadline = self.deadline.min(now + end);
        }
    }

    /// Notes that `source` has sent all of this operation.
    pub(super) fn all_sent(&mut self, now: Time, source: u16) {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.all_sent(now, source);
            waiting.collect.all_sent(now, source);
        }
    }

    /// Gives up `source` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.give_up_silent(source);
            waiting.collect.give_up_silent(source);
        }
    }

    /// Slots that it still waits for.
    pub(super) fn awaits(&self) -> u32 {
        (self.waiting.as_ref()).map_or(0, |w| w.reduce.open() + w.collect.awaited())
    }

    /// Closes slots with nothing outstanding. Returns true if nothing else is outstanding either.
    pub(super) fn close_ready(&mut self, now: Time, tracer: &mut Tracer) -> bool {
        while let Some(closed) = self.waiting.as_mut().and_then(|w| w.reduce.close_ready()) {
            self.slot_closed(now, closed, tracer);
        }
        let part = self.part;
        let Some(Waiting {
            reduce,
            collect,
            shard_duration,
            ..
        }) = &mut self.waiting
        else {
            return false;
        };
        reduce.check();
        collect.check(reduce.rank());
        if reduce.open() > 0 {
            if reduce.is_ending() {
                self.arm(Phase::Scatter, now);
            }
            return false;
        }
        shard_duration.get_or_insert(now.since(self.started));
        if part == Part::Scatter {
            // The next step waits until the link is free.
            return self.outbox.scatter_is_out();
        }
        if collect.awaited() > 0 {
            if collect.is_ending() {
                self.arm(Phase::Gather, now);
            }
            return false;
        }
        true
    }

    /// Starts t_C for a stage: every rank's last packets have begun to arrive.
    fn arm(&mut self, stage: Phase, now: Time) {
        if let Some(grace) = self.bounds.grace[stage as usize] {
            self.early_at[stage as usize].get_or_insert(now + grace);
        }
    }

    /// Handles passed timers other than t_B: overtaken packets are lost; a bound closes this rank's shard with
    /// the contributions that arrived. Returns true if the operation ends.
    pub(super) fn expire(&mut self, now: Time, tracer: &mut Tracer) -> bool {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.expire(now);
            waiting.collect.expire(now);
        }
        let id = self.id;
        let mut passed = |timer| tracer.record(now, id, || Happened::Timer { timer });
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if !self.flushed && self.flush_at <= now {
            self.flushed = true;
            self.early_at[Phase::Scatter as usize] = None;
            self.outbox.stop_scatter(now);
            passed(Timer::Flush);
            self.close_shard(now, ClosedBy::Flush, tracer);
        } else if is_due(self.early_at[Phase::Scatter as usize]) {
            self.early_at[Phase::Scatter as usize] = None;
            passed(Timer::EarlyScatter);
            self.close_shard(now, ClosedBy::Early, tracer);
        }
        let closed = (self.waiting.as_ref()).is_some_and(|waiting| waiting.reduce.open() == 0);
        let early = closed && is_due(self.early_at[Phase::Gather as usize]);
        if early {
            let timer = Timer::EarlyGather;
            tracer.record(now, id, || Happened::Timer { timer });
        }
        early
    }

    /// Closes the open slots of this rank's shard with the contributions that arrived.
    pub(super) fn close_shard(&mut self, now: Time, bound: ClosedBy, tracer: &mut Tracer) {
        let mut from = 0;
        while let Some(closed) = self
            .waiting
            .as_mut()
            .and_then(|w| w.reduce.close_open(from, bound))
        {
            from = closed.slot + 1;
            self.slot_closed(now, closed, tracer);
        }
    }

    /// Computes the aggregate of a slot of this rank's shard that closed, and makes it ready to send.
    fn slot_closed(&mut self, now: Time, closed: Closed, tracer: &mut Tracer) {
        let Some(Waiting { reduce, sums, .. }) = &mut self.waiting else {
            return;
        };
        let range = self.shape.layout.slot(reduce.rank(), closed.slot);
        sums.close(reduce, closed.slot, range, &mut self.bucket);
        tracer.record(now, self.id, || Happened::SlotClosed {
            slot: closed.slot,
            contributions: closed.contributions,
            by: closed.by,
        });
        if self.part == Part::Whole {
            self.outbox.push(closed, now);
        }
    }

    /// The time at which [`Operation::expire`] or the end is due.
    pub(super) fn due(&self) -> Time {
        let Some(waiting) = &self.waiting else {
            return self.deadline;
        };
        let flush = (!self.flushed).then_some(self.flush_at);
        let early = self.early_at.into_iter().flatten();
        let overtaken = [&waiting.reduce.order, &waiting.collect.order];
        let overtaken = overtaken.into_iter().filter_map(Order::due);
        let timers = early.chain(flush).chain(overtaken);
        timers.fold(self.deadline, Time::min)
    }

    /// This operation, if its data waits for credit.
    pub(super) fn without_credit(&self) -> Option<WithoutCredit> {
        let gather = self.outbox.without_credit()?;
        let step = self.id.step;
        Some(WithoutCredit { step, gather })
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(super) fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// True if nothing is left to receive or to send.
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_none() && self.outbox.is_empty()
    }

    /// After the end, drops packets to ranks that have had no room for long.
    pub(super) fn abandon_stalled(&mut self, now: Time) {
        if self.waiting.is_none() && self.outbox.held() == Some(Held::Stalled) {
            self.outbox.abandon(now);
        }
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }

    /// The counters and the memory of an operation that is over.
    pub(super) fn into_remains(self) -> (Phases, Spare<V>) {
        (*self.outbox.counters(), self.bucket.into_spare())
    }
}
