//! The protocol as a state machine: no I/O, no clock.
//!
//! A driver calls [`Core::start`] for each AllReduce, [`Core::handle_datagram`] for each UDP
//! payload that came, [`Core::poll_transmit`] until it returns nothing, [`Core::handle_timeout`]
//! when the time that [`Core::poll_timeout`] names has come, and takes what ended from
//! [`Core::poll_event`]. The same calls with the same times give the same packets and the same
//! bits.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `operation.rs` | one AllReduce: its two phases and its bounds |
//! | `reduce.rs` | the own shard: contributions by slot, what is known to be gone, when a slot closes |
//! | `collect.rs` | the others' shards: aggregates that came |
//! | `congestion.rs` | what queues this rank's packets met, and the others' did: its rate |
//! | `outbox.rs` | what is to be sent, in which order |
//! | `early.rs` | packets that came before the operation started here |
//! | `check.rs` | check packets, which find out where packets stop |
//! | `cuts.rs` | payloads that switches cut on the way |
//! | `packet.rs` | what is read from and written to a datagram |
//! | `waits.rs` | how long the others will wait: the budget that packets carry |
//! | `recycler.rs` | packets of [`crate::recycling`]: counted ranks, requests, repairs |
//! | `members.rs` | who was heard, who is suspected |
//! | `tracer.rs` | tells what happens, where somebody wants to know: [`crate::trace`] |
//! | `weights.rs` | what each rank's data weigh |
//! | `exact/` | exact operations, which repair what is lost until it is there |
//!
//! # When something is known to be gone
//!
//! A switch that cannot carry a packet's payload in time sends its header on, marked TRIMMED or
//! LATE: checked like any other packet, it settles its slot at once and is told as
//! [`Event::SlotGone`]. What was dropped without a word shows by order:
//!
//! A path keeps the order of one source's packets (up to [`Config::reorder`] of them overtaking
//! one), and a source sends all SCATTER of an operation, then its GATHER, then the next step. So an
//! owner gives a contribution up
//! - when a later one in the source's [`crate::Rotation`] came,
//! - when a GATHER or FEEDBACK of the operation came from the source, or anything of a later step;
//!
//! and a receiver gives an owner's aggregates up when the owner's FEEDBACK with the flag LAST came,
//! or anything of a later step that took the same way ([`Config::beside`]). Aggregates are sent as
//! slots close, in no known order, so that a gap among them says nothing. Neither waits for a rank
//! that was silent for three operations, unless all were: then each operation takes t_B, and after ten of them and
//! ten seconds the next does not start ([`StartError::Alone`]). What comes although it was given up still counts until its
//! slot or operation has closed.

mod check;
mod collect;
mod congestion;
mod cuts;
mod early;
mod exact;
mod members;
mod operation;
mod outbox;
mod packet;
mod recycler;
mod reduce;
mod tracer;
mod waits;
mod weights;

use std::collections::VecDeque;
use std::time::Duration;

use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{Check, Feedback, HEADER_LEN, Header, Kind, RepairRequest, Requested, Ticks};

use crate::bits::Bits;
use crate::cause::{Cause, Phase, SlotGone};
use crate::codec::Coding;
use crate::config::{Config, ConfigError, Gather};
use crate::estimator::Estimator;
use crate::exact::{Exact, ExactOutcome, Incomplete};
use crate::incast::Incast;
use crate::layout::Layout;
use crate::operation::OperationId;
use crate::recycling::Correction;
use crate::stats::{ClosedBy, Outcome, Rejection, Totals};
use crate::time::Time;
use crate::timeout::Policy;
use crate::trace::{Fate, Happened, Sink, Timer};
use crate::values::Values;

pub use check::{CheckPacket, Heard, HeardInRound};

use check::Checks;
use congestion::{Congestion, Queues, Told};
use early::Early;
use exact::ExactOperations;
use members::Members;
use operation::{Buffers, Operation, Received};
use packet::{Datagram, Payload, Said, Written};
use recycler::Recycler;
use tracer::Tracer;
use weights::Weights;

/// Of how many operations it is known when they started, so that a packet that comes after its operation's end tells how
/// late it is.
const STARTED: usize = 32;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// To one rank.
    Rank(u16),
    /// To the job's group: every rank but the sender.
    Group,
}

/// A datagram to send, whose bytes are in the buffer given to [`Core::poll_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where it goes.
    pub to: Destination,
    /// Its length: an Ultima header and payload.
    pub len: usize,
    /// Bytes in the buffer: all, but for values that are only counted ([`Core::start_counted`]); what follows them
    /// stands in their place.
    pub head: usize,
}

/// What a driver is told.
#[derive(Debug)]
pub enum Event {
    /// An operation ended.
    Done {
        /// How.
        outcome: Box<Outcome>,
        /// The averaged bucket as it was encoded, for [`crate::Codec::decode`]. Hand the allocation
        /// back as the next operation's contributions and nothing is allocated in the steady state.
        result: Vec<f32>,
    },
    /// A switch said that a slot will not come: it is not waited for.
    SlotGone(SlotGone),
    /// An exact operation ended.
    Exact {
        /// Which one.
        id: OperationId,
        /// Its result and how it came, or why there is none.
        ended: Box<Result<(ExactOutcome, Vec<f32>), Incomplete>>,
    },
}

/// Why an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The same id again.
    #[error("{0} was started before; an operation's id is used once")]
    Repeated(OperationId),
    /// An id of a step before the newest one.
    #[error("{id} is of a step before {newest}, which was started; steps only rise")]
    Past {
        /// The refused id.
        id: OperationId,
        /// The newest step.
        newest: u32,
    },
    /// Nobody was heard for so long that what this rank averages is its own.
    #[error(
        "{id} was not started: for {operations} operations nothing came from any of the {others} other ranks; see \
         whether this host reaches them, and the job's switch admits it"
    )]
    Alone {
        /// The refused id, which may be tried again.
        id: OperationId,
        /// Operations in a row, each until t_B.
        operations: u32,
        /// The other ranks of the job.
        others: u16,
    },
    /// Nobody would send anything.
    #[error("{id} broadcasts what rank {root} has; the job's ranks are 0 to {last}")]
    Root {
        /// The refused id.
        id: OperationId,
        /// The rank named.
        root: u16,
        /// The job's last rank.
        last: u16,
    },
    /// The step before is not over.
    #[error(
        "{id} cannot start while {under_way} is under way; a step starts when the one before has ended"
    )]
    StepUnderWay {
        /// The refused id.
        id: OperationId,
        /// An operation of an earlier step.
        under_way: OperationId,
    },
}

impl StartError {
    /// The refused operation.
    pub fn id(&self) -> OperationId {
        match *self {
            StartError::Repeated(id)
            | StartError::Past { id, .. }
            | StartError::Alone { id, .. }
            | StartError::Root { id, .. }
            | StartError::StepUnderWay { id, .. } => id,
        }
    }
}

/// An operation that started, and may have ended.
struct Started {
    id: OperationId,
    at: Time,
    /// Contributions that each of the others owes to this rank's shard.
    slots: u64,
    /// Whose notice of its last contribution came.
    told: Bits,
}

/// One rank's side of a job's AllReduces.
pub struct Core {
    config: Config,
    estimator: Box<dyn Estimator>,
    /// In the order of their start.
    operations: VecDeque<Operation>,
    newest_step: Option<u32>,
    /// Buckets of the newest step that were started.
    started_buckets: Vec<u16>,
    early: Early,
    timeouts: Box<dyn Policy>,
    /// The last operations that started.
    started: VecDeque<Started>,
    members: Members,
    weights: Weights,
    checks: Checks,
    recycler: Option<Recycler>,
    exact: ExactOperations,
    congestion: Option<Congestion>,
    incast: Incast,
    events: VecDeque<Event>,
    /// Of operations that are over.
    totals: Totals,
    tracer: Tracer,
    spare_buffers: Vec<Buffers>,
    spare_values: Vec<Values>,
}

impl Core {
    /// A core that has not started anything.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration cannot work.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            estimator: config.estimation.estimator(config.ranks),
            operations: VecDeque::new(),
            newest_step: None,
            started_buckets: Vec::new(),
            early: Early::new(config.early),
            timeouts: config.timeouts.policy(&config),
            started: VecDeque::with_capacity(STARTED),
            members: Members::new(config.ranks),
            weights: Weights::default(),
            checks: Checks::default(),
            recycler: config
                .recycling
                .map(|recycling| Recycler::new(recycling, (config.rank, config.ranks))),
            exact: ExactOperations::default(),
            congestion: (config.pacing).map(|pacing| Congestion::new(&config, pacing)),
            incast: Incast::new(config.incast, config.ranks),
            events: VecDeque::new(),
            totals: Totals::default(),
            tracer: Tracer::default(),
            spare_buffers: Vec::new(),
            spare_values: Vec::new(),
            config,
        })
    }

    /// This rank's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tells `sink` what happens from now on: of every AllReduce each packet, each slot that closes, each bound that
    /// passes; of exact operations the packets that are sent.
    pub fn trace(&mut self, sink: Box<dyn Sink>) {
        self.tracer = Tracer::new(self.config.rank, sink);
    }

    /// The longest datagram that [`Core::poll_transmit`] writes.
    pub fn max_datagram(&self) -> usize {
        packet::max_datagram(&self.config)
    }

    /// Starts operation `id` with this rank's encoded bucket, which is as long on every rank.
    ///
    /// # Errors
    /// [`StartError`]: the id was used, the step before is not over, or nobody has been heard for long.
    pub fn start(
        &mut self,
        now: Time,
        id: OperationId,
        contributions: Vec<f32>,
    ) -> Result<(), StartError> {
        self.begin(now, id, Values::Stored(contributions))
    }

    /// The same for a bucket of `len` encoded values that are not there: for simulations, which want
    /// to know when things happen. Every decision is the one that [`Core::start`] would lead to; no value is
    /// stored, written to a packet or read from one, and the result is empty.
    ///
    /// # Errors
    /// As [`Core::start`].
    pub fn start_counted(
        &mut self,
        now: Time,
        id: OperationId,
        len: usize,
    ) -> Result<(), StartError> {
        self.begin(now, id, Values::Counted(len))
    }

    /// Starts an exact operation, which ends with every rank's values in, or as an error after `limit`. `values` are as
    /// many on every rank; they are sent as they are, without [`crate::Codec`].
    ///
    /// Ids are those of all operations: the same rules hold, and an id is of the one kind or of the other. The limit,
    /// the same on all ranks, is also how far apart ranks may start it.
    ///
    /// # Errors
    /// [`StartError`]: the id was used, the step before is not over, or the root is not a rank.
    pub fn start_exact(
        &mut self,
        now: Time,
        id: OperationId,
        exact: Exact,
        values: Vec<f32>,
        limit: Duration,
    ) -> Result<(), StartError> {
        self.handle_timeout(now);
        let last = self.config.ranks - 1;
        if let Exact::Broadcast { root } = exact
            && root > last
        {
            return Err(StartError::Root { id, root, last });
        }
        self.enter_step(id, now)?;
        self.exact
            .start(&self.config, (id, exact), values, limit, now);
        self.deliver_early(id);
        self.settle(now);
        Ok(())
    }

    fn begin(
        &mut self,
        now: Time,
        id: OperationId,
        contributions: Values,
    ) -> Result<(), StartError> {
        self.handle_timeout(now);
        if let Some(operations) = self.members.is_alone(self.config.rank) {
            return Err(StartError::Alone {
                id,
                operations,
                others: self.config.ranks - 1,
            });
        }
        self.enter_step(id, now)?;
        let buffers = self.spare_buffers.pop().unwrap_or_default();
        let result = self.spare_values.pop().unwrap_or_default();
        let bounds = self.timeouts.start(now, id.bucket, contributions.len());
        self.note_start(id, contributions.len(), now);
        self.tracer.tell(now, id, || Happened::Started {
            values: contributions.len() as u64,
            t_s: bounds.t_s,
            t_b: bounds.t_b,
            t_c_scatter: bounds.grace[Phase::Scatter as usize],
            t_c_gather: bounds.grace[Phase::Gather as usize],
        });
        let incast = self
            .incast
            .limit(|rank| rank != self.config.rank && !self.members.is_suspected(rank));
        let mut operation = Operation::new(
            &self.config,
            id,
            contributions,
            result,
            buffers,
            (self.members.operation_starts(), incast, bounds),
            now,
        );
        let newest = self.members.newest_step();
        if (self.recycler.as_ref()).is_some_and(|recycler| recycler.lapses(id, newest)) {
            operation.lapse(self.config.rank, now);
        }
        if !self.members.suspects_all(self.config.rank) {
            let suspected = self
                .others()
                .filter(|&rank| self.members.is_suspected(rank));
            suspected.for_each(|rank| operation.give_up_silent(rank));
        }
        self.operations.push_back(operation);
        self.deliver_early(id);
        for rank in self
            .others()
            .filter(|&rank| self.members.is_past(rank, id.step))
        {
            for operation in self.operations.iter_mut().filter(|o| o.id == id) {
                operation.give_up(rank);
            }
        }
        self.settle(now);
        Ok(())
    }

    /// Remembers when an operation started.
    fn note_start(&mut self, id: OperationId, values: usize, now: Time) {
        let oldest = match self.started.len() {
            STARTED => self.started.pop_front(),
            _ => None,
        };
        let Config { rank, ranks, .. } = self.config;
        let mut told = oldest.map_or_else(Bits::default, |oldest| oldest.told);
        told.reset(ranks.into());
        self.started.push_back(Started {
            id,
            at: now,
            slots: Layout::new(values, ranks, self.config.slot_len())
                .slots(rank)
                .into(),
            told,
        });
    }

    /// What came of an operation before it started here.
    fn deliver_early(&mut self, id: OperationId) {
        if let Some(kept) = self.early.take(id) {
            for (arrival, datagram) in early::datagrams(&kept) {
                if let Ok((header, payload)) = datagram.parse() {
                    self.members.lives(header.source);
                    self.deliver(arrival, &header, payload);
                }
            }
            self.early.recycle(kept);
        }
    }

    /// Checks that `id` may start, and leaves the steps before it behind.
    fn enter_step(&mut self, id: OperationId, now: Time) -> Result<(), StartError> {
        if let Some(newest) = self.newest_step.filter(|&newest| id.step < newest) {
            return Err(StartError::Past { id, newest });
        }
        if self.newest_step == Some(id.step) {
            if self.started_buckets.contains(&id.bucket) {
                return Err(StartError::Repeated(id));
            }
        } else {
            let waiting = self.operations.iter().find(|o| o.is_waiting());
            let under_way = waiting.map(|o| o.id).or_else(|| self.exact.running());
            if let Some(under_way) = under_way {
                return Err(StartError::StepUnderWay { id, under_way });
            }
            self.newest_step = Some(id.step);
            self.started_buckets.clear();
            self.early
                .drop_if(|early| early.step < id.step, &mut self.totals.phases);
            for operation in &mut self.operations {
                operation.outbox_mut().stop_repeating();
            }
            self.exact.stop_repeating();
            if let Some(recycler) = &mut self.recycler {
                recycler.enter_step(id.step, now);
            }
        }
        self.started_buckets.push(id.bucket);
        Ok(())
    }

    /// Takes a UDP payload that came. What is not a packet of this job for this rank is counted and
    /// ignored.
    pub fn handle_datagram(&mut self, now: Time, datagram: &[u8]) {
        self.handle(now, Datagram::whole(datagram));
    }

    /// The same for a datagram of `len` bytes of which only the first are at hand: all but the
    /// values. Operations that were started with values refuse what has none.
    pub fn handle_head(&mut self, now: Time, head: &[u8], len: usize) {
        let len = len.max(head.len());
        self.handle(now, Datagram { bytes: head, len });
    }

    fn handle(&mut self, now: Time, datagram: Datagram<'_>) {
        self.handle_timeout(now);
        let (header, payload) = match packet::admit(&self.config, datagram) {
            Ok(admitted) => admitted,
            Err(reason) => return self.totals.rejected.count(reason),
        };
        match header.kind {
            Kind::Control => return self.receive_control(now, &header, payload.bytes()),
            Kind::Report => return self.receive_report(&header, payload.bytes()),
            Kind::Repair => return self.receive_repair(now, &header, payload),
            _ => {}
        }
        self.incast.told(header.source, header.incast);
        if let Some(congestion) = &mut self.congestion {
            congestion.received(now, &header);
            if let Some(feedback) =
                Feedback::parse(payload.bytes()).filter(|_| header.kind == Kind::Feedback)
            {
                congestion.told(now, &header, &feedback);
            }
        }
        let id = operation_of(&header);
        if self.keeps_order(&header) {
            self.members.heard(header.source, id.step);
            for operation in self.operations.iter_mut().filter(|o| o.id.step < id.step) {
                operation.source_is_past(header.source);
            }
        } else {
            self.members.lives(header.source);
        }
        let may_start = match self.newest_step {
            None => true,
            Some(newest) if id.step == newest => !self.started_buckets.contains(&id.bucket),
            Some(newest) => id.step > newest,
        };
        if may_start {
            self.early
                .keep(now, id, header.kind, datagram, &mut self.totals.phases);
        } else {
            self.deliver(now, &header, payload);
        }
        self.settle(now);
    }

    /// Whether all that the packet's source sent before it has come or is lost: not where it took the way over the
    /// host itself while GATHER goes by the switch.
    fn keeps_order(&self, header: &Header) -> bool {
        let to_us = header.kind == Kind::Scatter || header.echoed != Ticks(0);
        let by_host = to_us && self.config.beside.contains(&header.source);
        !by_host || self.config.gather == Gather::Unicast
    }

    fn receive_control(&mut self, now: Time, header: &Header, payload: &[u8]) {
        if let Some(check) = Check::parse(payload) {
            self.checks.received(header, check);
            self.totals.control_received += 1;
            return;
        }
        let id = operation_of(header);
        match (RepairRequest::parse(payload), &mut self.recycler) {
            (Some(request), _) if header.host_flags.exact => {
                self.exact.request(now, id, header, request);
            }
            (Some(request), Some(recycler)) if request.of == Requested::Aggregates => {
                recycler.request(header, id, request);
            }
            _ => return self.totals.rejected.count(Rejection::Kind),
        }
        self.totals.control_received += 1;
        self.settle(now);
    }

    /// Says nothing of what its source sent before: its operation has ended there, or is exact.
    fn receive_repair(&mut self, now: Time, header: &Header, payload: Payload<'_>) {
        self.members.lives(header.source);
        if header.host_flags.exact {
            self.deliver_exact(now, header, payload);
            return self.settle(now);
        }
        if let Some(recycler) = &mut self.recycler {
            recycler.store.count_received();
        }
        self.receive_late_aggregate(header, payload);
    }

    /// Gives a packet with the flag EXACT to its operation, which was started or is over.
    fn deliver_exact(&mut self, arrival: Time, header: &Header, payload: Payload<'_>) {
        let id = operation_of(header);
        if self.operations.iter().any(|o| o.id == id) {
            return self.totals.rejected.count(Rejection::Exact);
        }
        match self.exact.receive(arrival, id, header, payload) {
            Err(reason) => self.totals.rejected.count(reason),
            Ok(_) if header.kind == Kind::Feedback => self.totals.feedback_received += 1,
            Ok(true) => {}
            Ok(false) => early::count(header.kind, &mut self.totals.phases, 1, |phase, n| {
                phase.late += n
            }),
        }
    }

    /// An aggregate came after its operation's end.
    fn receive_late_aggregate(&mut self, header: &Header, payload: Payload<'_>) {
        let Some(recycler) = &mut self.recycler else {
            return;
        };
        let id = operation_of(header);
        if let Err(reason) = recycler.aggregate(&self.config, id, header, payload) {
            self.totals.rejected.count(reason);
        }
    }

    fn receive_report(&mut self, header: &Header, payload: &[u8]) {
        match packet::probed(payload) {
            Some((report, check)) => {
                self.totals.control_received += 1;
                let answer = (operation_of(header), report);
                self.checks.answered(check.token, answer);
            }
            None => self.totals.rejected.count(Rejection::Kind),
        }
    }

    /// Gives a packet to its operation, which was started.
    fn deliver(&mut self, arrival: Time, header: &Header, payload: Payload<'_>) {
        let id = operation_of(header);
        if header.host_flags.exact {
            return self.deliver_exact(arrival, header, payload);
        }
        if self.exact.contains(id) {
            self.exact.differs(id, header.source);
            return self.totals.rejected.count(Rejection::Exact);
        }
        if header.kind == Kind::Feedback {
            self.totals.feedback_received += 1;
        }
        self.time(arrival, header, payload);
        let Some(operation) = self.operations.iter_mut().find(|o| o.id == id) else {
            early::count(header.kind, &mut self.totals.phases, 1, |phase, n| {
                phase.late += n
            });
            let fate = match header.kind {
                Kind::Feedback => Fate::Heard,
                _ => Fate::Late,
            };
            self.tracer.received(arrival, header, fate);
            if header.kind == Kind::Gather {
                self.receive_late_aggregate(header, payload);
            }
            return;
        };
        let late = header.kind == Kind::Gather && !operation.is_waiting();
        match operation.receive(arrival, &self.config, header, payload) {
            Ok(Received { fate, gone }) => {
                self.tracer.received(arrival, header, fate);
                self.events.extend(gone.map(Event::SlotGone));
            }
            Err(reason) => {
                self.tracer.received(arrival, header, Fate::Refused);
                self.totals.rejected.count(reason);
            }
        }
        if late {
            self.receive_late_aggregate(header, payload);
        }
    }

    /// Tells the timeouts when a packet came of an operation that was started.
    fn time(&mut self, arrival: Time, header: &Header, payload: Payload<'_>) {
        if let Some((stage, t_c)) = packet::told_tc(header) {
            self.timeouts.told(header.bucket, stage, header.source, t_c);
        }
        let id = operation_of(header);
        let Some(started) = self.started.iter_mut().rev().find(|s| s.id == id) else {
            return;
        };
        let (phase, packets) = match (header.kind, header.host_flags.last) {
            (Kind::Scatter, _) => (Phase::Scatter, 1),
            (Kind::Gather, _) => (Phase::Gather, 1),
            // Its sender is there, and has sent what it will send of its contributions, if not all.
            (Kind::Feedback, false)
                if packet::is_notice(payload) && started.told.insert(header.source.into()) =>
            {
                (Phase::Scatter, started.slots)
            }
            _ => return,
        };
        if packet::cause_of(header.switch_flags) != Some(Cause::Trimmed) {
            let after = arrival.since(started.at);
            let source = Some(header.source);
            self.timeouts
                .passed(id.bucket, phase, source, after, packets);
        }
    }

    /// Writes the next datagram to send to the front of `buf`, which has room for
    /// [`Core::max_datagram`]; values that are only counted are left out. None if there is nothing to send now.
    ///
    /// # Panics
    /// If `buf` is too short.
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let transmit = self.transmit(now, buf)?;
        self.tracer.sent(now, transmit.to, &buf[..transmit.head]);
        Some(transmit)
    }

    fn transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        self.handle_timeout(now);
        if let Some(transmit) = self.transmit_told(now, buf) {
            return Some(transmit);
        }
        if (self.congestion.as_ref()).is_some_and(|congestion| congestion.pacer.ready_at() > now) {
            return None;
        }
        if let Some(check) = self.checks.next() {
            let written = packet::write_check(&self.config, now, &check, buf);
            self.totals.control_sent += 1;
            return Some(self.sent(now, check.to, written));
        }
        if let Some(transmit) = self.transmit_request(now, buf) {
            return Some(transmit);
        }
        for operation in &mut self.operations {
            let id = operation.id;
            let Some(outgoing) = operation.transmit(now, self.timeouts.as_mut()) else {
                continue;
            };
            let (slot, ranks) = (outgoing.packet.slot, self.config.ranks);
            let incomplete =
                outgoing.packet.kind == Kind::Gather && outgoing.packet.contributions < ranks;
            let counted = match &mut self.recycler {
                Some(recycler) if incomplete => {
                    let counted = outgoing
                        .reduce
                        .map(|reduce| |rank| reduce.counts(slot, rank));
                    recycler.counted(id, slot, ranks, counted)
                }
                _ => &[],
            };
            let said = Said {
                queues: (self.congestion.as_ref()).map_or_else(Queues::default, Congestion::queues),
                notice: true,
                echoed: Ticks(0),
                incast: self.incast.own(),
            };
            let written = packet::write(&self.config, now, id, &outgoing, &said, counted, buf);
            let (kind, to) = (outgoing.packet.kind, outgoing.packet.to);
            if kind == Kind::Feedback {
                self.totals.feedback_sent += 1;
            }
            let transmit = self.sent(now, to, written);
            if kind == Kind::Scatter {
                self.take_turns(now, id);
            }
            return Some(transmit);
        }
        self.retire(now);
        // After the earlier steps' data: a packet of a step says that they are out.
        if let Some(transmit) = self.transmit_exact(now, buf) {
            return Some(transmit);
        }
        self.transmit_repair(now, buf)
    }

    fn transmit_exact(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let members = &self.members;
        let past = |rank, step| members.is_past(rank, step);
        let sent = self.exact.transmit(&self.config, now, past, buf)?;
        match sent.kind {
            Kind::Feedback => self.totals.feedback_sent += 1,
            Kind::Control => self.totals.control_sent += 1,
            _ => {}
        }
        Some(self.sent(now, sent.to, sent.written))
    }

    /// Tells of queues, or answers: at once, whatever the rate, so that a round trip is the network's.
    fn transmit_told(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let congestion = self.congestion.as_mut()?;
        if !congestion.has_to_tell() {
            return None;
        }
        let operation = self.operations.iter().find(|o| o.is_waiting());
        let told = congestion.tell(operation.is_some())?;
        let operation = operation?;
        let Told { to, queues, echoed } = told;
        let said = Said {
            queues,
            notice: false,
            echoed,
            incast: self.incast.own(),
        };
        let outgoing = operation.feedback(self.config.rank, to, now);
        let written = packet::write(&self.config, now, operation.id, &outgoing, &said, &[], buf);
        self.totals.feedback_sent += 1;
        Some(self.sent(now, to, written))
    }

    /// Owners who all multicast their first aggregate when their contributions are out would fill every queue with one
    /// packet each. They take turns instead: in the time that one aggregate of each owner takes of a receiver's link, each
    /// begins a packet after the other, of the length of a shard's last one. All links are full from the first turn to
    /// the last packet, so that it costs nothing.
    fn take_turns(&mut self, now: Time, id: OperationId) {
        let Some(congestion) = &self.congestion else {
            return;
        };
        let Some(operation) = self.operations.iter_mut().find(|o| o.id == id) else {
            return;
        };
        if self.config.gather == Gather::Multicast && operation.outbox().scatter_is_out() {
            let frame = FRAME_OVERHEAD
                + HEADER_LEN
                + operation.longest_slot(self.config.rank, self.config.element);
            let before = frame as u64 * u64::from(self.config.rank);
            let turn = congestion.pacer.time(before);
            // Contributions stand in queues as long as is aimed at, or twice that; what takes longer waits for a rank.
            let patience = congestion.scale.target * 2;
            operation.outbox_mut().hold_gather(now, turn, patience);
        }
    }

    /// Asks an owner for what did not come: before the data, which it is little of.
    fn transmit_request(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let room = packet::request_room(&self.config);
        let request = self.recycler.as_mut()?.ledger.request(now, room)?;
        let to = Destination::Rank(request.owner);
        let written = packet::write_request(&self.config, now, &request, buf);
        self.totals.control_sent += 1;
        Some(self.sent(now, to, written))
    }

    /// Sends again what others asked for: after the data, which is urgent.
    fn transmit_repair(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let repair = self.recycler.as_mut()?.store.next()?;
        let to = Destination::Rank(repair.to);
        let written = packet::write_repair(&self.config, now, &repair, buf);
        Some(self.sent(now, to, written))
    }

    fn sent(&mut self, now: Time, to: Destination, written: Written) -> Transmit {
        let Written { len, head } = written;
        if let Some(congestion) = &mut self.congestion {
            let receivers = match to {
                Destination::Rank(_) => 1,
                Destination::Group => u64::from(self.config.ranks - 1),
            };
            congestion.sent(now, receivers * (FRAME_OVERHEAD + len) as u64);
        }
        Transmit { to, len, head }
    }

    /// When [`Core::handle_timeout`] has something to do; none while no operation is under way.
    pub fn poll_timeout(&self) -> Option<Time> {
        let bounded = self.operations.iter().map(Operation::due);
        bounded.chain(self.exact.due()).min()
    }

    /// When [`Core::poll_transmit`], having returned nothing, may have something again without a
    /// datagram, an operation or a check: pacing or a repeated notice.
    pub fn poll_transmit_at(&self) -> Option<Time> {
        let paced = match &self.congestion {
            Some(congestion) if congestion.has_to_tell() => return Some(Time::ZERO),
            Some(congestion) => congestion.pacer.ready_at(),
            None => Time::ZERO,
        };
        let ready = self
            .operations
            .iter()
            .filter_map(|o| o.outbox().ready_at(Time::ZERO))
            .chain(self.checks.has_outgoing().then_some(Time::ZERO))
            .chain(self.recycler.as_ref().and_then(Recycler::ready_at))
            .chain(self.exact.ready_at())
            .min()?;
        Some(ready.max(paced))
    }

    /// Sends a check packet before everything else. One to this rank itself, or to a rank that the job doesn't have, is
    /// ignored: whom to send to is the control plane's word.
    pub fn check(&mut self, packet: CheckPacket) {
        let Config { rank, ranks, .. } = self.config;
        match packet.to {
            Destination::Rank(to) if to >= ranks || to == rank => {}
            _ => self.checks.push(packet),
        }
    }

    /// Which check packets of the round `token` came; of all but the last few rounds nothing is
    /// known.
    pub fn heard(&self, token: u32) -> HeardInRound {
        self.checks.heard(token)
    }

    /// The rate that this rank sends at, in bits per second: with [`Config::pacing`], its limit or less.
    pub fn rate(&self) -> Option<u64> {
        let congestion = self.congestion.as_ref()?;
        let limit = self.config.pacing?.bits_per_second;
        Some((limit as f64 * congestion.pacer.share()) as u64)
    }

    /// Whether contributions or aggregates are ready and not sent.
    pub fn has_unsent(&self) -> bool {
        self.operations.iter().any(|o| o.outbox().has_data())
            || (self.recycler.as_ref()).is_some_and(|recycler| recycler.store.is_asked())
    }

    /// Whether an exact operation is under way, or others may lack what this rank has of one: before the time that
    /// [`Core::needed_until`] says it should not go.
    pub fn is_needed(&self) -> bool {
        (self.exact).may_be_needed(|rank, step| self.members.is_past(rank, step))
    }

    /// When every other rank has given up what it lacks of exact operations; none while there is none.
    pub fn needed_until(&self) -> Option<Time> {
        self.exact.until()
    }

    /// With [`Config::recycling`]: what came, since this was last called, of operations of `bucket` that have ended,
    /// for [`crate::Carry::settle`]. To be called whenever one of them ends; until then it is kept.
    pub fn take_corrections(&mut self, bucket: u16) -> Vec<Correction> {
        (self.recycler.as_mut()).map_or_else(Vec::new, |recycler| recycler.take(bucket))
    }

    /// Operations that start from now on are coded so: the configuration's coding, or none. All ranks change it between
    /// the same two operations.
    pub fn set_coding(&mut self, coding: Coding) {
        self.config.coding = coding;
    }

    /// With [`Config::recycling`]: every rank's parameters have just become those of all, their mean. What this rank is
    /// still owed goes into its next contributions instead of its outputs: [`crate::recycling`].
    pub fn healed(&mut self) {
        if let Some(recycler) = &mut self.recycler {
            recycler.ledger.heal();
        }
    }

    /// The newest step of which any other rank has sent something: how far behind this one is.
    pub fn newest_step(&self) -> Option<u32> {
        self.members.newest_step()
    }

    /// Applies the bounds that `now` is past. Early and repeated calls do nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        for at in 0..self.operations.len() {
            let operation = &mut self.operations[at];
            if now >= operation.deadline {
                if operation.is_waiting() {
                    let timer = Timer::Deadline;
                    (self.tracer).tell(now, operation.id, || Happened::Timer { timer });
                }
                operation.outbox_mut().abandon(now);
                self.end(at, now, Some(ClosedBy::Deadline));
            } else if operation.due() <= now
                && operation.expire(now, self.estimator.as_mut(), &mut self.tracer)
            {
                self.end(at, now, Some(ClosedBy::Early));
            }
        }
        self.settle(now);
        self.retire(now);
    }

    /// The next thing to tell the caller.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What happened so far, operations under way included.
    pub fn totals(&self) -> Totals {
        let mut totals = self.totals;
        if let Some(recycler) = &self.recycler {
            totals.recycling = recycler.counters();
        }
        for operation in &self.operations {
            totals.phases += *operation.counters();
        }
        totals.exact = self.exact.counters();
        for phases in self.exact.phases() {
            totals.phases += *phases;
        }
        totals
    }

    /// Ends what is under way and counts what was kept for operations that were never started;
    /// nothing more is sent, so that others may miss what [`Core::has_unsent`].
    pub fn shut_down(&mut self, now: Time) {
        for at in 0..self.operations.len() {
            self.operations[at].outbox_mut().abandon(now);
            self.end(at, now, Some(ClosedBy::Deadline));
        }
        self.retire(now);
        self.totals.phases += self.exact.shut_down();
        self.early.drop_if(|_| true, &mut self.totals.phases);
    }

    /// Closes what nothing is awaited for any more.
    fn settle(&mut self, now: Time) {
        for at in 0..self.operations.len() {
            if self.operations[at].settle(now, self.estimator.as_mut(), &mut self.tracer) {
                self.end(at, now, None);
            }
        }
        while let Some((id, ended)) = self.exact.settle(now) {
            let ended = Box::new(ended);
            self.events.push_back(Event::Exact { id, ended });
        }
    }

    fn end(&mut self, at: usize, now: Time, bound: Option<ClosedBy>) {
        let rank = self.config.rank;
        let operation = &mut self.operations[at];
        let (number, started) = (operation.number, operation.started);
        let (recycler, timeouts) = (self.recycler.as_mut(), self.timeouts.as_mut());
        let Some((mut outcome, result, buffers)) =
            operation.end(rank, now, bound, recycler, timeouts)
        else {
            return;
        };
        self.members.operation_ended(rank, number, started, now);
        self.estimator.operation_ended();
        self.incast
            .operation_ended(outcome.lost.scatter.of(Cause::Trimmed) > 0);
        let members = &self.members;
        let suspected = (0..self.config.ranks).filter(|&other| other != rank);
        let suspected = suspected.filter(|&other| members.is_suspected(other));
        outcome.suspected.extend(suspected);
        outcome.newest_step = members.newest_step().max(Some(outcome.id.step));
        self.weights
            .operation_ended(&buffers.reduce, self.config.ranks);
        outcome.weights.extend_from_slice(self.weights.get());
        self.tracer.tell(now, outcome.id, || Happened::Ended {
            by: outcome.closed_by,
            shard: outcome.shard_closed_by,
            lost_contributions: outcome.lost.scatter.total(),
            lost_aggregates: outcome.lost.gather.total(),
        });
        self.totals.operations += 1;
        self.totals.lost += outcome.lost;
        self.spare_buffers.push(buffers);
        self.events.push_back(Event::Done {
            outcome: Box::new(outcome),
            result: result.into_vec(),
        });
    }

    /// Forgets operations that are over, but for what they counted and their memory.
    fn retire(&mut self, now: Time) {
        let members = &self.members;
        let past = |rank, step| members.is_past(rank, step);
        self.totals.phases += self.exact.retire(now, past);
        while let Some(at) = self.operations.iter().position(|o| o.is_over(now)) {
            let Some(operation) = self.operations.remove(at) else {
                return;
            };
            let (counters, values) = operation.into_remains();
            self.totals.phases += counters;
            self.spare_values.push(values);
        }
    }

    fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let rank = self.config.rank;
        (0..self.config.ranks).filter(move |&other| other != rank)
    }
}

fn operation_of(header: &Header) -> OperationId {
    OperationId {
        step: header.step,
        bucket: header.bucket,
    }
}
