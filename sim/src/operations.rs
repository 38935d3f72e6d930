//! The sequence of operations.

use crate::clock::Ps;
use crate::network::Network;
use crate::starts::Starts;

/// A sequence of operations. Ranks start one when they have computed, after the one before has ended at its
/// last rank.
pub(crate) struct Operations<'a> {
    wanted: u32,
    starts: Starts,
    begun: u32,
    /// Start of the current operation at a rank without delay.
    began: Ps,
    /// Ranks without a result of the current operation.
    without: u32,
    /// The time at which the last rank that is not a straggler had its result.
    on_time: Option<Ps>,
    times: Times,
    progress: &'a mut dyn FnMut(u32),
}

/// Durations of operations.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// From the start to the last rank's result.
    pub(crate) all: Vec<Ps>,
    /// From the start to the last non-straggler's result, for operations with stragglers.
    pub(crate) on_time: Vec<Ps>,
}

impl<'a> Operations<'a> {
    /// `progress` gets the number of finished operations.
    pub(crate) fn new(wanted: u32, starts: Starts, progress: &'a mut dyn FnMut(u32)) -> Self {
        Self {
            wanted,
            starts,
            begun: 0,
            began: Ps::ZERO,
            without: 0,
            on_time: None,
            times: Times::default(),
            progress,
        }
    }

    /// Starts the next operation. Returns its number, from 0.
    pub(crate) fn begin<B: Clone>(&mut self, net: &Network<B>) -> u32 {
        self.began = net.now();
        self.without = net.hosts();
        self.on_time = None;
        self.begun += 1;
        self.begun - 1
    }

    /// The start of the current operation at `rank`.
    pub(crate) fn begins(&self, rank: u32) -> Ps {
        self.began + self.starts.delay(self.begun - 1, rank)
    }

    /// Number of started operations.
    pub(crate) fn begun(&self) -> u32 {
        self.begun
    }

    /// Notes that `rank` has the current operation's result.
    pub(crate) fn ended<B: Clone>(&mut self, net: &mut Network<B>, rank: u32) {
        if !self.starts.straggles(self.begun - 1, rank) {
            self.on_time = Some(net.now());
        }
        self.without -= 1;
        if self.without > 0 {
            return;
        }
        self.times.all.push(net.now().since(self.began));
        let on_time = self.on_time.map(|at| at.since(self.began));
        self.times.on_time.extend(on_time);
        (self.progress)(self.begun);
        if self.begun < self.wanted {
            net.alarm(net.now() + self.starts.compute());
        }
    }

    pub(crate) fn into_times(self) -> Times {
        self.times
    }
}
