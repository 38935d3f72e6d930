//! When a rank begins to send what belongs to a stage.

use crate::clock::Ps;
use crate::tail::Tail;

/// What every message costs, whichever algorithm sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) tail: Tail,
    /// What a host takes before the first bit of a message.
    pub(crate) host: Ps,
    /// Bits per second of a host's link.
    pub(crate) rate: u64,
    /// Propagation on the way.
    pub(crate) delay: Ps,
}

impl Stages {
    /// What a message of `bytes` takes over one idle hop: host, wire and propagation.
    pub(crate) fn usual(&self, bytes: u64) -> Ps {
        self.host + Ps::to_send(bytes, self.rate) + self.delay
    }

    /// How long `sender` takes before the first bit of a message of `bytes`: what the host takes, and
    /// by how much the message is delayed.
    pub(crate) fn before(&self, operation: u32, stage: u32, sender: u32, bytes: u64) -> Ps {
        let factor = self.tail.factor(operation, stage, sender);
        self.host + Tail::wait(self.usual(bytes), factor)
    }
}
