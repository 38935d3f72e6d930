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
//! | `start.rs`, `receive.rs`, `transmit.rs` | what the driver calls: which operation, which part of this rank it is for |
//! | `operation.rs` | one AllReduce: its two phases and its bounds |
//! | `reduce.rs` | the own shard: contributions by slot, what is known to be gone, when a slot closes |
//! | `collect.rs` | the others' shards: aggregates that came |
//! | `congestion.rs` | what queues this rank's packets met, and the others' did: its rate |
//! | `outbox.rs` | what is to be sent, in which order |
//! | `early.rs` | packets that came before the operation started here |
//! | `check.rs` | check packets, which find out where packets stop |
//! | `cuts.rs` | payloads that switches cut on the way |
//! | `overtaking.rs` | how much came that shows what was lost before it |
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
//! that was silent in three steps, unless all were: then each operation takes t_B, and after ten of them and
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
mod overtaking;
mod packet;
mod receive;
mod recycler;
mod reduce;
mod start;
mod tracer;
mod transmit;
mod waits;
mod weights;

use std::collections::VecDeque;

use ultima_wire::Header;

use crate::bits::Bits;
use crate::cause::{Cause, SlotGone};
use crate::codec::Coding;
use crate::config::{Config, ConfigError};
use crate::estimator::Estimator;
use crate::exact::{ExactOutcome, Incomplete};
use crate::incast::Incast;
use crate::operation::{OperationId, Part};
use crate::recycling::Correction;
use crate::stats::{ClosedBy, Outcome, Totals};
use crate::time::Time;
use crate::timeout::Policy;
use crate::trace::{Happened, Sink, Timer};
use crate::values::Values;

pub use check::{CheckPacket, Heard, HeardInRound};
pub use start::StartError;

use check::Checks;
use congestion::Congestion;
use early::Early;
use exact::ExactOperations;
use members::Members;
use operation::{Buffers, Operation};
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
            started: VecDeque::new(),
            members: Members::new(config.ranks),
            weights: Weights::default(),
            checks: Checks::default(),
            recycler: config
                .recycling
                .map(|recycling| Recycler::new(&config, recycling)),
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

    /// For a rank that leaves: when every other rank has what it lacks of exact operations, has given it up, or is gone itself,
    /// as far as it was heard until now; none where none lacks anything.
    pub fn needed_until(&self) -> Option<Time> {
        (self.exact).needed_until(|rank, step| self.members.is_past(rank, step))
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
                // Where t_S passed unseen its own shard is still open.
                let estimator = self.estimator.as_mut();
                operation.close_shard(now, estimator, ClosedBy::Deadline, &mut self.tracer);
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
        let step = self.operations[at].id.step;
        self.members
            .operation_ended(rank, (number, step), started, now);
        self.estimator.operation_ended();
        // Nobody sends contributions in a gather: what queues do to them shows elsewhere.
        if self.operations[at].part() != Part::Gather {
            self.incast
                .operation_ended(outcome.lost.scatter.of(Cause::Trimmed) > 0);
        }
        let members = &self.members;
        let suspected = (0..self.config.ranks).filter(|&other| other != rank);
        let suspected = suspected.filter(|&other| members.is_suspected(other));
        outcome.suspected.extend(suspected);
        outcome.newest_step = members.newest_step().max(Some(outcome.id.step));
        self.weights
            .operation_ended(&buffers.reduce, self.config.ranks);
        outcome.weights = self.weights.of_ranks(self.config.ranks);
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
