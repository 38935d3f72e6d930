//! From one membership epoch of a job to the next.
//!
//! Each epoch has collectives of its own, with their own sockets: a rank opens that of the new epoch before it leaves the old one, so that
//! what comes early is kept ([`Config::early`](crate::Config::early)), and lets the old one send to its end what others still wait for. What is
//! learned of the network begins anew, as other ranks have other ways; what is carried goes along.

use crate::collective::Collective;

impl Collective {
    /// Takes over what `before`, the same rank's collective in the epoch before, carries into later operations of its buckets: what it could not
    /// deliver, by now in as many other ranks' mean as there are now. What it is told of its last operations only later, and
    /// what it is owed of them, is lost. Both have [`Config::recycling`](crate::Config::recycling), or nothing is carried; no operation of `before` is under
    /// way.
    pub fn inherit(&mut self, before: &mut Collective) {
        if self.carry.is_some()
            && let Some(carry) = before.carry.take()
        {
            self.carry = Some(carry);
        }
    }
}
