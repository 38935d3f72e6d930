//! A user's settings of a rank's collective; the job and the fabric decide the rest.

use std::time::Duration;

use crate::limits::PACING_BURST;
use serde::{Deserialize, Serialize};
use ultima_host::{Coding, Config, EarlyBounds, Element, Pacing, Policies, Recycling};

/// Operations that a rank may fall behind before packets of the newest find no room. A straggler with a short deadline
/// sleeps through many, each with up to 16 parts of its bucket.
const EARLY_OPERATIONS: usize = 1024;
/// The share of t_B by which ranks wait longer than learned ([`Config::slack`]). The deadline sets the scale: with 1 s a
/// rank may be stopped for 62 ms without loss.
const SLACK_SHARE: u32 = 16;

/// A rank's settings. All ranks of a job use the same, but for `rate`, `t_s`, `deadline_factor` and some [`Policies`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The deadline of an operation, from its start.
    pub t_b: Duration,
    /// The time at which owners send what they have, from the operation's start; `None` for 3/5 of `t_b`.
    pub t_s: Option<Duration>,
    /// The multiple of its bucket's usual time after which an operation ends ([`Config::deadline_factor`]); `None` for as long as
    /// the learned bounds allow.
    pub deadline_factor: Option<f64>,
    /// Bytes of values in a full packet; `None` for what the fabric's narrowest link takes.
    pub slot_bytes: Option<usize>,
    /// True if buckets are Hadamard-coded.
    pub hadamard: bool,
    /// True if later operations deliver what an earlier one lost.
    pub recycling: bool,
    /// The type of values on the wire.
    pub element: Element,
    /// The rate to send at, in bits per second over whole frames; `None` for the controller's limit, if it has one.
    pub rate: Option<u64>,
    /// True if ranks of one host exchange packets in shared memory.
    pub shared_memory: bool,
    /// The policies for waiting, sending and averaging.
    pub policies: Policies,
}

impl Settings {
    /// The defaults, with this deadline: coded, no recycling, the policies of [`Preset::Adaptive`](ultima_host::Preset).
    pub fn new(t_b: Duration) -> Self {
        Self {
            t_b,
            t_s: None,
            deadline_factor: None,
            slot_bytes: None,
            hadamard: true,
            recycling: false,
            element: Element::default(),
            rate: None,
            shared_memory: true,
            policies: Policies::default(),
        }
    }

    /// Sets these in a configuration from [`Membership::config`](crate::Membership::config).
    pub fn apply(&self, config: Config) -> Config {
        let pacing = self.rate.map(|bits_per_second| Pacing {
            bits_per_second,
            burst: PACING_BURST,
            policy: self.policies.rate,
        });
        let config = Config {
            slot_bytes: self.slot_bytes.unwrap_or(config.slot_bytes),
            coding: match self.hadamard {
                true => Coding::default(),
                false => Coding::Identity,
            },
            t_s: self.t_s.unwrap_or(config.t_s),
            slack: config.t_b / SLACK_SHARE,
            deadline_factor: self.deadline_factor,
            element: self.element,
            recycling: self.recycling.then(Recycling::default),
            pacing: pacing.or(config.pacing),
            shared_memory: self.shared_memory,
            early: EarlyBounds {
                operations: EARLY_OPERATIONS,
                ..config.early
            },
            ..config
        };
        self.policies.apply(config)
    }
}
