//! The wire of an egress port: serialization, loss and delay.

use std::collections::VecDeque;
use std::time::Duration;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_link::{
    Background, Flows, JitterSampler, LossProcess, MAX_DELAY, MAX_LINE, WireConfig, product,
};

use super::Nanos;
use super::queue::charge;
use crate::clock::nanos;
use crate::stats::Key;

/// Most bytes that a wire without rate or delay holds for its socket.
const STAGED_BYTES: u64 = 64 * 1024;
/// Most bytes in flight on a wire with a delay and without a rate.
const UNRATED_BYTES: u64 = 32 * 1024 * 1024;
/// Upper bound of a frame's serialization, even at 1 bit/s.
const MAX_SERIALIZATION: Nanos = u64::MAX / 4;
const MAX_DELAY_NANOS: f64 = MAX_DELAY.as_nanos() as f64;

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) frame: Vec<u8>,
    pub(super) key: Key,
    pub(super) due: Nanos,
}

/// The outcome of a frame that was given to a wire.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried {
    Under,
    /// Lost; the buffer comes back for reuse.
    Lost(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Wire {
    rate: Option<u64>,
    background: Option<Background>,
    flows: Option<Flows>,
    /// The least time between the starts of two frames.
    gap: Nanos,
    delay: Nanos,
    jitter: Option<JitterSampler>,
    reorder: bool,
    losses: Vec<LossProcess>,
    // Apart, so that one setting does not change what others draw.
    loss_rng: Xoshiro256PlusPlus,
    jitter_rng: Xoshiro256PlusPlus,
    flows_rng: Xoshiro256PlusPlus,
    /// End of the last frame's serialization.
    free_at: Nanos,
    /// The earliest start of the next frame at the packet rate.
    next_start: Nanos,
    /// The time of arrival of that frame, if it was not lost.
    last_due: Option<Nanos>,
    line: VecDeque<InFlight>,
    line_bytes: u64,
    line_charged: u64,
    line_limit: u64,
}

impl Wire {
    pub(super) fn new(config: &WireConfig, seed: u64) -> Self {
        let loss_rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut jitter_rng = loss_rng.clone();
        jitter_rng.jump();
        let mut flows_rng = jitter_rng.clone();
        flows_rng.jump();
        let mut wire = Wire {
            rate: config.rate,
            background: None,
            flows: None,
            gap: 0,
            delay: 0,
            jitter: None,
            reorder: false,
            losses: Vec::new(),
            loss_rng,
            jitter_rng,
            flows_rng,
            free_at: 0,
            next_start: 0,
            last_due: None,
            line: VecDeque::new(),
            line_bytes: 0,
            line_charged: 0,
            line_limit: 0,
        };
        wire.configure(config, 0);
        wire
    }

    /// Sets the configuration for later frames. Frames in flight arrive at their old times. The rest of the current serialization
    /// uses the new rate. An unchanged loss model and unchanged background flows keep their state.
    pub(super) fn configure(&mut self, config: &WireConfig, now: Nanos) {
        self.delay = nanos(config.delay);
        self.jitter = config.jitter.and_then(JitterSampler::new);
        self.reorder = config.reorder;
        let mut present = std::mem::take(&mut self.losses);
        for loss in &config.loss {
            let same = present.iter().position(|process| process.model() == loss);
            let process = match same {
                Some(index) => present.remove(index),
                None => LossProcess::new(loss.clone(), &mut self.loss_rng),
            };
            self.losses.push(process);
        }
        let jitter = config
            .jitter
            .map_or(Duration::ZERO, |jitter| jitter.reach());
        let longest = config.delay + jitter;
        self.line_limit = match config.rate {
            _ if longest.is_zero() => STAGED_BYTES,
            // The bytes on the wire at full rate, so that the bound does not slow it down.
            Some(rate) => product(rate, longest).min(MAX_LINE) + STAGED_BYTES,
            None => UNRATED_BYTES,
        };
        if let Some(before) = self.rate.filter(|_| self.rate != config.rate) {
            self.change_rate(before, config.rate, now);
        }
        if (self.rate, self.background) != (config.rate, config.background) {
            let flows = config.background.zip(config.rate);
            self.flows = flows.and_then(|(background, rate)| {
                let byte_time = 8e9 / rate as f64;
                Flows::new(background, byte_time, now, &mut self.flows_rng)
            });
        }
        self.background = config.background;
        self.rate = config.rate;
        self.gap = config
            .packet_rate
            .map_or(0, |rate| 1_000_000_000_u64.div_ceil(rate));
        self.next_start = self.next_start.min(now.saturating_add(self.gap));
    }

    fn change_rate(&mut self, before: u64, after: Option<u64>, now: Nanos) {
        let Some(rest) = self.free_at.checked_sub(now) else {
            return;
        };
        let rest = after.map_or(0, |after| {
            let nanos = u128::from(rest) * u128::from(before) / u128::from(after);
            u64::try_from(nanos).map_or(MAX_SERIALIZATION, |nanos| nanos.min(MAX_SERIALIZATION))
        });
        let free_at = now.saturating_add(rest);
        let index = self
            .last_due
            .and_then(|due| self.line.iter().rposition(|flight| flight.due == due));
        if let Some(mut flight) = index.and_then(|index| self.line.remove(index)) {
            flight.due = flight.due.saturating_add(free_at) - self.free_at;
            self.last_due = Some(self.insert(flight));
        }
        self.free_at = free_at;
    }

    /// True if the wire has memory for another frame.
    pub(super) fn has_room(&self) -> bool {
        self.line_charged < self.line_limit
    }

    /// Returns the earliest start of the next frame: the end of the last serialization, or later at a packet rate.
    pub(super) fn free_at(&self) -> Nanos {
        self.free_at.max(self.next_start)
    }

    /// Delays the next frame to `now` or later, after the sender waited for room.
    pub(super) fn not_before(&mut self, now: Nanos) {
        self.free_at = self.free_at.max(now);
    }

    /// Carries a frame whose first bit is sent at `start`.
    pub(super) fn carry(&mut self, frame: Vec<u8>, key: Key, start: Nanos) -> Carried {
        let alone = self.serialization(frame.len());
        self.free_at = match &mut self.flows {
            Some(flows) => flows.transmit(start, alone, &mut self.flows_rng),
            None => start.saturating_add(alone),
        };
        self.next_start = start.saturating_add(self.gap);
        // Every process sees every frame: one model's draws do not depend on another's outcome.
        let delay = self.draw_delay();
        let mut lost = false;
        for process in &mut self.losses {
            lost |= process.loses(&frame, &mut self.loss_rng);
        }
        if lost {
            self.last_due = None;
            return Carried::Lost(frame);
        }
        self.line_bytes += frame.len() as u64;
        self.line_charged += charge(frame.len() as u64);
        let due = self.free_at.saturating_add(delay);
        self.last_due = Some(self.insert(InFlight { frame, key, due }));
        Carried::Under
    }

    /// Inserts a frame and returns its final time of arrival.
    fn insert(&mut self, mut flight: InFlight) -> Nanos {
        let last = self.line.back().map_or(0, |flight| flight.due);
        if flight.due < last && self.reorder {
            let due = flight.due;
            // Moves no more frames than it overtakes.
            let index = self.line.partition_point(|other| other.due <= due);
            self.line.insert(index, flight);
            return due;
        }
        flight.due = flight.due.max(last);
        let due = flight.due;
        self.line.push_back(flight);
        due
    }

    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.line.front().map(|flight| flight.due)
    }

    /// Iterates over frames that have arrived, in order.
    pub(super) fn arrived(&self, now: Nanos) -> impl Iterator<Item = &InFlight> {
        self.line.iter().take_while(move |flight| flight.due <= now)
    }

    pub(super) fn take(&mut self) -> Option<InFlight> {
        let flight = self.line.pop_front()?;
        self.line_bytes -= flight.frame.len() as u64;
        self.line_charged -= charge(flight.frame.len() as u64);
        Some(flight)
    }

    /// Returns the frames and bytes in flight.
    pub(super) fn under_way(&self) -> (u64, u64) {
        (self.line.len() as u64, self.line_bytes)
    }

    fn serialization(&self, len: usize) -> Nanos {
        self.rate.map_or(0, |rate| {
            let nanobits = (len as u64).saturating_mul(8_000_000_000);
            nanobits.div_ceil(rate).min(MAX_SERIALIZATION)
        })
    }

    fn draw_delay(&mut self) -> Nanos {
        match &self.jitter {
            None => self.delay,
            Some(jitter) => {
                let delay = self.delay as f64 + jitter.sample(&mut self.jitter_rng);
                delay.clamp(0.0, MAX_DELAY_NANOS) as Nanos
            }
        }
    }
}
