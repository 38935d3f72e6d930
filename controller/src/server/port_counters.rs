//! What a switch says over gNMI that its ports have counted: a link between switches that [loses most of what is sent into
//! it](crate::fabric::blackhole) is left, whatever its ends say of it.

use std::collections::BTreeMap;
use std::time::Instant;

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Subscription, SubscriptionMode};

use super::controller::{Controller, lock};
use super::gnmi::{Listener, has_room, of_interface, of_state, on_change};
use crate::fabric::blackhole::{Crossed, SAMPLED_EVERY};
use crate::fabric::{Part, SwitchId, SwitchPort};
use crate::target::PortNumber;

/// Follows what the ports of a switch count.
pub(super) struct PortCounters {
    switch: SwitchId,
    ports: BTreeMap<String, Counted>,
    has_begun: bool,
}

/// What was said of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counted {
    port: Option<PortNumber>,
    /// OpenConfig's `in-pkts` and `out-pkts`.
    whole: [Option<u64>; 2],
    /// Where a switch does not count these (Stratum): frames by kind, and those that it had no room for.
    parts: [[u64; 4]; 2],
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

impl Counted {
    /// Takes a counter; false if it says nothing of what has crossed.
    fn take(&mut self, leaf: &str, count: u64) -> bool {
        for way in 0..2 {
            if leaf == WHOLE[way] {
                self.whole[way] = Some(count);
                return true;
            }
            if let Some(part) = PARTS[way].iter().position(|part| *part == leaf) {
                self.parts[way][part] = count;
                return true;
            }
        }
        false
    }

    fn crossed(&self) -> Crossed {
        let sum = |parts: [u64; 4]| parts.into_iter().fold(0, u64::saturating_add);
        let [received, sent] = [0, 1].map(|way| self.whole[way].unwrap_or(sum(self.parts[way])));
        Crossed { received, sent }
    }
}

impl Listener for PortCounters {
    const SUBJECT: &'static str = "ports' counters";

    fn new(switch: SwitchId) -> Self {
        PortCounters {
            switch,
            ports: BTreeMap::new(),
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
        for (port, crossed) in self.count(news) {
            controller.see_crossed(SwitchPort { switch, port }, crossed);
        }
    }
}

impl PortCounters {
    /// Takes news in; returns the ports that they count something of.
    fn count(&mut self, news: Notification) -> Vec<(PortNumber, Crossed)> {
        let prefix = news.prefix.unwrap_or_default();
        let mut about: Vec<String> = Vec::new();
        for update in news.update {
            let path = update.path.unwrap_or_default();
            let Some((name, below)) = of_interface(&prefix, &path) else {
                continue;
            };
            if !self.ports.contains_key(name) && !has_room(self.ports.len(), name) {
                continue;
            }
            let Some(Value::UintVal(number)) = update.val.and_then(|it| it.value) else {
                continue;
            };
            let counted = self.ports.entry(name.to_owned()).or_default();
            match below[..] {
                ["state", "id"] => counted.port = u16::try_from(number).ok().map(PortNumber),
                ["state", "counters", leaf] if counted.take(leaf, number) => {
                    about.push(name.to_owned());
                }
                _ => {}
            }
        }
        for path in news.delete {
            if let Some((name, _)) = of_interface(&prefix, &path) {
                self.ports.remove(name);
            }
        }
        about.dedup();
        let told = about.iter().filter_map(|name| self.ports.get(name));
        told.filter_map(|counted| Some((counted.port?, counted.crossed())))
            .collect()
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
    use ultima_gnmi::path::{elem, entry, path};
    use ultima_gnmi::v0::{TypedValue, Update};

    use super::*;
    use crate::server::gnmi::{LONGEST_NAME, MAX_PORTS};

    fn says(name: &str, leaves: &[(&[&str], u64)]) -> Notification {
        let update = |(below, number): &(&[&str], u64)| {
            let interface = [
                elem("interfaces"),
                entry("interface", "name", name),
                elem("state"),
            ];
            let below = below.iter().map(|name| elem(name));
            Update {
                path: Some(path(interface.into_iter().chain(below))),
                val: Some(TypedValue {
                    value: Some(Value::UintVal(*number)),
                }),
                duplicates: 0,
            }
        };
        Notification {
            update: leaves.iter().map(update).collect(),
            ..Notification::default()
        }
    }

    #[test]
    fn frames_are_counted_whole_or_by_kind() {
        let mut heard = PortCounters::new(SwitchId(0));
        let crossed = |received, sent| vec![(PortNumber(7), Crossed { received, sent })];
        let whole = |number| says("a", &[(&["counters", "in-pkts"], number)]);
        assert_eq!(heard.count(whole(1)), [], "no number yet");
        assert_eq!(heard.count(says("a", &[(&["id"], 7)])), []);
        assert_eq!(heard.count(whole(5)), crossed(5, 0));
        let by_kind: [(&[&str], u64); 5] = [
            (&["id"], 7),
            (&["counters", "in-unicast-pkts"], 1),
            (&["counters", "in-discards"], 2),
            (&["counters", "out-multicast-pkts"], 4),
            (&["counters", "out-discards"], 8),
        ];
        assert_eq!(heard.count(says("b", &by_kind)), crossed(3, 4));
        // A switch may say anything.
        let most: [(&[&str], u64); 2] = [
            (&["counters", "in-unicast-pkts"], u64::MAX),
            (&["counters", "no-such"], 1),
        ];
        assert_eq!(heard.count(says("b", &most)), crossed(u64::MAX, 4));
        for number in 0..2 * MAX_PORTS {
            heard.count(says(&format!("eth{number}"), &[(&["id"], 1)]));
        }
        assert_eq!(heard.ports.len(), MAX_PORTS);
        let mut heard = PortCounters::new(SwitchId(0));
        heard.count(says(&"e".repeat(LONGEST_NAME + 1), &[(&["id"], 1)]));
        assert_eq!(heard.ports.len(), 0);
    }
}
