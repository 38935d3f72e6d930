//! The choice of a rate policy.

use serde::{Deserialize, Serialize};

/// The choice of the sending rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RatePolicy {
    /// Always the limit.
    Fixed,
    /// By round-trip times as published (TIMELY, SIGCOMM 2015), for networks whose switches do not stamp.
    Timely,
    /// By queueing times and marks of switches. Where no switch stamps packets it is the limit, and only
    /// [`Config::congestion_window`](crate::Config::congestion_window) follows the network.
    #[default]
    InBand,
}

impl RatePolicy {
    /// All variants.
    pub const ALL: [RatePolicy; 3] = [RatePolicy::Fixed, RatePolicy::Timely, RatePolicy::InBand];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            RatePolicy::Fixed => "fixed",
            RatePolicy::Timely => "timely",
            RatePolicy::InBand => "in-band",
        }
    }
}
