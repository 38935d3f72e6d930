//! The wire behind an egress port: it is busy while a frame is serialized, loses some, and delays
//! the rest.

use std::collections::VecDeque;
use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::Nanos;
use super::loss::{Loss, LossError, LossProcess};
use super::queue::{MIN_CHARGE, charge};
use crate::stats::Key;

/// Bytes that a wire without rate or delay may hold for its socket.
const STAGED_BYTES: u64 = 64 * 1024;
/// Bytes under way on a wire that has a delay and no rate to bound them.
const UNRATED_BYTES: u64 = 8 * 1024 * 1024;
/// Largest configurable delay; what a longer one would keep in memory has no use in a network.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// An egress port's queue and wire, as they are configured.
#[derive(Debug, Clone, PartialEq)]
pub struct WireConfig {
    /// Bits per second; `None`: a frame takes no time.
    pub rate: Option<u64>,
    /// From the end of a frame's serialization to its arrival.
    pub delay: Duration,
    /// A frame is lost when any of these says so.
    pub loss: Vec<Loss>,
    /// Bytes that the queue in front of the wire holds.
    pub queue_bytes: u64,
}

impl Default for WireConfig {
    /// A perfect wire behind a queue of 1 MiB.
    fn default() -> Self {
        WireConfig {
            rate: None,
            delay: Duration::ZERO,
            loss: Vec::new(),
            queue_bytes: 1 << 20,
        }
    }
}

/// Why a wire's configuration is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// A rate at which nothing moves.
    #[error("rate 0 bit/s: expected at least 1, or none for a wire without a rate")]
    Rate,
    /// A delay that would keep too much in memory.
    #[error("delay {0:?}: expected at most {MAX_DELAY:?}")]
    Delay(Duration),
    /// A queue that holds no frame.
    #[error("queue of {0} bytes: expected room for at least one frame, {MIN_CHARGE} bytes")]
    Queue(u64),
    /// A loss model that is none.
    #[error(transparent)]
    Loss(#[from] LossError),
}

impl WireConfig {
    /// Refuses what no wire can do.
    pub fn validate(&self) -> Result<(), WireError> {
        if self.rate == Some(0) {
            return Err(WireError::Rate);
        }
        if self.delay > MAX_DELAY {
            return Err(WireError::Delay(self.delay));
        }
        if self.queue_bytes < MIN_CHARGE {
            return Err(WireError::Queue(self.queue_bytes));
        }
        self.loss
            .iter()
            .try_for_each(|loss| loss.validate().map_err(WireError::from))
    }
}

/// A frame under way.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) frame: Vec<u8>,
    pub(super) key: Key,
    /// When it reaches the other end.
    pub(super) due: Nanos,
}

/// What a wire did with a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// On its way.
    Under,
    /// Lost; the buffer comes back for reuse.
    Lost(Vec<u8>),
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Wire {
    rate: Option<u64>,
    delay: Nanos,
    losses: Vec<LossProcess>,
    rng: Xoshiro256PlusPlus,
    /// End of the last frame's serialization.
    free_at: Nanos,
    line: VecDeque<InFlight>,
    line_bytes: u64,
    line_charged: u64,
    line_limit: u64,
}

impl Wire {
    pub(super) fn new(config: &WireConfig, seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let losses = config
            .loss
            .iter()
            .map(|loss| LossProcess::new(loss.clone(), &mut rng))
            .collect();
        let delay = u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX);
        let line_limit = match config.rate {
            _ if delay == 0 => STAGED_BYTES,
            // What the wire holds at full rate, so that the bound never slows it down.
            Some(rate) => {
                let product = u128::from(rate) * u128::from(delay) / 8_000_000_000;
                u64::try_from(product)
                    .unwrap_or(u64::MAX)
                    .saturating_add(STAGED_BYTES)
            }
            None => UNRATED_BYTES,
        };
        Wire {
            rate: config.rate,
            delay,
            losses,
            rng,
            free_at: 0,
            line: VecDeque::new(),
            line_bytes: 0,
            line_charged: 0,
            line_limit,
        }
    }

    /// Whether another frame may set out, as far as memory goes.
    pub(super) fn has_room(&self) -> bool {
        self.line_charged < self.line_limit
    }

    /// When the wire is done with the last frame it took.
    pub(super) fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// A sender that had to wait for room starts no earlier than now.
    pub(super) fn not_before(&mut self, now: Nanos) {
        self.free_at = self.free_at.max(now);
    }

    /// Takes a frame whose first bit is sent at `start`.
    pub(super) fn carry(&mut self, frame: Vec<u8>, key: Key, start: Nanos) -> Carried {
        self.free_at = start.saturating_add(self.serialization(frame.len()));
        // Every process sees every frame: one model's draws do not depend on another's outcome.
        let mut lost = false;
        for process in &mut self.losses {
            lost |= process.loses(&frame, &mut self.rng);
        }
        if lost {
            return Carried::Lost(frame);
        }
        self.line_bytes += frame.len() as u64;
        self.line_charged += charge(frame.len() as u64);
        self.line.push_back(InFlight {
            frame,
            key,
            due: self.free_at.saturating_add(self.delay),
        });
        Carried::Under
    }

    /// When the next frame reaches the other end.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.line.front().map(|flight| flight.due)
    }

    /// The frames that have reached the other end, in order.
    pub(super) fn arrived(&self, now: Nanos) -> impl Iterator<Item = &InFlight> {
        self.line.iter().take_while(move |flight| flight.due <= now)
    }

    /// Takes the first frame off the line.
    pub(super) fn take(&mut self) -> Option<InFlight> {
        let flight = self.line.pop_front()?;
        self.line_bytes -= flight.frame.len() as u64;
        self.line_charged -= charge(flight.frame.len() as u64);
        Some(flight)
    }

    /// Frames and bytes on the line.
    pub(super) fn under_way(&self) -> (u64, u64) {
        (self.line.len() as u64, self.line_bytes)
    }

    fn serialization(&self, len: usize) -> Nanos {
        match self.rate {
            None => 0,
            Some(rate) => {
                let nanos = (len as u128 * 8 * 1_000_000_000).div_ceil(u128::from(rate));
                u64::try_from(nanos).unwrap_or(u64::MAX / 4)
            }
        }
    }
}
