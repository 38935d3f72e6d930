//! One operation after the other.

use crate::clock::Ps;
use crate::network::Network;

/// Operations that all ranks begin at once, each when the one before has ended at its last rank and
/// the ranks have computed.
pub(crate) struct Operations<'a> {
    wanted: u32,
    compute: Ps,
    begun: u32,
    began: Ps,
    /// Ranks that have no result of the present operation.
    without: u32,
    /// From the beginning to the last rank's result.
    completions: Vec<Ps>,
    progress: &'a mut dyn FnMut(u32),
}

impl<'a> Operations<'a> {
    /// `progress` is told how many operations have ended.
    pub(crate) fn new(wanted: u32, compute: Ps, progress: &'a mut dyn FnMut(u32)) -> Self {
        Self {
            wanted,
            compute,
            begun: 0,
            began: Ps::ZERO,
            without: 0,
            completions: Vec::new(),
            progress,
        }
    }

    /// The next operation begins at all ranks: its number, from 0.
    pub(crate) fn begin<B: Clone>(&mut self, net: &Network<B>) -> u32 {
        self.began = net.now();
        self.without = net.hosts();
        self.begun += 1;
        self.begun - 1
    }

    /// Operations that have begun.
    pub(crate) fn begun(&self) -> u32 {
        self.begun
    }

    /// A rank has the present operation's result.
    pub(crate) fn ended<B: Clone>(&mut self, net: &mut Network<B>) {
        self.without -= 1;
        if self.without > 0 {
            return;
        }
        self.completions.push(net.now().since(self.began));
        (self.progress)(self.begun);
        if self.begun < self.wanted {
            net.alarm(net.now() + self.compute);
        }
    }

    pub(crate) fn into_completions(self) -> Vec<Ps> {
        self.completions
    }
}
