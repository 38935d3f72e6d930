//! The time at which a rank starts to send the messages of a stage.

use crate::clock::Ps;
use crate::tail::Tail;

/// Bytes that a host sends at once: one system call with segmentation offload.
pub(crate) const TRAIN: u64 = 64 << 10;

/// The cost of every message, the same for all algorithms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) tail: Tail,
    /// The host's time before the first bit of a message.
    pub(crate) host: Ps,
    /// Bits per second of a host's link.
    pub(crate) rate: u64,
    /// Propagation delay of the path.
    pub(crate) delay: Ps,
}

impl Stages {
    /// Duration of a message of `bytes` over one idle hop: host, wire and propagation.
    pub(crate) fn usual(&self, bytes: u64) -> Ps {
        self.host + Ps::to_send(bytes, self.rate) + self.delay
    }

    /// `sender`'s time before the first bit of a message of `bytes`: the host's time, and the message's
    /// random delay.
    pub(crate) fn before(&self, operation: u32, stage: u32, sender: u32, bytes: u64) -> Ps {
        let factor = self.tail.factor(operation, stage, sender);
        self.host + Tail::wait(self.usual(bytes), factor)
    }
}
