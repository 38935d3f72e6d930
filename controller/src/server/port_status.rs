//! What a switch says of its ports over gNMI: a link between switches is left as soon as either end says that it is down, and used
//! again as [damping](crate::fabric::damping) has it.
//!
//! Ports of hosts are not looked at: no other way leads there, and a host that is not there yet is no fault.

use std::collections::{BTreeMap, BTreeSet};

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Subscription};

use super::controller::Controller;
use super::gnmi::{Listener, has_room, of_interface, of_state, on_change};
use crate::fabric::{Part, SwitchId, SwitchPort};
use crate::target::PortNumber;

/// Follows which ports of a switch are up.
pub(super) struct PortStatus {
    switch: SwitchId,
    ports: Ports,
}

impl Listener for PortStatus {
    const SUBJECT: &'static str = "ports' states";

    fn new(switch: SwitchId) -> Self {
        PortStatus {
            switch,
            ports: Ports::default(),
        }
    }

    fn subscriptions() -> Vec<Subscription> {
        // An interface's number comes before what it is.
        ["id", "oper-status"]
            .map(|leaf| on_change(of_state(leaf)))
            .to_vec()
    }

    fn absent(switch: SwitchId, controller: &Controller) {
        controller.see_untold(switch, &Ports::default());
    }

    fn synced(&mut self, controller: &Controller) {
        controller.see_untold(self.switch, &self.ports);
    }

    fn take(&mut self, news: Notification, controller: &Controller) {
        let switch = self.switch;
        for (port, is_up) in self.ports.take(news) {
            controller.see_port(SwitchPort { switch, port }, is_up);
        }
    }
}

impl Controller {
    /// Of ports that a switch does not tell of, or not any more, nothing is known: nothing is held against them.
    fn see_untold(&self, switch: SwitchId, told: &Ports) {
        let told: BTreeSet<PortNumber> = told.0.values().filter_map(|it| it.port).collect();
        let trunks = self.fabric().trunks_of(switch).iter().map(|end| end.port);
        for port in trunks.filter(|port| !told.contains(port)) {
            self.see(Part::Port(SwitchPort { switch, port }), true);
        }
    }

    /// A port that a switch tells of is up, or not.
    fn see_port(&self, port: SwitchPort, is_up: bool) {
        let is_trunk = self.fabric().across(port).is_some();
        if is_trunk {
            let name = self.fabric().name_of(Part::Port(port));
            tracing::debug!(port = name, is_up, "told");
            self.see(Part::Port(port), is_up);
        }
    }
}

/// What a switch has said of its interfaces, by name.
#[derive(Debug, Default)]
struct Ports(BTreeMap<String, Told>);

#[derive(Debug, Default)]
struct Told {
    port: Option<PortNumber>,
    is_up: Option<bool>,
}

impl Told {
    fn whole(&self) -> Option<(PortNumber, bool)> {
        Some((self.port?, self.is_up?))
    }
}

impl Ports {
    /// Takes news in; returns the ports that they are about, as they are now. An interface that is gone is down.
    fn take(&mut self, news: Notification) -> Vec<(PortNumber, bool)> {
        let prefix = news.prefix.unwrap_or_default();
        let mut about: Vec<String> = Vec::new();
        let mut gone = Vec::new();
        for update in news.update {
            let path = update.path.unwrap_or_default();
            let Some((name, below)) = of_interface(&prefix, &path) else {
                continue;
            };
            let is_known = self.0.contains_key(name);
            if !is_known && !has_room(self.0.len(), name) {
                continue;
            }
            let told = self.0.entry(name.to_owned()).or_default();
            match (&below[..], update.val.and_then(|it| it.value)) {
                (["state", "id"], Some(Value::UintVal(number))) => {
                    told.port = u16::try_from(number).ok().map(PortNumber);
                }
                (["state", "oper-status"], Some(Value::StringVal(status))) => {
                    told.is_up = Some(status == "UP");
                }
                _ => continue,
            }
            about.push(name.to_owned());
        }
        for path in news.delete {
            if let Some((name, _)) = of_interface(&prefix, &path)
                && let Some(Told {
                    port: Some(port), ..
                }) = self.0.remove(name)
            {
                gone.push((port, false));
            }
        }
        about.dedup();
        let now = about.iter().filter_map(|name| self.0.get(name)?.whole());
        now.chain(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::server::gnmi::MAX_PORTS;
    use ultima_gnmi::path::{elem, entry, path};
    use ultima_gnmi::v0::{Path, TypedValue, Update};

    use super::*;

    fn state(name: &str, leaf: &str) -> Path {
        let interface = entry("interface", "name", name);
        path([elem("interfaces"), interface, elem("state"), elem(leaf)])
    }

    fn says(name: &str, leaf: &str, value: Value) -> Notification {
        Notification {
            update: vec![Update {
                path: Some(state(name, leaf)),
                val: Some(TypedValue { value: Some(value) }),
                duplicates: 0,
            }],
            ..Notification::default()
        }
    }

    #[test]
    fn a_port_is_known_by_the_number_of_its_interface() {
        let mut ports = Ports::default();
        let status = |up: &str| says("eth9", "oper-status", Value::StringVal(up.into()));
        assert_eq!(ports.take(status("UP")), [], "no number yet");
        let number = says("eth9", "id", Value::UintVal(9));
        assert_eq!(ports.take(number), [(PortNumber(9), true)]);
        assert_eq!(
            ports.take(status("LOWER_LAYER_DOWN")),
            [(PortNumber(9), false)]
        );
        let other = says("eth9", "mtu", Value::UintVal(1));
        assert_eq!(ports.take(other), []);
        // A number that no port has is none.
        ports.take(says("eth8", "id", Value::UintVal(1 << 20)));
        assert_eq!(
            ports.take(says("eth8", "oper-status", Value::StringVal("UP".into()))),
            []
        );
        assert_eq!(ports.take(status("UP")), [(PortNumber(9), true)]);
        let gone = Notification {
            delete: vec![state("eth9", "oper-status"), state("eth9", "id")],
            ..Notification::default()
        };
        assert_eq!(ports.take(gone), [(PortNumber(9), false)]);
    }

    #[test]
    fn what_a_switch_makes_up_takes_bounded_room() {
        let mut ports = Ports::default();
        for number in 0..2 * MAX_PORTS as u64 {
            ports.take(says(&format!("eth{number}"), "id", Value::UintVal(number)));
        }
        assert_eq!(ports.0.len(), MAX_PORTS);
    }
}
