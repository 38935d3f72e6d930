//! The start of operations: checks of ids, and setup.

use std::time::Duration;

use ultima_wire::Header;

use crate::bits::Bits;
use crate::cause::Phase;
use crate::config::Config;
use crate::exact::Exact;
use crate::layout::Layout;
use crate::operation::{OperationId, Part, Piece};
use crate::time::Time;
use crate::timeout::Bounds;
use crate::trace::Happened;
use crate::values::{ValueStore, Values};

use super::operation::{Operation, Start};
use super::{Core, STARTED, Started, early, exact};

/// The reason that an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The id was used before.
    #[error("{0} was started before: expected a new id")]
    Repeated(OperationId),
    /// The id belongs to a step before the newest one.
    #[error("{id} cannot start after step {newest}: expected step {newest} or a later one")]
    Past {
        /// The rejected id.
        id: OperationId,
        /// The newest step.
        newest: u32,
    },
    /// No other rank was heard for so long that this rank would average alone.
    #[error(
        "{id} was not started: no packet came from any of the {others} other ranks in {operations} operations; check \
         that this host reaches them, and that the job's switch admits it"
    )]
    Alone {
        /// The rejected id, which may be used again.
        id: OperationId,
        /// Consecutive operations, each until t_B.
        operations: u32,
        /// The other ranks of the job.
        others: u16,
    },
    /// All other ranks have left the job.
    #[error("{id} was not started: all other ranks have left the job")]
    Left {
        /// The rejected id.
        id: OperationId,
    },
    /// The root is not a rank of the job.
    #[error("{id} is a broadcast from rank {root}: expected a rank from 0 to {last}")]
    Root {
        /// The rejected id.
        id: OperationId,
        /// The given root.
        root: u16,
        /// The job's last rank.
        last: u16,
    },
    /// Recycling needs whole operations.
    #[error(
        "{0} is half an AllReduce, which cannot be recycled: expected a configuration without recycling"
    )]
    Recycling(OperationId),
    /// An operation of an earlier step is in progress.
    #[error("{id} cannot start: wait for {under_way} of an earlier step first")]
    StepUnderWay {
        /// The rejected id.
        id: OperationId,
        /// The operation in progress.
        under_way: OperationId,
    },
}

impl StartError {
    /// The rejected operation.
    pub fn id(&self) -> OperationId {
        match *self {
            StartError::Repeated(id)
            | StartError::Recycling(id)
            | StartError::Past { id, .. }
            | StartError::Alone { id, .. }
            | StartError::Left { id }
            | StartError::Root { id, .. }
            | StartError::StepUnderWay { id, .. } => id,
        }
    }
}

impl Core {
    /// Starts operation `id` with this rank's encoded bucket. All ranks' buckets have the same length.
    ///
    /// # Errors
    /// [`StartError`]: the id was used, the step before is in progress, all other ranks have left, or none was heard for long.
    pub fn start(
        &mut self,
        now: Time,
        id: OperationId,
        contributions: impl Into<Values>,
    ) -> Result<(), StartError> {
        self.start_with(now, id, Part::Whole.into(), contributions.into())
    }

    /// Starts one half of an operation, or both. All ranks give the same number of `values`.
    ///
    /// # Errors
    /// As [`Core::start`]; [`StartError::Recycling`].
    pub fn start_part(
        &mut self,
        now: Time,
        id: OperationId,
        part: impl Into<Piece>,
        values: impl Into<Values>,
    ) -> Result<(), StartError> {
        self.start_with(now, id, part.into(), values.into())
    }
}

impl<V: ValueStore> Core<V> {
    /// Starts an exact operation, which ends with every rank's values, or with an error after `limit`. All
    /// ranks give the same number of `values`, which are sent without [`crate::Codec`].
    ///
    /// Ids are shared with other operations and follow the same rules. `limit` is the same on all ranks;
    /// ranks may also start at most this far apart.
    ///
    /// # Errors
    /// [`StartError`]: the id was used, the step before is in progress, or the root is not a rank.
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
        self.check_left(id)?;
        self.enter_step(id, now)?;
        let incast = self.incast_limit();
        self.exact.start(
            &self.config,
            exact::Start {
                id,
                exact,
                limit,
                incast,
                now,
            },
            values,
        );
        for rank in self.members.absent() {
            self.exact.left(rank);
        }
        self.deliver_early(id);
        self.close_complete(now);
        Ok(())
    }

    /// As [`Core::start_part`], with values in any store.
    ///
    /// # Errors
    /// As [`Core::start_part`].
    pub fn start_with(
        &mut self,
        now: Time,
        id: OperationId,
        piece: Piece,
        contributions: V,
    ) -> Result<(), StartError> {
        self.handle_timeout(now);
        let part = piece.part;
        let is_half = part != Part::Whole || piece.lacks;
        if is_half && self.recycler.is_some() {
            return Err(StartError::Recycling(id));
        }
        if let Some(operations) = self.members.is_alone() {
            return Err(StartError::Alone {
                id,
                operations,
                others: self.config.ranks - 1,
            });
        }
        self.check_left(id)?;
        self.enter_step(id, now)?;
        let buffers = self.spare_buffers.pop().unwrap_or_default();
        let spare = self.spare_values.pop().unwrap_or_default();
        let mut bounds = self.timeouts.start(now, id.bucket, contributions.count());
        if let Some(deadline) = self.deadline {
            bounds = bounds.at_most(deadline, &Bounds::configured(&self.config));
        }
        self.note_start(id, contributions.count(), now);
        self.tracer.record(now, id, || Happened::Started {
            values: contributions.count() as u64,
            t_s: bounds.t_s,
            t_b: bounds.t_b,
            t_c_scatter: bounds.grace[Phase::Scatter as usize],
            t_c_gather: bounds.grace[Phase::Gather as usize],
        });
        let incast = self.incast_limit();
        let mut operation = Operation::new(
            &self.config,
            Start {
                id,
                piece,
                now,
                bounds,
                number: self.members.operation_starts(),
                incast,
            },
            contributions,
            buffers,
            spare,
        );
        operation.tolerate(self.reordering.window(bounds.t_b));
        let newest = self.members.newest_step();
        if (self.recycler.as_ref()).is_some_and(|recycler| recycler.lapses(id, newest)) {
            operation.lapse(self.config.rank, now);
        }
        let given_up = |rank: &u16| match self.members.suspects_all() {
            true => self.members.has_left(*rank),
            false => self.members.is_given_up(*rank),
        };
        let given_up = self.others().filter(given_up);
        given_up.for_each(|rank| operation.give_up_silent(rank));
        self.operations.push_back(operation);
        if part == Part::Gather {
            self.take_turns(now, id);
        }
        self.deliver_early(id);
        for rank in self
            .others()
            .filter(|&rank| self.members.is_past(rank, id.step))
        {
            for operation in self.operations.iter_mut().filter(|o| o.id == id) {
                operation.all_sent(now, rank);
                operation.catch_up(now);
            }
        }
        self.close_complete(now);
        Ok(())
    }

    /// Number of owners to send to at a time.
    fn incast_limit(&self) -> u16 {
        self.incast
            .limit(|rank| rank != self.config.rank && !self.members.is_given_up(rank))
    }

    fn check_left(&self, id: OperationId) -> Result<(), StartError> {
        match self.members.have_all_left(id.step) {
            true => Err(StartError::Left { id }),
            false => Ok(()),
        }
    }

    /// Stores an operation's start time, if a tracer or a timeout policy needs it.
    pub(super) fn note_start(&mut self, id: OperationId, values: usize, now: Time) {
        if !self.timeouts.learns() {
            return;
        }
        // Operations in progress stay, however many there are.
        let is_under_way = |started: &Started| self.operations.iter().any(|o| o.id == started.id);
        let oldest = match self.started.front() {
            Some(oldest) if self.started.len() >= STARTED && !is_under_way(oldest) => {
                self.started.pop_front()
            }
            _ => None,
        };
        let Config { rank, ranks, .. } = self.config;
        let mut finished = oldest.map_or_else(Bits::default, |oldest| oldest.finished);
        finished.reset(ranks.into());
        self.started.push_back(Started {
            id,
            at: now,
            slots: Layout::new(values, ranks, self.config.slot_len())
                .slots(rank)
                .into(),
            finished,
        });
    }

    /// Delivers packets that arrived before the operation started here.
    pub(super) fn deliver_early(&mut self, id: OperationId) {
        if let Some(kept) = self.early.take(id) {
            for (arrival, datagram) in early::datagrams(&kept) {
                if let Ok((header, payload)) = Header::parse(datagram) {
                    self.members.heard_any(header.source);
                    self.time(arrival, &header, payload);
                    self.deliver(arrival, &header, payload);
                }
            }
            self.early.recycle(kept);
        }
    }

    /// Checks that `id` may start, and leaves earlier steps.
    pub(super) fn enter_step(&mut self, id: OperationId, now: Time) -> Result<(), StartError> {
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
}
