//! Switches that drop bursts, and the default rate of ranks behind them.
//!
//! While BMv2 is busy, it drops frames beyond 32 that enter by a port, and beyond 64 that leave by one (docs/guide.md has
//! the measurements). P4Runtime does not name the software of a switch (Capabilities, §17, has only a version). But of the
//! switches that run a v1model program, BMv2 alone has no gNMI.

use std::collections::BTreeSet;

use ultima_planner::fabric::SwitchId;
use ultima_planner::target::{ProgramForm, Target};

/// The most bits per second at which a rank sends over BMv2 by default.
const RANK_RATE: u64 = 2_000_000;
/// The most bits per second of copies that all switches make: half of what one BMv2 copies without loss on two cores
/// (docs/switch.md).
const COPY_RATE: u64 = 300_000_000;

/// The switches that drop bursts.
#[derive(Debug, Default)]
pub(super) struct BurstDrops(BTreeSet<SwitchId>);

impl BurstDrops {
    /// Notes whether a switch answers gNMI. Returns true if it is now known to drop bursts, and was not before.
    pub(super) fn note(&mut self, switch: SwitchId, target: &Target, has_gnmi: bool) -> bool {
        match target.program == ProgramForm::Bmv2 && !has_gnmi {
            true => self.0.insert(switch),
            false => {
                self.0.remove(&switch);
                false
            }
        }
    }

    /// The default rate in bits per second of each of a fabric's `ranks`; none if no switch drops bursts. Each of N ranks
    /// has its packets copied N − 1 times.
    pub(super) fn rate(&self, ranks: u64) -> Option<u64> {
        let copies = ranks.saturating_mul(ranks.saturating_sub(1)).max(1);
        let rate = RANK_RATE.min(COPY_RATE / copies).max(1);
        (!self.0.is_empty()).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use ultima_planner::target::{TOFINO, V1MODEL};

    use super::*;

    #[test]
    fn only_a_v1model_switch_without_gnmi_drops_bursts() {
        let mut drops = BurstDrops::default();
        assert!(!drops.note(SwitchId(0), &V1MODEL, true));
        assert!(!drops.note(SwitchId(1), &TOFINO, false));
        assert_eq!(drops.rate(4), None);
        assert!(drops.note(SwitchId(0), &V1MODEL, false));
        // Port states and port counters are both absent.
        assert!(!drops.note(SwitchId(0), &V1MODEL, false));
        assert_eq!(drops.rate(4), Some(2_000_000));
        // The embedded switch took BMv2's place.
        assert!(!drops.note(SwitchId(0), &V1MODEL, true));
        assert_eq!(drops.rate(4), None);
    }

    #[test]
    fn more_ranks_send_slower() {
        let drops = BurstDrops(BTreeSet::from([SwitchId(0)]));
        let rates = [1, 4, 8, 16].map(|ranks| drops.rate(ranks));
        assert_eq!(
            rates,
            [2_000_000, 2_000_000, 2_000_000, 1_250_000].map(Some)
        );
        assert_eq!(drops.rate(u64::MAX), Some(1));
    }
}
