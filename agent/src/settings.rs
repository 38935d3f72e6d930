//! What a user chooses of a rank's collective; the job and the fabric decide the rest.

use std::time::Duration;

use crate::limits::PACING_BURST;
use serde::{Deserialize, Serialize};
use ultima_host::{
    Answers, Coding, Config, EarlyBounds, Element, Estimation, GatherStart, IncastPolicy, Pacing,
    RatePolicy, Recycling, Timeouts,
};

/// Operations that a rank may fall behind before packets of the newest find no room. A straggler with a short deadline
/// sleeps through many.
const EARLY_OPERATIONS: usize = 64;

/// A rank's settings. All ranks of a job use the same, but for `rate`, `t_s` and `answers`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The deadline of an operation, from its start.
    pub t_b: Duration,
    /// When owners send what they have, from the operation's start; `None` for 3/5 of `t_b`.
    pub t_s: Option<Duration>,
    /// Bytes of values in a full packet; `None` for what the fabric's narrowest link takes.
    pub slot_bytes: Option<usize>,
    /// True if buckets are Hadamard-coded.
    pub hadamard: bool,
    /// True if later operations deliver what an earlier one lost.
    pub recycling: bool,
    /// How t_S and t_B are learned.
    pub timeouts: Timeouts,
    /// The type of values on the wire.
    pub element: Element,
    /// How owners estimate the mean from the contributions that arrive.
    pub estimation: Estimation,
    /// The rate to send at, in bits per second over whole frames; `None` for the controller's, if it has one.
    pub rate: Option<u64>,
    /// How the rate follows the network. Only with `rate`.
    pub rate_policy: RatePolicy,
    /// How many ranks send to one at a time.
    pub incast: IncastPolicy,
    /// When owners start to send aggregates.
    pub gather_start: GatherStart,
    /// How losses are detected.
    pub answers: Answers,
}

impl Settings {
    /// The defaults, with this deadline: coded, no pacing, fixed timeouts, no recycling.
    pub fn new(t_b: Duration) -> Self {
        Self {
            t_b,
            t_s: None,
            slot_bytes: None,
            hadamard: true,
            recycling: false,
            timeouts: Timeouts::default(),
            element: Element::default(),
            estimation: Estimation::default(),
            rate: None,
            rate_policy: RatePolicy::default(),
            incast: IncastPolicy::default(),
            gather_start: GatherStart::default(),
            answers: Answers::default(),
        }
    }

    /// Sets these in a configuration from [`Membership::config`](crate::Membership::config).
    pub fn apply(&self, config: Config) -> Config {
        Config {
            slot_bytes: self.slot_bytes.unwrap_or(config.slot_bytes),
            coding: match self.hadamard {
                true => Coding::default(),
                false => Coding::Identity,
            },
            t_s: self.t_s.unwrap_or(config.t_s),
            timeouts: self.timeouts,
            element: self.element,
            estimation: self.estimation,
            recycling: self.recycling.then(Recycling::default),
            pacing: (self.rate)
                .map(|bits_per_second| Pacing {
                    bits_per_second,
                    burst: PACING_BURST,
                    policy: self.rate_policy,
                })
                .or(config.pacing),
            incast: self.incast,
            gather_start: self.gather_start,
            answers: self.answers,
            early: EarlyBounds {
                operations: EARLY_OPERATIONS,
                ..config.early
            },
            ..config
        }
    }
}
