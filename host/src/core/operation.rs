//! One AllReduce at one rank: both phases, from its start until its last packet is sent.

use std::ops::Range;
use std::time::Duration;

use ultima_wire::{Feedback, Header, Kind};

use crate::bits::Bits;
use crate::cause::{Cause, Losses, Phase, SlotGone, Ways};
use crate::codec::Coding;
use crate::config::Config;
use crate::element::Element;
use crate::layout::Layout;
use crate::operation::{OperationId, Part, Piece};
use crate::recycling;
use crate::rotation::Rotations;
use crate::stats::{ClosedBy, FromRank, LastPackets, Outcome, PhaseCounters, Phases, Rejection};
use crate::time::Time;
use crate::timeout::{Bounds, Ended, Policy, Stage};
use crate::trace::{Fate, Happened, Timer};
use crate::values::{Bucket, Spare, Values};

use super::Destination;
use super::batch::InCore;
use super::collect::Collect;
use super::credit::Credit;
use super::early::count;
use super::outbox::{Held, Outbox, Packet};
use super::overtaking::{DelayedNotices, Notice};
use super::packet::{self, Payload};
use super::recycler::Recycler;
use super::reduce::{Acceptance, Closed, Reduce};
use super::tracer::Tracer;
use super::waits::Waits;

/// An operation that was started and has not sent its last packet.
pub(super) struct Operation {
    pub(super) id: OperationId,
    pub(super) layout: Layout,
    part: Part,
    /// Maximum of the contribution count in its aggregates: one less than the ranks if this rank's input was
    /// incomplete.
    most: u16,
    coding: Coding,
    pub(super) started: Time,
    /// See [`Members::operation_starts`](super::members::Members::operation_starts).
    pub(super) number: u32,
    bounds: Bounds,
    flush_at: Time,
    flushed: bool,
    /// By stage: when the time for missing packets ends, once every rank's last packets have begun to arrive.
    early_at: [Option<Time>; 2],
    pub(super) deadline: Time,
    bucket: Bucket,
    outbox: Outbox,
    ways: Ways,
    waits: Waits,
    last: LastPackets,
    coded_otherwise: CodedOtherwise,
    delayed: DelayedNotices,
    /// None after the operation has ended. Unsent aggregates are in `bucket`.
    waiting: Option<Waiting>,
}

/// A packet and its contents.
pub(super) struct Outgoing<'a> {
    pub(super) packet: Packet,
    /// None if values are only counted.
    pub(super) values: Option<&'a [f32]>,
    /// The place of its values in the bucket.
    pub(super) range: Range<usize>,
    pub(super) coding: Coding,
    /// The ranks that its aggregate counts. None after the operation has ended.
    pub(super) reduce: Option<&'a Reduce>,
    /// Slots of the owner's shard.
    pub(super) slots: u32,
    /// How long its receivers will still wait for it.
    pub(super) budget: Duration,
    /// How long this rank will still wait.
    pub(super) remaining: Duration,
    /// This rank's t_C; zero for none.
    pub(super) t_c: Duration,
}

/// The fate of a received packet.
pub(super) struct Received {
    pub(super) fate: Fate,
    /// A loss that it reports, if new.
    pub(super) gone: Option<SlotGone>,
}

impl From<Fate> for Received {
    fn from(fate: Fate) -> Self {
        Self { fate, gone: None }
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

/// Records that a slot of the own shard closed.
fn record_closed(tracer: &mut Tracer, now: Time, id: OperationId, closed: &Closed) {
    tracer.record(now, id, || Happened::SlotClosed {
        slot: closed.slot,
        contributions: closed.contributions,
        by: closed.by,
    });
}

/// Ranks whose values were coded differently from this rank's.
struct CodedOtherwise {
    ranks: u16,
    /// Allocated at the first one.
    heard: Bits,
    count: u16,
}

impl CodedOtherwise {
    fn new(ranks: u16) -> Self {
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

/// The state that an operation needs until it ends.
struct Waiting {
    reduce: Reduce,
    collect: Collect,
    shard_duration: Option<Duration>,
}

impl Waiting {
    /// True if packets overtake each other that senders expect to stay in order.
    fn learned_reordering(&self) -> bool {
        self.reduce.order.is_learned() || self.collect.order.is_learned()
    }

    /// Gives up what is outstanding of the packets that are all sent.
    fn noticed(&mut self, Notice { source, gather }: Notice) {
        self.reduce.give_up(source);
        if gather {
            self.collect.give_up(source);
        }
    }

    /// Notes that a switch reported a slot as dropped. Returns false if the slot is here or the loss was
    /// known.
    fn slot_gone(&mut self, gone: &SlotGone, last: bool) -> bool {
        match gone.phase {
            Phase::Scatter => self.reduce.cut(gone.source, (gone.slot, last), gone.cause),
            Phase::Gather => {
                self.reduce.sent_after(gone.source);
                if last {
                    self.collect.ending(gone.owner);
                }
                self.collect.cut(gone.owner, gone.slot, gone.cause)
            }
        }
    }
}

/// The phases' buffers, which are passed from one operation to the next.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) reduce: Reduce,
    pub(super) collect: Collect,
}

impl Operation {
    pub(super) fn new(
        config: &Config,
        (id, Piece { part, lacks }): (OperationId, Piece),
        own: Values,
        (mut buffers, spare): (Buffers, Spare),
        (number, incast, bounds): (u32, u16, Bounds),
        now: Time,
    ) -> Self {
        let layout = Layout::new(own.len(), config.ranks, config.slot_len());
        let who = (config.rank, config.ranks);
        let rotations = Rotations::new(config.seed, id);
        let stored = own.is_stored();
        buffers
            .reduce
            .reset(&layout, part, who, config, stored, rotations);
        buffers.collect.reset(&layout, part, who, config);
        let mut operation = Self {
            id,
            layout,
            part,
            most: config.ranks - u16::from(lacks),
            coding: config.coding,
            started: now,
            number,
            bounds,
            flush_at: now + bounds.t_s,
            flushed: false,
            early_at: [None; 2],
            deadline: now + bounds.t_b,
            outbox: Outbox::new(config, &layout, (id, part), (incast, bounds), now),
            waits: Waits::new(config.ranks, now, bounds.t_b),
            ways: Ways::default(),
            last: LastPackets::default(),
            coded_otherwise: CodedOtherwise::new(config.ranks),
            delayed: DelayedNotices::new(config.ranks),
            bucket: Bucket::new(
                own,
                layout.shard(config.rank),
                config.recycling.is_some(),
                spare,
            ),
            waiting: Some(Waiting {
                reduce: buffers.reduce,
                collect: buffers.collect,
                shard_duration: None,
            }),
        };
        if part == Part::Gather {
            operation.give(config, now);
        }
        operation
    }

    /// Makes this rank's given shard, rounded as others will read it, ready to send.
    fn give(&mut self, config: &Config, now: Time) {
        let Config { rank, ranks, .. } = *config;
        let shard = self.layout.shard(rank);
        if let Some(given) = self.bucket.own_mut().get_mut(shard.clone()) {
            config.element.round(given);
        }
        self.bucket.close(shard);
        for slot in 0..self.layout.slots(rank) {
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

    /// Checks a packet that arrived at `arrival` against the bucket's layout, and gives it to its phase. A
    /// rejected packet changes nothing.
    pub(super) fn receive(
        &mut self,
        arrival: Time,
        config: &Config,
        header: &Header,
        payload: Payload<'_>,
    ) -> Result<Received, Rejection> {
        if header.kind == Kind::Feedback {
            // Without its payload it says nothing.
            let Some(feedback) = Feedback::parse(payload.bytes()) else {
                return Ok(Fate::Heard.into());
            };
            self.waits
                .advertised(header.source, arrival + feedback.wait.into());
            if !feedback.notice {
                return Ok(Fate::Heard.into());
            }
        }
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
        if header.kind != Kind::Feedback {
            let checked = packet::check(config, (&self.layout, self.coding), header, payload);
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
            if self.bucket.is_stored() && !payload.is_whole() {
                return Err(Rejection::Length);
            }
            if let Some(cause) = packet::cause_of(header.switch_flags) {
                let gone = packet::slot_gone(header, self.id, cause);
                count(header.kind, self.outbox.counters_mut(), 1, |phase, n| {
                    phase.cut += n
                });
                let news = waiting.slot_gone(&gone, header.host_flags.last);
                if news {
                    self.ways.count(&gone);
                }
                return Ok(Received {
                    fate: match cause {
                        Cause::Late => Fate::CutLate,
                        _ => Fate::CutTrimmed,
                    },
                    gone: news.then_some(gone),
                });
            }
        }
        let last = header.host_flags.last;
        let acceptance = match header.kind {
            Kind::Scatter => {
                let (slot, bucket) = ((header.slot, last), &mut self.bucket);
                (waiting.reduce).contribute(&self.layout, source, slot, payload, bucket)
            }
            Kind::Gather => {
                waiting.reduce.sent_after(source);
                let collect = &mut waiting.collect;
                if last {
                    collect.ending(source);
                }
                let counted = packet::counts_us(config, header, payload);
                let aggregate = (header.slot, header.contributions, counted);
                let result = self.bucket.result_mut();
                collect.store(&self.layout, source, aggregate, payload, result)
            }
            _ => {
                let notice = Notice {
                    source,
                    gather: last,
                };
                match waiting.learned_reordering() {
                    true => self
                        .delayed
                        .add(arrival + self.bounds.notice_spacing(), notice),
                    false => waiting.noticed(notice),
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

    /// Gives up this rank's shard, because all others are too far ahead to wait for it or to use its
    /// contributions. The shard becomes zero, nothing is sent, and the others' aggregates are still accepted.
    pub(super) fn lapse(&mut self, rank: u16, now: Time) {
        self.outbox.abandon(now);
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.lapse();
            let shard = self.layout.shard(rank);
            if let Some(values) = self.bucket.result_mut().get_mut(shard) {
                values.fill(0.0);
            }
        }
    }

    /// Lets as many `later` packets overtake one before it counts as lost.
    pub(super) fn tolerate(&mut self, later: u32) {
        if let Some(Waiting {
            reduce, collect, ..
        }) = &mut self.waiting
        {
            reduce.order.tolerate(later);
            collect.order.tolerate(later);
        }
    }

    /// Notes a packet of a later step from `source`: it has sent all of this operation.
    pub(super) fn source_is_past(&mut self, source: u16) {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.sent_after(source);
            waiting.collect.sent_after(source);
        }
    }

    /// Notes that `source` has sent all of this operation.
    pub(super) fn give_up(&mut self, source: u16) {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.give_up(source);
            waiting.collect.give_up(source);
        }
    }

    /// Gives up `source` because it was silent for too long.
    pub(super) fn give_up_silent(&mut self, source: u16) {
        if let Some(waiting) = &mut self.waiting {
            waiting.reduce.give_up_silent(source);
            waiting.collect.give_up_silent(source);
        }
    }

    /// Closes slots with nothing outstanding. Returns true if nothing else is outstanding either.
    pub(super) fn settle(&mut self, now: Time, tracer: &mut Tracer) -> bool {
        let Some(Waiting {
            reduce,
            collect,
            shard_duration,
        }) = &mut self.waiting
        else {
            return false;
        };
        let (id, part, outbox) = (self.id, self.part, &mut self.outbox);
        reduce.close_ready(&self.layout, &mut self.bucket, |closed| {
            record_closed(tracer, now, id, &closed);
            if part == Part::Whole {
                outbox.push(closed, now);
            }
        });
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

    /// Handles passed timers other than t_B: a delayed notice takes effect; a bound closes this rank's shard with
    /// the contributions that arrived. Returns true if the operation ends.
    pub(super) fn expire(&mut self, now: Time, tracer: &mut Tracer) -> bool {
        while let Some(notice) = self.delayed.take(now) {
            if let Some(waiting) = &mut self.waiting {
                waiting.noticed(notice);
            }
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
        let (id, part) = (self.id, self.part);
        if let Some(Waiting { reduce, .. }) = &mut self.waiting {
            let (layout, bucket, outbox) = (&self.layout, &mut self.bucket, &mut self.outbox);
            reduce.flush(layout, bucket, bound, |closed| {
                record_closed(tracer, now, id, &closed);
                if part == Part::Whole {
                    outbox.push(closed, now);
                }
            });
        }
    }

    /// Ends the operation because `bound` passed or nothing is outstanding. None if it had ended. Closed
    /// slots may still be sent, unless the outbox was told to abandon them.
    pub(super) fn end(
        &mut self,
        rank: u16,
        now: Time,
        bound: Option<ClosedBy>,
        recycler: Option<&mut Recycler>,
        timeouts: &mut dyn Policy,
    ) -> Option<(Outcome, Values, Buffers)> {
        let Waiting {
            reduce,
            collect,
            shard_duration,
        } = self.waiting.take()?;
        if let Some(recycler) = recycler {
            let ended = recycling::Ended {
                id: self.id,
                layout: &self.layout,
                coding: self.coding,
                own: self.bucket.own(),
                result: self.bucket.result(),
                t_b: self.bounds.t_b,
                lapsed: reduce.is_lapsed(),
                rounding: reduce.rounding(),
                known: &|owner, slot| collect.known(owner, slot),
            };
            recycler.ledger.operation_ended(&ended, now);
            if !reduce.is_lapsed() && reduce.open() == 0 {
                let shard = self.bucket.aggregates(self.layout.shard(rank));
                let counted = |slot, rank| reduce.counts(slot, rank);
                let bucket = (&self.layout, self.coding);
                recycler.store.keep(self.id, bucket, shard, counted);
            }
        }
        self.outbox.stop_scatter(now);
        self.outbox.release();
        let unsent = self.outbox.unsent();
        let mut result = (self.bucket).end(unsent.map(|slot| self.layout.slot(rank, slot)));
        let missing = collect.zero_missing(&self.layout, rank, &mut result);
        if self.part == Part::Scatter {
            let shard = self.layout.shard(rank);
            for others in [0..shard.start, shard.end..self.layout.len()] {
                if let Some(values) = result.get_mut(others) {
                    values.fill(0.0);
                }
            }
        }
        let duration = now.since(self.started);
        let closed_by = match (bound, missing.slots) {
            (Some(ClosedBy::Deadline), _) => ClosedBy::Deadline,
            (_, 0) => reduce.closed_by(),
            (bound, _) => reduce.closed_by().max(bound.unwrap_or(ClosedBy::KnownLoss)),
        };
        let shard_duration = shard_duration.unwrap_or(duration);
        let (scatter, gather) = (reduce.lost(), missing.causes);
        let phases = *self.outbox.counters();
        timeouts.ended(&Ended {
            step: self.id.step,
            bucket: self.id.bucket,
            stages: [
                Stage {
                    after: shard_duration,
                    closed_by: reduce.closed_by(),
                    owed: reduce.owed(),
                    missing: scatter,
                },
                Stage {
                    after: duration,
                    closed_by,
                    owed: collect.owed(),
                    missing: gather,
                },
            ],
            never_sent: [phases.scatter.never_sent, phases.gather.never_sent],
            overdue: &|rank| reduce.is_overdue(rank),
        });
        let arrived = |(other, contributions)| match other == rank {
            true => FromRank::default(),
            false => FromRank {
                contributions,
                aggregates: collect.came(other),
            },
        };
        let outcome = Outcome {
            id: self.id,
            closed_by,
            shard_closed_by: reduce.closed_by(),
            duration,
            shard_duration,
            last: self.last,
            t_s: self.bounds.t_s,
            t_b: self.bounds.t_b,
            contributions: reduce.histogram(),
            layout: self.layout,
            arrived: (0..).zip(reduce.came()).map(arrived).collect(),
            missed_aggregates: missing.slots,
            missed_values: missing.values,
            incomplete_aggregates: collect.incomplete(),
            suspected: Vec::new(),
            newest_step: None,
            coded_otherwise: self.coded_otherwise.count,
            weights: Vec::new(),
            owed: reduce.owed() + collect.owed(),
            lost: Losses { scatter, gather },
            cut: self.ways.take(),
            phases,
        };
        Some((outcome, result, Buffers { reduce, collect }))
    }

    /// When [`Operation::expire`] or the end is due.
    pub(super) fn due(&self) -> Time {
        if !self.is_waiting() {
            return self.deadline;
        }
        let flush = (!self.flushed).then_some(self.flush_at);
        let early = self.early_at.into_iter().flatten();
        let timers = early.chain(flush).chain(self.delayed.due());
        timers.fold(self.deadline, Time::min)
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(super) fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The next packet to send.
    pub(super) fn transmit(
        &mut self,
        now: Time,
        timeouts: &mut dyn Policy,
        credit: &mut Credit,
    ) -> Option<Outgoing<'_>> {
        let mut packet = self.outbox.next(&self.layout, now, credit)?;
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
            timeouts.passed(bucket, stage, None, now.since(self.started), 1);
        }
        let range = match packet.kind {
            Kind::Feedback => 0..0,
            _ => self.layout.slot(packet.owner, packet.slot),
        };
        Some(Outgoing {
            coding: self.coding,
            values: match packet.kind {
                Kind::Gather => self.bucket.aggregates(range.clone()),
                _ => self.bucket.own().get(range.clone()),
            },
            range,
            reduce: self.waiting.as_ref().map(|waiting| &waiting.reduce),
            slots: self.layout.slots(packet.owner),
            budget: self.waits.until(packet.to).since(now),
            remaining: self.deadline.since(now),
            t_c: timeouts.t_c(bucket, stage),
            packet,
        })
    }

    /// The values of a packet in a batch.
    pub(super) fn values(&self, values: &InCore) -> Option<&[f32]> {
        match values.aggregates {
            true => self.bucket.aggregates(values.range.clone()),
            false => self.bucket.own().get(values.range.clone()),
        }
    }

    /// Bytes of the longest slot of `rank`'s shard.
    pub(super) fn longest_slot(&self, rank: u16, element: Element) -> usize {
        match self.layout.slots(rank) {
            0 => 0,
            _ => self.layout.slot(rank, 0).len() * element.size(),
        }
    }

    /// A FEEDBACK that is not a notice.
    pub(super) fn feedback(&self, rank: u16, to: Destination, now: Time) -> Outgoing<'_> {
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
            coding: self.coding,
            values: None,
            reduce: None,
            slots: self.layout.slots(rank),
            budget: self.waits.until(to).since(now),
            remaining: self.deadline.since(now),
            t_c: Duration::ZERO,
        }
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
    pub(super) fn into_remains(self) -> (Phases, Spare) {
        (*self.outbox.counters(), self.bucket.into_spare())
    }
}
