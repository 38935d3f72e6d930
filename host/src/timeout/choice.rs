//! The choice of timeouts.

use serde::{Deserialize, Serialize};

/// The choice of t_S and t_B. Learned values never exceed the configuration's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timeouts {
    /// As configured.
    #[default]
    Fixed,
    /// As in OptiReduce (NSDI 2025, §3.2.1): t_S and t_B are the 95th percentile of their stages' durations
    /// in the bucket's first 20 operations. A stage whose last packets have begun to arrive waits for at most
    /// *x* % of its recent time t_C, and *x* follows the loss, whatever its cause.
    Published,
    /// By cause: t_S and t_B follow a quantile of all packets' times, including late ones, and *x* follows
    /// late and overdue packets. A known loss is no reason to wait.
    CauseAware,
}

impl Timeouts {
    /// All variants.
    pub const ALL: [Timeouts; 3] = [Timeouts::Fixed, Timeouts::Published, Timeouts::CauseAware];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Timeouts::Fixed => "fixed",
            Timeouts::Published => "published",
            Timeouts::CauseAware => "cause-aware",
        }
    }
}
