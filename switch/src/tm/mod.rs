//! Traffic manager of one egress port, from ingress to the medium.
//!
//! ```text
//! ordered copy → queue of its priority → egress program → ECN → wire (rate → loss → delay) → medium
//! ```
//!
//! A copy leaves its queue when the wire is free. So the egress program sees the queue at that time, and a frame that it
//! shortens occupies the wire for its final length. No clock and no sockets: the caller passes the time in nanoseconds, and
//! frames leave through a trait.
//!
//! Backpressure: frames stay on the delay line while the medium accepts none; a full delay line stops the dequeuing; a full
//! queue drops its tail and counts it. Every loss is counted.
//!
//! A port's configuration ([`ultima_link::WireConfig`]) changes between two packets. Queued copies stay, regardless of new
//! limits. Frames on the wire arrive at their old times. Later frames meet the new wire.
//!
//! | module | |
//! | --- | --- |
//! | `queue` | a queue for each priority |
//! | `ecn` | threshold and mark |
//! | `wire` | serialization and the delay line, with [`ultima_link`]'s random delay and loss |

mod ecn;
mod queue;
mod wire;

pub use ultima_link::{
    Background, BackgroundError, ChangeError, EcnError, EcnThreshold, FlowLengths, Jitter,
    JitterError, Loss, LossError, WireChange, WireConfig, WireError,
};

pub use queue::{Occupancy, PRIORITIES};

pub(crate) use queue::Queued;
use queue::Queues;
use wire::{Carried, InFlight, Wire};

pub use crate::clock::Nanos;
use crate::stats::{Key, Place, PortStats};

/// Number of frames offered to a medium at once.
pub(crate) const BATCH: usize = 32;
/// The most copies that one call of [`EgressPort::serve`] takes from the queue, so that no port starves the others.
const TURN: usize = 64;
/// Largest number and size of buffers kept for reuse.
const POOLED: usize = 1024;
const POOLED_BYTES: usize = 16 * 1024;

/// The outcome of a frame that was offered to a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    Left,
    NoPeer,
    /// It is longer than the medium's MTU, if known.
    Oversize,
}

/// The destination of frames after the wire.
pub(crate) trait Medium {
    /// Offers frames in order and reports on each that was accepted or lost. With fewer reports than frames, the medium is full;
    /// it reports itself when it has room.
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>);
}

pub(crate) trait EgressProgram<C> {
    /// Processes a copy that leaves its queue at `now`, with `depth` packets still queued, and writes the frame, if any, to
    /// `out`.
    fn run(&mut self, copy: Queued<C>, depth: u32, now: Nanos, out: &mut Vec<u8>) -> Verdict;
}

/// The egress program's decision on a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Send,
    /// The copy is dropped and counted at this place.
    Gone(Place),
}

#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < POOLED && buffer.capacity() <= POOLED_BYTES {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// The condition under which a port needs service again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// At once, after the other ports' turn.
    Turn,
    Until(Nanos),
    /// When the medium has room, or at the given time.
    Medium(Option<Nanos>),
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
    /// True if the wire had no room at the last check.
    stalled: bool,
    reports: Vec<Departure>,
}

impl<C> EgressPort<C> {
    /// Returns an idle port with queues for the lowest `priorities` priorities. Equal seeds lose the same frames of a sequence
    /// and delay them equally.
    pub(crate) fn new(config: WireConfig, seed: u64, priorities: u8) -> Self {
        EgressPort {
            queues: Queues::new(&config, priorities),
            wire: Wire::new(&config, seed),
            config,
            stalled: false,
            reports: Vec::with_capacity(BATCH),
        }
    }

    pub(crate) fn config(&self) -> &WireConfig {
        &self.config
    }

    /// Sets the configuration from `now` on. Serve the port afterwards: it may have work.
    pub(crate) fn configure(&mut self, config: WireConfig, now: Nanos) {
        self.queues.limit(&config);
        self.wire.configure(&config, now);
        self.config = config;
    }

    /// Queues a copy of `len` bytes. Priority 0 is the lowest; one above 7 counts as 7. Drops a copy whose priority has no queue.
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

    /// Drops and counts queued copies that no program can process any more.
    pub(crate) fn discard_queue(&mut self, stats: &mut PortStats) {
        while let Some((item, _)) = self.queues.pop(Nanos::MAX) {
            stats.count(Place::Reconfigured, item.key, u64::from(item.len));
        }
    }

    /// Drops and counts everything in queues and on the wire of a port that is removed.
    pub(crate) fn discard_all(&mut self, stats: &mut PortStats) {
        while let Some((item, _)) = self.queues.pop(Nanos::MAX) {
            stats.count(Place::Removed, item.key, u64::from(item.len));
        }
        while let Some(flight) = self.wire.take() {
            stats.count(Place::Removed, flight.key, flight.frame.len() as u64);
        }
    }

    /// Returns the copies and bytes that the port holds.
    pub(crate) fn held(&self) -> Held {
        let (in_flight_packets, in_flight_bytes) = self.wire.under_way();
        Held {
            queues: self.queues.occupancy(),
            in_flight_packets,
            in_flight_bytes,
        }
    }

    /// Returns the earliest time to send the next copy; `None` if there is none or the wire has no room.
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

    /// Delivers frames that have crossed the wire. Returns true if the medium accepted only some of them.
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

    /// Starts every transmission that is due.
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
