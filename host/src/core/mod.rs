//! The protocol as a state machine: no I/O, no clock.
//!
//! A driver calls [`Core::start`] for each AllReduce, [`Core::handle_datagram`] for each received UDP
//! payload, [`Core::poll_transmit`] until the batch stays empty, [`Core::handle_timeout`] at the time that
//! [`Core::poll_timeout`] returns, after the datagrams that had arrived by then, and takes results from
//! [`Core::poll_event`]. The same calls with the same times give the same packets and the same bits.
//!
//! | file | content |
//! | --- | --- |
//! | `start.rs`, `receive.rs`, `transmit.rs` | the driver's calls, and the dispatch to the parts below |
//! | `operation/` | one AllReduce: its two phases and its bounds |
//! | `reduce.rs` | the own shard: contributions by slot, losses, when a slot closes |
//! | `collect.rs` | the others' shards: aggregates |
//! | `congestion.rs` | measurements and reports of queues; the sending rate |
//! | `credit.rs` | flow control: how many packets a receiver has room for |
//! | `window.rs` | the congestion window: how many the network has room for |
//! | `replay.rs` | copies of a sealed job's packets |
//! | `batch.rs` | datagrams that leave together |
//! | `outbox.rs` | packets to send, in order |
//! | `early.rs` | packets that arrive before the operation starts here |
//! | `check.rs` | check packets, which show which paths work |
//! | `states.rs` | the state of each packet that the others owe: outstanding, arrived, lost |
//! | `overtaking.rs` | how long after an overtaking packet a missing one is lost |
//! | `outgoing.rs` | a packet to send and its contents |
//! | `packet.rs` | reading and writing of datagrams |
//! | `waits.rs` | how long the others will wait: the budget in packets |
//! | `recycler.rs` | packets of [`crate::recycling`]: counted ranks, requests, repairs |
//! | `members.rs` | state of the other ranks: last packets, suspicion |
//! | `progress.rs` | the step that another rank has reached |
//! | `tracer.rs` | records for [`crate::trace`] |
//! | `weights.rs` | the weight of each rank's data |
//! | `exact/` | exact operations, which repair losses |
//!
//! # Loss detection
//!
//! A switch that cannot carry a packet's payload in time forwards the header with the flag TRIMMED or LATE.
//! The core checks it like any other packet, stops waiting for its slot and reports [`Event::SlotTrimmed`]. A
//! packet that is dropped without a trace shows by order:
//!
//! A path keeps the order of one source's packets (at most [`Config::reorder`] of them overtake another), and a
//! source sends all SCATTER of an operation, then its GATHER, then the next step. So an owner gives up a
//! contribution
//! - when a later one in the source's [`crate::Rotation`] arrives,
//! - when a GATHER or FEEDBACK of the operation arrives from the source, or any packet of a later step;
//!
//! and a receiver gives up an owner's aggregates when the owner's FEEDBACK with the flag LAST arrives, or any
//! packet of a later step on the same path ([`Config::colocated`]). Aggregates are sent as slots close, in no
//! fixed order, so a gap among them shows nothing.
//!
//! Neither waits for a rank that has left ([`Core::left`]), or that was silent in three steps, unless all were. Then each operation takes t_B,
//! and after ten of them and ten seconds the next one does not start ([`StartError::Alone`]). A packet that
//! arrives after it was given up still counts until its slot or operation closes.

mod batch;
mod check;
mod collect;
mod congestion;
mod credit;
mod early;
mod exact;
mod members;
mod operation;
mod outbox;
mod outgoing;
mod overtaking;
mod packet;
mod progress;
mod receive;
mod recycler;
mod reduce;
mod replay;
mod start;
mod states;
mod sums;
mod tracer;
mod transmit;
mod waits;
mod weights;
mod window;

use std::collections::VecDeque;
use std::time::Duration;

use ultima_wire::{Header, Sealer};

use crate::bits::Bits;
use crate::cause::{Cause, SlotTrimmed};
use crate::codec::Coding;
use crate::config::{Config, ConfigError, Gather};
use crate::exact::{ExactOutcome, Incomplete};
use crate::incast::{Incast, lost_on_the_way};
use crate::operation::{OperationId, Part};
use crate::recycling::Correction;
use crate::stats::{ClosedBy, Outcome, Totals};
use crate::time::Time;
use crate::timeout::Policy;
use crate::trace::{Happened, Sink, Timer};
use crate::values::{Spare, ValueStore, Values};

pub use batch::Batch;
pub(crate) use batch::Carrier;
pub(crate) use batch::Queued;
pub use check::{CheckPacket, Heard, HeardInRound};
pub use start::StartError;

use check::Checks;
use congestion::Congestion;
use credit::Credit;
pub(crate) use credit::window;
use early::Early;
use exact::ExactOperations;
use members::Members;
use operation::{Buffers, Operation};
use overtaking::Reordering;
use recycler::Recycler;
use replay::Replays;
use tracer::Tracer;
use weights::Weights;

/// Number of operations whose start time is stored, so that a packet after the end shows how late it is.
const STARTED: usize = 32;

/// The share of t_B for the last packets of a rank that has left, and the longest such time. Our choice: as for overtaken
/// packets where losses are frequent, but no longer than a queue in the network takes.
const LAST_PACKETS: u32 = 16;
const LAST_PACKETS_AT_MOST: Duration = Duration::from_millis(250);

/// A datagram's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// One rank.
    Rank(u16),
    /// The job's group: every rank except the sender.
    Group,
}

/// A datagram to send. Its bytes are in the buffer of [`Core::next_datagram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination.
    pub to: Destination,
    /// Length of the datagram: an Ultima header and payload.
    pub len: usize,
    /// Bytes in the buffer: all, or all before values that stay in the core.
    pub(crate) head: usize,
}

/// An event for the driver.
#[derive(Debug)]
pub enum Event {
    /// An operation ended.
    Done {
        /// The outcome.
        outcome: Box<Outcome>,
        /// The averaged bucket, encoded, for [`crate::Codec::decode`]. Pass the buffer back as the next
        /// operation's contributions, and the steady state allocates nothing.
        result: Values,
    },
    /// A switch reported that it dropped a slot, so the core does not wait for it.
    SlotTrimmed(SlotTrimmed),
    /// An exact operation ended.
    Exact {
        /// The operation.
        id: OperationId,
        /// The result with its outcome, or the error.
        ended: Box<Result<(ExactOutcome, Vec<f32>), Incomplete>>,
    },
}

/// An operation that started, and may have ended.
struct Started {
    id: OperationId,
    at: Time,
    /// Contributions that each of the others owes to this rank's shard.
    slots: u64,
    /// Ranks whose notice of their last contribution arrived.
    finished: Bits,
}

/// One rank's side of a job's AllReduces, with its values in `V`.
pub struct Core<V = Values> {
    config: Config,
    /// With [`Config::key`].
    sealer: Option<Sealer>,
    /// True if aggregates were ever delivered with multicast.
    used_group: bool,
    /// In the order of their start.
    operations: VecDeque<Operation<V>>,
    newest_step: Option<u32>,
    /// Buckets of the newest step that were started.
    started_buckets: Vec<u16>,
    early: Early,
    timeouts: Box<dyn Policy>,
    /// The deadline of operations that start now, if it is shorter than the configured one.
    deadline: Option<Duration>,
    /// The last operations that started.
    started: VecDeque<Started>,
    members: Members,
    weights: Weights,
    checks: Checks,
    recycler: Option<Recycler>,
    exact: ExactOperations,
    congestion: Option<Congestion>,
    credit: Credit,
    replays: Replays,
    reordering: Reordering,
    incast: Incast,
    events: VecDeque<Event>,
    /// Counters of finished operations.
    totals: Totals,
    tracer: Tracer,
    spare_buffers: Vec<Buffers<V>>,
    spare_values: Vec<Spare<V>>,
}

impl Core {
    /// Creates a core without operations.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::with_store(config)
    }
}

impl<V: ValueStore> Core<V> {
    /// As [`Core::new`], for values in any store.
    ///
    /// # Errors
    /// As [`Core::new`].
    pub fn with_store(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            sealer: config.key.as_ref().map(Sealer::new),
            used_group: config.gather == Gather::Multicast,
            operations: VecDeque::new(),
            newest_step: None,
            started_buckets: Vec::new(),
            early: Early::new(config.early),
            timeouts: config.timeouts.policy(&config),
            deadline: None,
            started: VecDeque::new(),
            members: Members::new(config.ranks, config.key.is_some()),
            weights: Weights::default(),
            checks: Checks::default(),
            recycler: config
                .recycling
                .map(|recycling| Recycler::new(&config, recycling)),
            exact: ExactOperations::default(),
            congestion: (config.pacing).map(|pacing| Congestion::new(&config, pacing)),
            credit: Credit::new(&config),
            replays: Replays::new(&config),
            reordering: Reordering::new(config.reorder > 0),
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

    /// Records to `sink` from now on: for every AllReduce each packet, each closed slot and each passed
    /// bound; for exact operations the sent packets.
    pub fn trace(&mut self, sink: Box<dyn Sink>) {
        self.tracer = Tracer::new(self.config.rank, sink);
    }

    /// Length of the longest datagram that this rank sends.
    pub fn max_datagram(&self) -> usize {
        packet::max_datagram(&self.config)
    }

    /// The time to call [`Core::handle_timeout`]. None while no operation is in progress.
    pub fn poll_timeout(&self) -> Option<Time> {
        let bounded = self.operations.iter().map(Operation::due);
        let next = bounded.chain(self.exact.due()).min()?;
        Some(self.members.absent_at().map_or(next, |at| at.min(next)))
    }

    /// The time at which there may be a datagram to send, if there is none now and nothing else happens: pacing, or a
    /// repeated notice.
    pub fn poll_transmit_at(&self) -> Option<Time> {
        let credit = self.credit.ready_at(self.may_need_credit());
        if credit == Some(Time::ZERO) {
            return credit;
        }
        let paced = match &self.congestion {
            Some(congestion) if congestion.has_report() => return Some(Time::ZERO),
            Some(congestion) => congestion.pacer.ready_at(),
            None => Time::ZERO,
        };
        let waiting = self.operations.iter().find_map(Operation::without_credit);
        let ready = self
            .operations
            .iter()
            .filter_map(|o| o.outbox().ready_at(Time::ZERO, earlier(waiting, o.id)))
            .chain(self.checks.has_outgoing().then_some(Time::ZERO))
            .chain(self.recycler.as_ref().and_then(Recycler::ready_at))
            .chain(self.exact.ready_at(waiting))
            .min();
        let ready = ready.map(|ready| ready.max(paced));
        ready.into_iter().chain(credit).min()
    }

    /// How long packets that pacing would let leave can wait, and then leave together, without loss of rate.
    pub(crate) fn burst_delay(&self) -> Duration {
        (self.congestion.as_ref()).map_or(Duration::ZERO, |congestion| congestion.pacer.burst() / 2)
    }

    /// True if data may wait for credit.
    fn may_need_credit(&self) -> bool {
        self.has_unsent() || !self.exact.is_empty()
    }

    /// Sends a check packet before everything else. Ignores one to this rank itself, or to a rank outside the
    /// job: the control plane chooses the destination.
    pub fn check(&mut self, packet: CheckPacket) {
        let Config { rank, ranks, .. } = self.config;
        match packet.to {
            Destination::Rank(to) if to >= ranks || to == rank => {}
            _ => self.checks.push(packet),
        }
    }

    /// From now on, answers each check packet of the rounds `of` with one of the round `with` to its source.
    pub fn answer_checks(&mut self, of: Vec<u32>, with: u32) {
        self.checks.answer(of, with);
    }

    /// Check packets received in the round `token`. Only the last few rounds are stored.
    pub fn heard(&self, token: u32) -> HeardInRound {
        self.checks.heard(token)
    }

    /// The sending rate in bits per second: with [`Config::pacing`], its limit or less.
    pub fn rate(&self) -> Option<u64> {
        let congestion = self.congestion.as_ref()?;
        let limit = self.config.pacing?.bits_per_second;
        Some((limit as f64 * congestion.pacer.share()) as u64)
    }

    /// True if contributions or aggregates are ready and not sent.
    pub fn has_unsent(&self) -> bool {
        self.operations.iter().any(|o| o.outbox().has_data())
            || (self.recycler.as_ref()).is_some_and(|recycler| recycler.store.is_asked())
    }

    /// True if an exact operation is in progress, or others may lack data that this rank has: it should not
    /// leave before [`Core::needed_until`].
    pub fn is_needed(&self) -> bool {
        (self.exact).may_be_needed(|rank, step| self.members.is_done_with(rank, step))
    }

    /// For a rank that leaves: when every other rank has all data of exact operations, has given up, or counts
    /// as absent, judging by its packets until now. None if no rank lacks data.
    pub fn needed_until(&self) -> Option<Time> {
        (self.exact).needed_until(|rank, step| self.members.is_done_with(rank, step))
    }

    /// With [`Config::recycling`]: the corrections of finished operations of `bucket` since the last call,
    /// for [`crate::Carry::apply`]. Call it whenever one of them ends; the core stores corrections until
    /// then.
    pub fn take_corrections(&mut self, bucket: u16) -> Vec<Correction> {
        (self.recycler.as_mut()).map_or_else(Vec::new, |recycler| recycler.take(bucket))
    }

    /// Sets the coding of operations that start from now on: the configured coding, or none. All ranks change
    /// it between the same two operations.
    pub fn set_coding(&mut self, coding: Coding) {
        self.config.coding = coding;
    }

    /// Sets the deadline of operations that start later: at most the configured t_B. Their t_S is the same share of it.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = (!deadline.is_zero() && deadline < self.config.t_b).then_some(deadline);
    }

    /// Sets how this rank delivers aggregates of operations that start later. Ranks may differ, but [`Config::colocated`]
    /// ones change it between the same two operations.
    pub fn set_gather(&mut self, gather: Gather) {
        self.config.gather = gather;
        self.used_group |= gather == Gather::Multicast;
        self.credit.gather_changed(&self.config);
        if let Some(congestion) = &mut self.congestion {
            congestion.gather_changed(gather);
        }
    }

    /// With [`Config::recycling`]: notes that every rank's parameters were replaced by their mean.
    /// Corrections that are still due go into this rank's next contributions instead of its outputs:
    /// [`crate::recycling`].
    pub fn healed(&mut self) {
        if let Some(recycler) = &mut self.recycler {
            recycler.ledger.heal();
        }
    }

    /// The newest step in any other rank's packets, which shows how far this rank is behind.
    pub fn newest_step(&self) -> Option<u32> {
        self.members.newest_step()
    }

    /// Applies the bounds that `now` has passed. Early and repeated calls do nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        let anyone_left = self.give_up_absent(now);
        if !anyone_left && self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        for at in 0..self.operations.len() {
            let operation = &mut self.operations[at];
            if now >= operation.deadline {
                if operation.is_waiting() {
                    let timer = Timer::Deadline;
                    (self.tracer).record(now, operation.id, || Happened::Timer { timer });
                }
                // If t_S was missed, its own shard is still open.
                operation.close_shard(now, ClosedBy::Deadline, &mut self.tracer);
                operation.outbox_mut().abandon(now);
                self.end(at, now, Some(ClosedBy::Deadline));
            } else if operation.due() <= now && operation.expire(now, &mut self.tracer) {
                self.end(at, now, Some(ClosedBy::Early));
            }
        }
        self.close_complete(now);
        self.retire(now);
    }

    /// Notes that these ranks have left the job and do not come back. Operations wait for their last packets for a sixteenth of
    /// t_B at most, because these may be on their way, and then not at all. A rank that has left all others alone starts no further
    /// operation ([`StartError::Left`]).
    pub fn left(&mut self, now: Time, ranks: &[u16]) {
        let Config {
            rank, ranks: all, ..
        } = self.config;
        let wait = self.deadline.unwrap_or(self.config.t_b) / LAST_PACKETS;
        let until = now + wait.min(LAST_PACKETS_AT_MOST);
        for &other in ranks
            .iter()
            .filter(|other| **other < all && **other != rank)
        {
            self.members.leaves(other, until);
        }
    }

    /// Gives up ranks that have left. Returns true if there are more than before.
    fn give_up_absent(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(rank) = self.members.next_absent(now) {
            any = true;
            self.credit.left(rank);
            for operation in &mut self.operations {
                operation.give_up_silent(rank);
                operation.outbox_mut().retry_held();
            }
            self.exact.left(rank);
        }
        any
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counters so far, including operations in progress.
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

    /// Ends all operations and counts packets stored for operations that never started. Nothing more is sent,
    /// so others may miss packets if [`Core::has_unsent`].
    pub fn shut_down(&mut self, now: Time) {
        for at in 0..self.operations.len() {
            self.operations[at].outbox_mut().abandon(now);
            self.end(at, now, Some(ClosedBy::Deadline));
        }
        self.retire(now);
        self.totals.phases += self.exact.shut_down();
        self.early.drop_if(|_| true, &mut self.totals.phases);
    }

    /// Slots that operations in progress still wait for.
    pub(crate) fn awaits(&self) -> u32 {
        self.operations.iter().map(Operation::awaits).sum()
    }

    /// Closes slots and operations with nothing outstanding.
    fn close_complete(&mut self, now: Time) {
        for at in 0..self.operations.len() {
            if self.operations[at].close_ready(now, &mut self.tracer) {
                self.end(at, now, None);
            }
        }
        while let Some((id, ended)) = self.exact.finish(now) {
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
        let step = self.operations[at].id.step;
        self.members
            .operation_ended(rank, number, step, started, now);
        // No rank sends contributions in a gather, so queues would be measured elsewhere.
        if self.operations[at].part() != Part::Gather {
            let lost = lost_on_the_way(&outcome.lost.scatter, self.config.loss_detection);
            self.incast.operation_ended(lost > 0);
        }
        let members = &self.members;
        let suspected = (0..self.config.ranks).filter(|&other| other != rank);
        let suspected = suspected.filter(|&other| members.is_suspected(other));
        outcome.suspected.extend(suspected);
        outcome.left.extend(members.absent());
        outcome.newest_step = members.newest_step().max(Some(outcome.id.step));
        let (reduce, collect) = (&buffers.reduce.order, &buffers.collect.order);
        let lost = outcome.lost;
        let overtaken = lost.scatter.of(Cause::Overtaken) + lost.gather.of(Cause::Overtaken);
        let gave_up = overtaken > 0 && outcome.closed_by == ClosedBy::KnownLoss;
        self.reordering
            .operation_ended([reduce, collect], overtaken > 0);
        if gave_up {
            let missing = (buffers.reduce.missing()).chain(buffers.collect.missing(rank));
            (self.reordering).gave_up(outcome.id, now, reduce.window(), missing);
        }
        self.weights
            .operation_ended(&buffers.reduce, self.config.ranks);
        outcome.weights = self.weights.of_ranks(self.config.ranks);
        self.tracer.record(now, outcome.id, || Happened::Ended {
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
            result: result.into_values(),
        });
    }

    /// Removes finished operations. Keeps their counters and buffers.
    fn retire(&mut self, now: Time) {
        let members = &self.members;
        let past = |rank, step| members.is_done_with(rank, step);
        self.totals.phases += self.exact.retire(now, past);
        for operation in &mut self.operations {
            operation.abandon_stalled(now);
        }
        while let Some(at) = self.operations.iter().position(Operation::is_over) {
            let Some(operation) = self.operations.remove(at) else {
                return;
            };
            let (counters, spare) = operation.into_remains();
            self.totals.phases += counters;
            self.spare_values.push(spare);
        }
    }

    fn others(&self) -> impl Iterator<Item = u16> + use<V> {
        let rank = self.config.rank;
        (0..self.config.ranks).filter(move |&other| other != rank)
    }
}

/// An operation whose data waits for credit.
#[derive(Clone, Copy)]
struct WithoutCredit {
    step: u32,
    gather: Gather,
}

/// Where `waiting` data goes, if it is of an earlier step than `id`: nothing of `id` may reach its receivers first.
fn earlier(waiting: Option<WithoutCredit>, id: OperationId) -> Option<Gather> {
    let waiting = waiting.filter(|waiting| waiting.step < id.step)?;
    Some(waiting.gather)
}

fn operation_of(header: &Header) -> OperationId {
    OperationId {
        step: header.step,
        bucket: header.bucket,
    }
}
