//! The step from one membership epoch of a job to the next.
//!
//! Each epoch has its own collectives with their own sockets. A rank opens the new epoch's collective before
//! it leaves the old one, so that early packets are stored ([`Config::early`](crate::Config::early)), and
//! lets the old one finish sending. Measurements of the network start again, because other ranks have other
//! paths. Residuals are carried over.

use crate::collective::Collective;

impl Collective {
    /// Takes the residuals of `before`, the same rank's collective in the previous epoch, into this one. They
    /// are then part of the mean over the new ranks.
    ///
    /// Corrections that `before` receives later, or is still owed, are lost. Without
    /// [`Config::recycling`](crate::Config::recycling) in both, nothing is carried. No operation of `before`
    /// may be in progress.
    pub fn inherit(&mut self, before: &mut Collective) {
        if self.carry.is_some()
            && let Some(carry) = before.carry.take()
        {
            self.carry = Some(carry);
        }
    }
}
