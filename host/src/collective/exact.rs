//! Exact operations.

use std::time::Duration;

use crate::codec::Coding;
use crate::driver::thread::Command;
use crate::exact::{Exact, ExactOutcome};
use crate::operation::OperationId;
use crate::spans;

use super::{Collective, EndedOperation, Error, Place, UnderWay};

impl Collective {
    /// Replaces `values` by their exact mean over all ranks, with the same bits on every rank. It waits up to
    /// `limit` for every rank and repairs losses, so it suits small tensors.
    ///
    /// Ids are shared with [`Collective::allreduce`]. Every rank calls the same function with the same id,
    /// limit and number of values. There is no recycling and no coding: the mean is the sum in the order of
    /// ranks, divided.
    ///
    /// # Errors
    /// [`Error::Incomplete`] names the missing ranks after `limit`, [`Error::Start`] says why the id cannot
    /// be used; both leave `values` unchanged. [`Error::Link`] if the link failed.
    pub fn allreduce_exact(
        &mut self,
        id: OperationId,
        values: &mut [f32],
        limit: Duration,
    ) -> Result<ExactOutcome, Error> {
        let (outcome, mean) = self.exact(id, Exact::Mean, values.to_vec(), limit)?;
        values.copy_from_slice(&mean);
        Ok(outcome)
    }

    /// Replaces `values` on every rank by those of `root`, bit by bit.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn broadcast(
        &mut self,
        id: OperationId,
        root: u16,
        values: &mut [f32],
        limit: Duration,
    ) -> Result<ExactOutcome, Error> {
        let broadcast = Exact::Broadcast { root };
        let (outcome, result) = self.exact(id, broadcast, values.to_vec(), limit)?;
        values.copy_from_slice(&result);
        Ok(outcome)
    }

    /// Returns every rank's `part`, concatenated in the order of ranks. All parts have the same length.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn all_gather(
        &mut self,
        id: OperationId,
        part: &[f32],
        limit: Duration,
    ) -> Result<(ExactOutcome, Vec<f32>), Error> {
        self.exact(id, Exact::AllGather, part.to_vec(), limit)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn barrier(&mut self, id: OperationId, limit: Duration) -> Result<ExactOutcome, Error> {
        // One value has one owner, which hears every rank and answers every rank.
        let (outcome, _) = self.exact(id, Exact::Sum, vec![0.0], limit)?;
        Ok(outcome)
    }

    fn exact(
        &mut self,
        id: OperationId,
        exact: Exact,
        values: Vec<f32>,
        limit: Duration,
    ) -> Result<(ExactOutcome, Vec<f32>), Error> {
        self.start_exact(id, exact, values, limit)?;
        self.wait_exact(id)
    }

    /// Starts an exact operation and returns at once. See [`Collective::allreduce_exact`].
    ///
    /// # Errors
    /// [`Error::Start`] if the id is in progress. [`Collective::wait_exact`] reports an id that the core
    /// rejects.
    pub fn start_exact(
        &mut self,
        id: OperationId,
        exact: Exact,
        values: Vec<f32>,
        limit: Duration,
    ) -> Result<(), Error> {
        self.check_free(id)?;
        let (len, span) = (
            values.len(),
            spans::exact(self.config.rank, id, values.len()),
        );
        let _entered = span.enter();
        self.data.command(Command::Exact {
            id,
            exact,
            values,
            limit,
        });
        self.under_way.push(UnderWay {
            id,
            values: len,
            coding: Coding::Identity,
            span: span.clone(),
            place: Place::Caller,
            ended: None,
        });
        Ok(())
    }

    /// Waits for the end of an operation that [`Collective::start_exact`] started, and returns its result.
    ///
    /// # Errors
    /// [`Error::NotStarted`], and those of [`Collective::allreduce_exact`].
    pub fn wait_exact(&mut self, id: OperationId) -> Result<(ExactOutcome, Vec<f32>), Error> {
        let at = self.position(id)?;
        let (UnderWay { span, .. }, ended) = self.await_end(at)?;
        let _entered = span.enter();
        match ended? {
            EndedOperation::Exact(ended) => Ok((*ended)?),
            EndedOperation::Bounded { .. } => Err(Error::NotStarted(id)),
        }
    }
}
