//! Agreements of ranks between steps: [`Safeguards`].

use std::time::Duration;

use crate::codec::Coding;
use crate::driver::thread::Command;
use crate::exact::ExactOutcome;
use crate::operation::OperationId;
use crate::safeguards::{Safeguards, Verdict};

use super::{Collective, Error};

impl Collective {
    /// Votes with all ranks on this step's update and returns the verdict. `lost` is the share of its packets
    /// that did not arrive here ([`Outcome::lost_share`](crate::Outcome::lost_share)).
    ///
    /// Every rank calls this if [`Safeguards::is_due`]. With [`Verdict::skip`] every rank calls
    /// [`Collective::skip`], with [`Verdict::heal`] [`Collective::heal`], and with [`Verdict::code`]
    /// [`Collective::code`].
    ///
    /// # Errors
    /// [`Error::Stop`] on every rank, and those of [`Collective::allreduce_exact`]: then this rank has no
    /// verdict, although others may have one. If that vote decided on coding, this rank follows the others
    /// one operation after it first received their packets. The next vote brings all other state of the
    /// rules.
    pub fn agree(
        &mut self,
        id: OperationId,
        safeguards: &mut Safeguards,
        lost: f64,
        parameters: &[f32],
        limit: Duration,
    ) -> Result<Verdict, Error> {
        let vote = safeguards.vote(id, lost, parameters);
        let gathered = self.all_gather(id, &vote, limit);
        if matches!(gathered, Err(Error::Incomplete(_))) && safeguards.decides_coding(id.step) {
            self.in_use.missed();
        }
        let (_, votes) = gathered?;
        let ranks = votes.len() / vote.len();
        Ok(safeguards.count(id, &votes, ranks as u16)?)
    }

    /// The distance of all ranks' `parameters` from each other: [`safeguards::Sketch::spread`].
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    ///
    /// [`safeguards::Sketch::spread`]: crate::safeguards::Sketch::spread
    pub fn spread(
        &mut self,
        id: OperationId,
        safeguards: &Safeguards,
        parameters: &[f32],
        limit: Duration,
    ) -> Result<f64, Error> {
        let (_, digests) = self.all_gather(id, &safeguards.digest(id, parameters), limit)?;
        Ok(Safeguards::spread(&digests))
    }

    /// Switches the configured coding on or off from the next operation. All ranks call this when a
    /// [`Verdict`] asks for it, before they start another operation.
    pub fn code(&mut self, on: bool) {
        self.in_use.agreed(on);
        let coding = match on {
            true => self.coding,
            false => Coding::Identity,
        };
        self.codec.set_coding(coding);
        self.data.command(Command::Coding(coding));
    }

    /// Skips the update of `bucket` that [`Collective::allreduce`] returned: sets it to zero. With
    /// [`Config::recycling`](crate::Config::recycling) the next update includes it; without, it is lost.
    pub fn skip(&mut self, bucket: u16, update: &mut [f32]) {
        if let Some(carry) = &mut self.carry {
            carry.skip(bucket, update);
        }
        update.fill(0.0);
    }

    /// Replaces every rank's `parameters` by their mean, so that all are equal bit by bit.
    ///
    /// With [`Config::recycling`](crate::Config::recycling), corrections that only this rank would still have applied go into its
    /// contributions. No operation may be in progress.
    ///
    /// # Errors
    /// As [`Collective::allreduce_exact`].
    pub fn heal(
        &mut self,
        id: OperationId,
        parameters: &mut [f32],
        limit: Duration,
    ) -> Result<ExactOutcome, Error> {
        let outcome = self.allreduce_exact(id, parameters, limit)?;
        self.data.command(Command::Healed);
        if let Some(carry) = &mut self.carry {
            carry.heal();
        }
        Ok(outcome)
    }
}
