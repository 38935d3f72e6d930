//! A rank in the current epoch of its job. It follows the job's changes of members between operations.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ultima_host::{Collective, Error, Report};

use crate::{Context, Departure, Go, Membership, Next, Session};

/// A rank in the current epoch of its job. It follows the job's changes of members between operations.
pub struct EpochMember {
    session: Session,
    context: Context,
    /// The time for which the collective of an earlier epoch serves repairs.
    linger: Duration,
    /// Collectives of earlier epochs.
    ending: Vec<JoinHandle<Result<Report, Error>>>,
}

impl EpochMember {
    /// Creates the member from a session that is ready. After a change of members, the collective of the old epoch serves
    /// repairs for `linger`.
    pub fn new(session: Session, context: Context, linger: Duration) -> Self {
        Self {
            session,
            context,
            linger,
            ending: Vec::new(),
        }
    }

    /// The collective of the current epoch.
    pub fn collective(&mut self) -> &mut Collective {
        &mut self.session.collective
    }

    /// The membership of the current epoch.
    pub fn membership(&self) -> &Membership {
        &self.session.membership
    }

    /// Waits for a pause that a check requests, and for the epoch of operation `step`. Blocks. Call it before the operations
    /// of each step, when none is in progress. Returns true if the rank has another epoch and collective from now on.
    ///
    /// # Errors
    /// [`Departure`]: the rank has no more operations.
    ///
    /// # Panics
    /// Outside of the runtime, or on a thread of it that must not block.
    pub fn enter(&mut self, step: u32) -> Result<bool, Departure> {
        let mut changed = false;
        loop {
            self.session.quiet.wait();
            match self.session.epochs.go(step) {
                Go::Begin => return Ok(changed),
                Go::Over(Next::Place(next)) => {
                    let before = self.session.go_over(next, step, &self.context);
                    let linger = self.linger;
                    let ending = thread::spawn(move || before.collective.finish(linger));
                    self.ending.push(ending);
                    changed = true;
                }
                Go::Over(Next::LeftOut(why)) => return Err(Departure::LeftOut(why)),
                Go::Nowhere(why) => return Err(Departure::Ended(why)),
            }
        }
    }

    /// Reports ranks that are silent to the controller, which may evict them.
    pub fn suspect(&self, ranks: &[u16]) {
        self.session.suspects.send_if_modified(|now| {
            let changes = !now.iter().copied().eq(ranks.iter().copied().map(u32::from));
            if changes {
                *now = ranks.iter().copied().map(u32::from).collect();
            }
            changes
        });
    }

    /// Ends the contact with the controller.
    pub fn end(&self) {
        self.session.end();
    }

    /// Receives for another `linger`, then ends the contact with the controller. Returns a report for each epoch.
    ///
    /// # Errors
    /// [`Error::Link`] if the network failed.
    pub fn finish(self, linger: Duration) -> Result<Vec<Report>, Error> {
        let attending = self.session.attending();
        let last = self.session.collective.finish(linger);
        if let Some(attending) = attending {
            attending.abort();
        }
        let mut reports = Vec::new();
        for collective in self.ending {
            let report = collective.join();
            reports.push(report.unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        reports.push(last?);
        Ok(reports)
    }
}
