//! Operations start.

use std::time::Duration;

use crate::bits::Bits;
use crate::cause::Phase;
use crate::config::Config;
use crate::exact::Exact;
use crate::layout::Layout;
use crate::operation::{OperationId, Part, Piece};
use crate::time::Time;
use crate::trace::Happened;
use crate::values::Values;

use super::operation::Operation;
use super::{Core, STARTED, Started, early};

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
    /// What half an operation leaves uncounted is not its own.
    #[error(
        "{0} is half an AllReduce, of which nothing can be recycled; leave recycling out of the job's configuration"
    )]
    Recycling(OperationId),
    /// There is nothing to make a digest of.
    #[error(
        "{0} has values that are only counted, which no packet can be sealed with; leave the key out of the configuration"
    )]
    Sealed(OperationId),
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
            | StartError::Recycling(id)
            | StartError::Sealed(id)
            | StartError::Past { id, .. }
            | StartError::Alone { id, .. }
            | StartError::Root { id, .. }
            | StartError::StepUnderWay { id, .. } => id,
        }
    }
}

impl Core {
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
        self.begin(now, (id, Part::Whole.into()), Values::Stored(contributions))
    }

    /// Starts one half of an operation, or both: `values` are as many as the bucket has, on every rank.
    ///
    /// # Errors
    /// As [`Core::start`]; [`StartError::Recycling`].
    pub fn start_part(
        &mut self,
        now: Time,
        id: OperationId,
        part: impl Into<Piece>,
        values: Vec<f32>,
    ) -> Result<(), StartError> {
        self.begin(now, (id, part.into()), Values::Stored(values))
    }

    /// [`Core::start`] for a bucket of `len` encoded values that are not there: for simulations, which want
    /// to know when things happen. Every decision is the one that [`Core::start`] would lead to; no value is
    /// stored, written to a packet or read from one, and the result is empty.
    ///
    /// # Errors
    /// As [`Core::start`]; [`StartError::Sealed`].
    pub fn start_counted(
        &mut self,
        now: Time,
        id: OperationId,
        len: usize,
    ) -> Result<(), StartError> {
        self.begin(now, (id, Part::Whole.into()), Values::Counted(len))
    }

    /// The same for [`Core::start_part`].
    ///
    /// # Errors
    /// As [`Core::start_part`].
    pub fn start_part_counted(
        &mut self,
        now: Time,
        id: OperationId,
        part: impl Into<Piece>,
        len: usize,
    ) -> Result<(), StartError> {
        self.begin(now, (id, part.into()), Values::Counted(len))
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
        let incast = self.incast_limit();
        self.exact
            .start(&self.config, (id, exact, incast), values, limit, now);
        self.deliver_early(id);
        self.settle(now);
        Ok(())
    }

    pub(super) fn begin(
        &mut self,
        now: Time,
        (id, piece): (OperationId, Piece),
        contributions: Values,
    ) -> Result<(), StartError> {
        self.handle_timeout(now);
        let part = piece.part;
        if piece != Piece::default() && self.recycler.is_some() {
            return Err(StartError::Recycling(id));
        }
        if matches!(contributions, Values::Counted(_)) && self.config.key.is_some() {
            return Err(StartError::Sealed(id));
        }
        if let Some(operations) = self.members.is_alone() {
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
        let incast = self.incast_limit();
        let mut operation = Operation::new(
            &self.config,
            (id, piece),
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
        if !self.members.suspects_all() {
            let suspected = self
                .others()
                .filter(|&rank| self.members.is_suspected(rank));
            suspected.for_each(|rank| operation.give_up_silent(rank));
        }
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
                operation.give_up(rank);
            }
        }
        self.settle(now);
        Ok(())
    }

    /// How many owners are sent to at a time.
    fn incast_limit(&self) -> u16 {
        self.incast
            .limit(|rank| rank != self.config.rank && !self.members.is_suspected(rank))
    }

    /// Remembers when an operation started, where somebody wants to know.
    pub(super) fn note_start(&mut self, id: OperationId, values: usize, now: Time) {
        if !self.timeouts.learns() {
            return;
        }
        // Those that are under way stay, however many they are.
        let is_under_way = |started: &Started| self.operations.iter().any(|o| o.id == started.id);
        let oldest = match self.started.front() {
            Some(oldest) if self.started.len() >= STARTED && !is_under_way(oldest) => {
                self.started.pop_front()
            }
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
    pub(super) fn deliver_early(&mut self, id: OperationId) {
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
