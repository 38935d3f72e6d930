//! What a switch says over gNMI that its ports have counted: a link between switches that [loses most of what is sent into
//! it](crate::fabric::blackhole) is left, whatever its ends say of it.

use std::time::Instant;

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Subscription, SubscriptionMode};

use super::controller::{Controller, lock};
use super::gnmi::{Listener, of_state, on_change};
use super::interfaces::{Interfaces, Told};
use crate::fabric::blackhole::{Crossed, SAMPLED_EVERY};
use crate::fabric::{Part, SwitchId, SwitchPort};

/// Follows what the ports of a switch count.
pub(super) struct PortCounters {
    switch: SwitchId,
    interfaces: Interfaces<Counted>,
    has_begun: bool,
}

/// What was said of one interface.
#[derive(Debug, Default)]
struct Counted {
    /// OpenConfig's `in-pkts` and `out-pkts`.
    whole: [Option<u64>; 2],
    /// Where a switch does not count these (Stratum): frames by kind, and those that it had no room for.
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
    // What was discarded on its way out was not sent.
    [
        "out-unicast-pkts",
        "out-multicast-pkts",
        "out-broadcast-pkts",
        "",
    ],
];

impl Told for Counted {
    type Whole = Crossed;

    fn take(&mut self, leaf: &[&str], value: Value) -> bool {
        let (["counters", leaf], Value::UintVal(count)) = (leaf, value) else {
            return false;
        };
        for way in 0..2 {
            if *leaf == WHOLE[way] {
                self.whole[way] = Some(count);
                return true;
            }
            if let Some(part) = PARTS[way].iter().position(|part| part == leaf) {
                self.parts[way][part] = Some(count);
                return true;
            }
        }
        false
    }

    fn whole(&self) -> Option<Crossed> {
        let sum = |parts: [Option<u64>; 4]| {
            let told = parts.into_iter().flatten();
            told.reduce(u64::saturating_add)
        };
        let [received, sent] = [0, 1].map(|way| self.whole[way].or_else(|| sum(self.parts[way])));
        // Who tells of one way only has counted nothing the other way.
        received.or(sent)?;
        Some(Crossed {
            received: received.unwrap_or_default(),
            sent: sent.unwrap_or_default(),
        })
    }
}

impl Listener for PortCounters {
    const SUBJECT: &'static str = "ports' counters";

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
        let gone = lock(&controller.blackholes).give_up(&controller.fabric, switch);
        for trunk in gone {
            controller.see(Part::Trunk(trunk), true);
        }
    }

    fn take(&mut self, news: Notification, controller: &Controller) {
        if !std::mem::replace(&mut self.has_begun, true) {
            lock(&controller.blackholes).forget(self.switch);
        }
        let switch = self.switch;
        for (port, crossed) in self.interfaces.take(news) {
            if let Some(crossed) = crossed {
                controller.see_crossed(SwitchPort { switch, port }, crossed);
            }
        }
    }
}

impl Controller {
    /// What a port of a link between switches has counted.
    fn see_crossed(&self, at: SwitchPort, crossed: Crossed) {
        let news = lock(&self.blackholes).count(&self.fabric, at, crossed, Instant::now());
        let Some((trunk, carries)) = news else { return };
        let part = Part::Trunk(trunk);
        let link = self.fabric.name_of(part);
        match carries {
            false => {
                tracing::warn!(link, "less than half of what is sent into it comes out");
                self.swallow(part);
            }
            true => {
                tracing::info!(link, "it may carry packets again");
                self.see(part, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interfaces::tests::says;
    use super::*;
    use crate::target::PortNumber;

    #[test]
    fn frames_are_counted_whole_or_by_kind() {
        let mut heard = Interfaces::<Counted>::default();
        let crossed = |received, sent| vec![(PortNumber(7), Some(Crossed { received, sent }))];
        let number = |number| Value::UintVal(number);
        assert_eq!(
            heard.take(says("a", [("id", number(7))])),
            [],
            "no counts yet"
        );
        let whole = says("a", [("counters/in-pkts", number(5))]);
        assert_eq!(heard.take(whole), crossed(5, 0));
        let by_kind = [
            ("id", number(7)),
            ("counters/in-unicast-pkts", number(1)),
            ("counters/in-discards", number(2)),
            ("counters/out-multicast-pkts", number(4)),
            ("counters/out-discards", number(8)),
        ];
        assert_eq!(heard.take(says("b", by_kind)), crossed(3, 4));
        // A switch may say anything.
        let most = [
            ("counters/in-unicast-pkts", number(u64::MAX)),
            ("counters/no-such", number(1)),
        ];
        assert_eq!(heard.take(says("b", most)), crossed(u64::MAX, 4));
    }
}
