//! Traffic manager: what lies between ingress and the medium, for one egress port.
//!
//! ```text
//! ordered copy → queue of its priority → egress program → ECN → wire (rate → loss → delay) → medium
//! ```
//!
//! A copy leaves its queue when the wire is free for it, so the egress program sees the queue as it
//! is then, and a frame that it shortens occupies the wire for its final length only. Nothing here
//! reads a clock or a socket: time comes in as nanoseconds, frames go out through a trait.
//!
//! Backpressure: a medium that takes no more leaves frames on the delay line; a full delay line
//! stops the dequeuing; a full queue drops its tail, which is counted. Nothing else is ever lost
//! silently.
//!
//! A port's configuration changes between two packets: what is queued stays, whatever the new
//! limits; what is on the wire arrives when it was to arrive; what sets out afterwards meets the new
//! wire. What can be configured is a [`ultima_link::WireConfig`].
//!
//! | module | |
//! | --- | --- |
//! | `queue` | a queue for each priority |
//! | `ecn` | threshold and mark |
//! | `wire` | serialization and the delay line |
//! | `jitter` | what is random about a wire, beside its loss ([`ultima_link::LossProcess`]) |
//! | `settings` | the configuration as it goes over gRPC |

mod ecn;
mod jitter;
mod queue;
pub mod settings;
mod wire;

pub use ultima_link::{
    ChangeError, EcnError, EcnThreshold, Jitter, JitterError, Loss, LossError, WireChange,
    WireConfig, WireError,
};

pub use queue::{Occupancy, PRIORITIES};

pub(crate) use queue::Queued;
use queue::Queues;
use wire::{Carried, InFlight, Wire};

use crate::stats::{Key, Place, PortStats};

/// Nanoseconds since the switch started.
pub type Nanos = u64;

/// Frames offered to a medium at once.
pub(crate) const BATCH: usize = 32;
/// Copies that one call of [`EgressPort::serve`] takes from the queue, so that no port starves the
/// others.
const TURN: usize = 64;
/// Buffers kept for reuse, and the largest kept.
const POOLED: usize = 1024;
const POOLED_BYTES: usize = 16 * 1024;

/// What became of a frame that was offered to a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The medium has it.
    Left,
    /// Nobody is attached.
    NoPeer,
    /// It is longer than the medium carries, as far as the medium tells.
    Oversize,
}

/// Where frames go after the wire.
pub(crate) trait Medium {
    /// Offers frames in order and reports on each that was taken or lost. Fewer reports than
    /// frames: the medium takes no more for now and says so itself when that changes.
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>);
}

/// The egress pipeline as the traffic manager sees it.
pub(crate) trait EgressProgram<C> {
    /// Runs a copy that leaves its queue at `now`, with `depth` packets left there behind it, and
    /// writes the frame, if there is one, to `out`.
    fn run(&mut self, copy: Queued<C>, depth: u32, now: Nanos, out: &mut Vec<u8>) -> Verdict;
}

/// What the egress program did with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is a frame to send.
    Send,
    /// The copy is gone, for the reason that it is counted under.
    Gone(Place),
}

/// Buffers of frames, reused.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// An empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < POOLED && buffer.capacity() <= POOLED_BYTES {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// What a port waits for after it was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// More could be done right now; it was another port's turn.
    Turn,
    /// Nothing to do before this moment.
    Until(Nanos),
    /// The medium takes no more; other work, if any, comes due at the given moment.
    Medium(Option<Nanos>),
    /// Nothing to do until a copy is queued.
    Copy,
}

/// Copies and bytes that a port holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Copies in the queue of each priority.
    pub queues: [Occupancy; PRIORITIES],
    /// Frames on the wire or waiting for the medium.
    pub in_flight_packets: u64,
    /// Their bytes.
    pub in_flight_bytes: u64,
}

impl Held {
    /// Copies in all queues.
    pub fn queued_packets(&self) -> u64 {
        let packets = self.queues.iter().map(|queue| u64::from(queue.packets));
        packets.sum()
    }

    /// Their bytes, as ordered.
    pub fn queued_bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes).sum()
    }
}

/// Queues and wire of one egress port.
#[derive(Debug)]
pub(crate) struct EgressPort<C> {
    config: WireConfig,
    queues: Queues<C>,
    wire: Wire,
    /// The wire had no room when it was last looked at.
    stalled: bool,
    reports: Vec<Departure>,
}

impl<C> EgressPort<C> {
    /// An idle port. The same seed loses the same frames of the same sequence, and delays them by
    /// the same times.
    pub(crate) fn new(config: WireConfig, seed: u64) -> Self {
        EgressPort {
            queues: Queues::new(&config),
            wire: Wire::new(&config, seed),
            config,
            stalled: false,
            reports: Vec::with_capacity(BATCH),
        }
    }

    /// What it is configured to.
    pub(crate) fn config(&self) -> &WireConfig {
        &self.config
    }

    /// Another configuration from `now` on. Serve the port after that: it may do more.
    pub(crate) fn configure(&mut self, config: WireConfig, now: Nanos) {
        self.queues.limit(&config);
        self.wire.configure(&config, now);
        self.config = config;
    }

    /// A copy of `len` bytes is ordered to this port. Priority 0 is the lowest; above the highest
    /// counts as the highest.
    pub(crate) fn order(
        &mut self,
        copy: C,
        priority: u8,
        len: u32,
        key: Key,
        now: Nanos,
        stats: &mut PortStats,
    ) {
        stats.count(Place::Ordered, key, u64::from(len));
        if self.queues.push(copy, priority, len, key, now).is_err() {
            stats.count(Place::Queue, key, u64::from(len));
        }
    }

    /// Does all that is due at `now`, within its turn.
    pub(crate) fn serve(
        &mut self,
        now: Nanos,
        program: &mut impl EgressProgram<C>,
        medium: &mut impl Medium,
        stats: &mut PortStats,
        pool: &mut Pool,
    ) -> Wait {
        let mut turn = TURN;
        loop {
            let blocked = self.deliver(now, medium, stats, pool);
            self.transmit(now, program, stats, pool, &mut turn);
            let newly_due = !blocked && self.wire.next_due().is_some_and(|due| due <= now);
            if newly_due {
                continue;
            }
            let next_start = self.next_start(now);
            if turn == 0 && next_start.is_some_and(|at| at <= now) {
                return Wait::Turn;
            }
            if blocked {
                return Wait::Medium(next_start);
            }
            return match (next_start, self.wire.next_due()) {
                (Some(start), Some(due)) => Wait::Until(start.min(due)),
                (Some(at), None) | (None, Some(at)) => Wait::Until(at),
                (None, None) => Wait::Copy,
            };
        }
    }

    /// Empties the queues of copies that no program can run any more, and counts them.
    pub(crate) fn discard_queue(&mut self, stats: &mut PortStats) {
        while let Some((item, _)) = self.queues.pop(Nanos::MAX) {
            stats.count(Place::Reconfigured, item.key, u64::from(item.len));
        }
    }

    /// Empties queues and wire of a port that goes, and counts what was there.
    pub(crate) fn discard_all(&mut self, stats: &mut PortStats) {
        while let Some((item, _)) = self.queues.pop(Nanos::MAX) {
            stats.count(Place::Removed, item.key, u64::from(item.len));
        }
        while let Some(flight) = self.wire.take() {
            stats.count(Place::Removed, flight.key, flight.frame.len() as u64);
        }
    }

    /// What the port holds now.
    pub(crate) fn held(&self) -> Held {
        let (in_flight_packets, in_flight_bytes) = self.wire.under_way();
        Held {
            queues: self.queues.occupancy(),
            in_flight_packets,
            in_flight_bytes,
        }
    }

    /// When the next copy may set out; `None` when there is none or the wire has no room for it.
    fn next_start(&self, now: Nanos) -> Option<Nanos> {
        if !self.wire.has_room() {
            return None;
        }
        let queued = self.queues.oldest()?;
        Some(
            self.wire
                .free_at()
                .max(queued)
                .max(if self.stalled { now } else { 0 }),
        )
    }

    /// Hands over what has crossed the wire. True when the medium took less than that.
    fn deliver(
        &mut self,
        now: Nanos,
        medium: &mut impl Medium,
        stats: &mut PortStats,
        pool: &mut Pool,
    ) -> bool {
        loop {
            let mut offered: [&[u8]; BATCH] = [&[]; BATCH];
            let mut count = 0;
            for (slot, flight) in offered.iter_mut().zip(self.wire.arrived(now)) {
                *slot = &flight.frame;
                count += 1;
            }
            if count == 0 {
                return false;
            }
            self.reports.clear();
            medium.send(&offered[..count], &mut self.reports);
            let taken = self.reports.len();
            for report in self.reports.drain(..) {
                let Some(InFlight { frame, key, .. }) = self.wire.take() else {
                    break;
                };
                let place = match report {
                    Departure::Left => Place::Left,
                    Departure::NoPeer => Place::NoPeer,
                    Departure::Oversize => Place::Oversize,
                };
                stats.count(place, key, frame.len() as u64);
                pool.give(frame);
            }
            if taken < count {
                return true;
            }
        }
    }

    /// Starts every transmission whose time has come.
    fn transmit(
        &mut self,
        now: Nanos,
        program: &mut impl EgressProgram<C>,
        stats: &mut PortStats,
        pool: &mut Pool,
        turn: &mut usize,
    ) {
        while *turn > 0 {
            if !self.wire.has_room() {
                self.stalled = self.queues.oldest().is_some();
                return;
            }
            if self.stalled {
                // The wire stood idle while it waited: that time is gone.
                self.wire.not_before(now);
                self.stalled = false;
            }
            // A wake-up that comes late must not cost the link capacity: the frame set out when it
            // could.
            let Some(start) = self.next_start(now).filter(|&start| start <= now) else {
                return;
            };
            // Late or not, what came after that moment does not go before.
            let Some((item, depth)) = self.queues.pop(start) else {
                return;
            };
            *turn -= 1;
            let (key, len) = (item.key, item.len);
            let congested = self.config.ecn.is_some_and(|threshold| {
                let stay = start.saturating_sub(item.enqueued_at);
                ecn::exceeded(
                    threshold,
                    item.depth_at_enqueue,
                    item.bytes_at_enqueue,
                    stay,
                )
            });
            let mut frame = pool.take();
            let verdict = program.run(item, depth, now, &mut frame);
            if let Verdict::Gone(place) = verdict {
                stats.count(place, key, u64::from(len));
                pool.give(frame);
                continue;
            }
            if congested && ecn::mark(&mut frame) {
                stats.count(Place::Marked, key, frame.len() as u64);
            }
            if let Carried::Lost(frame) = self.wire.carry(frame, key, start) {
                stats.count(Place::Wire, key, frame.len() as u64);
                pool.give(frame);
            }
        }
    }
}

#[cfg(test)]
mod tests;
