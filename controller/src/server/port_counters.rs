//! Port counters over gNMI: a link between switches that [loses most of its
//! packets](ultima_planner::fabric::blackhole) counts as down, whatever its ends report.

use std::time::Instant;

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Subscription, SubscriptionMode};
use ultima_planner::fabric::blackhole::{FrameCounts, SAMPLED_EVERY};
use ultima_planner::fabric::{Element, SwitchId, SwitchPort};

use super::controller::Controller;
use super::gnmi::{Listener, of_state, on_change};
use super::interfaces::{Interfaces, LeafState};
use super::lock::lock;

/// Follows the counters of a switch's ports.
pub(super) struct PortCounters {
    switch: SwitchId,
    interfaces: Interfaces<Counted>,
    has_begun: bool,
}

/// The reported counters of one interface.
#[derive(Debug, Default)]
struct Counted {
    /// OpenConfig's `in-pkts` and `out-pkts`.
    whole: [Option<u64>; 2],
    /// For switches without these (Stratum): frames by kind, and discards on ingress.
    parts: [[Option<u64>; 4]; 2],
}

const WHOLE: [&str; 2] = ["in-pkts", "out-pkts"];
const PARTS: [[&str; 4]; 2] = [
    [
        "in-unicast-pkts",
        "in-multicast-pkts",
        "in-broadcast-pkts",
        "in-discards",
    ],
    // Frames discarded on egress were not sent.
    [
        "out-unicast-pkts",
        "out-multicast-pkts",
        "out-broadcast-pkts",
        "",
    ],
];

impl LeafState for Counted {
    type Whole = FrameCounts;

    fn take(&mut self, leaf: &[&str], value: Value) -> bool {
        let (["counters", leaf], Value::UintVal(count)) = (leaf, value) else {
            return false;
        };
        for direction in 0..2 {
            if *leaf == WHOLE[direction] {
                self.whole[direction] = Some(count);
                return true;
            }
            if let Some(part) = PARTS[direction].iter().position(|part| part == leaf) {
                self.parts[direction][part] = Some(count);
                return true;
            }
        }
        false
    }

    fn whole(&self) -> Option<FrameCounts> {
        let sum = |parts: [Option<u64>; 4]| {
            let reported = parts.into_iter().flatten();
            reported.reduce(u64::saturating_add)
        };
        let [received, sent] =
            [0, 1].map(|direction| self.whole[direction].or_else(|| sum(self.parts[direction])));
        // An interface that reports one direction only has counted nothing in the other.
        received.or(sent)?;
        Some(FrameCounts {
            received: received.unwrap_or_default(),
            sent: sent.unwrap_or_default(),
        })
    }
}

impl Listener for PortCounters {
    const SUBJECT: &'static str = "port counters";

    fn new(switch: SwitchId) -> Self {
        PortCounters {
            switch,
            interfaces: Interfaces::default(),
            has_begun: false,
        }
    }

    fn subscriptions() -> Vec<Subscription> {
        let sampled = Subscription {
            path: Some(of_state("counters")),
            mode: SubscriptionMode::Sample.into(),
            sample_interval: SAMPLED_EVERY.as_nanos() as u64,
            ..Subscription::default()
        };
        vec![on_change(of_state("id")), sampled]
    }

    fn absent(switch: SwitchId, controller: &Controller) {
        let gone = lock(&controller.blackholes).clear(&controller.fabric, switch);
        for trunk in gone {
            controller.observe(Element::Trunk(trunk), true);
        }
    }

    fn take(&mut self, notification: Notification, controller: &Controller) {
        if !std::mem::replace(&mut self.has_begun, true) {
            lock(&controller.blackholes).forget(self.switch);
        }
        let switch = self.switch;
        for (port, counts) in self.interfaces.take(notification) {
            if let Some(counts) = counts {
                observe_counters(controller, SwitchPort { switch, port }, counts);
            }
        }
    }
}

/// Records the counters of a port between switches.
fn observe_counters(controller: &Controller, at: SwitchPort, counts: FrameCounts) {
    let change = lock(&controller.blackholes).count(&controller.fabric, at, counts, Instant::now());
    let Some((trunk, carries)) = change else {
        return;
    };
    let element = Element::Trunk(trunk);
    let link = controller.fabric.name_of(element);
    match carries {
        false => {
            tracing::warn!(link, "the link loses more than half of its packets");
            controller.mark_lossy(element);
        }
        true => {
            tracing::info!(link, "the link may carry packets again");
            controller.observe(element, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use ultima_planner::target::PortNumber;

    use super::super::interfaces::tests::says;
    use super::*;

    #[test]
    fn frames_are_counted_whole_or_by_kind() {
        let mut heard = Interfaces::<Counted>::default();
        let counts = |received, sent| vec![(PortNumber(7), Some(FrameCounts { received, sent }))];
        let number = |number| Value::UintVal(number);
        assert_eq!(
            heard.take(says("a", [("id", number(7))])),
            [],
            "no counts yet"
        );
        let whole = says("a", [("counters/in-pkts", number(5))]);
        assert_eq!(heard.take(whole), counts(5, 0));
        let by_kind = [
            ("id", number(7)),
            ("counters/in-unicast-pkts", number(1)),
            ("counters/in-discards", number(2)),
            ("counters/out-multicast-pkts", number(4)),
            ("counters/out-discards", number(8)),
        ];
        assert_eq!(heard.take(says("b", by_kind)), counts(3, 4));
        // The switch may report any value.
        let most = [
            ("counters/in-unicast-pkts", number(u64::MAX)),
            ("counters/no-such", number(1)),
        ];
        assert_eq!(heard.take(says("b", most)), counts(u64::MAX, 4));
    }
}
