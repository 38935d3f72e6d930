//! What a switch says of its ports over gNMI: a link between switches is left as soon as either end says that it is down, and used
//! again as [damping](crate::fabric::damping) has it.
//!
//! Ports of hosts are not looked at: no other way leads there, and a host that is not there yet is no fault.

use std::collections::BTreeSet;

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Subscription};

use super::controller::Controller;
use super::gnmi::{Listener, of_state, on_change};
use super::interfaces::{Interfaces, Told};
use crate::fabric::{Part, SwitchId, SwitchPort};
use crate::target::PortNumber;

/// Follows which ports of a switch are up.
pub(super) struct PortStatus {
    switch: SwitchId,
    interfaces: Interfaces<Status>,
}

impl Listener for PortStatus {
    const SUBJECT: &'static str = "ports' states";

    fn new(switch: SwitchId) -> Self {
        PortStatus {
            switch,
            interfaces: Interfaces::default(),
        }
    }

    fn subscriptions() -> Vec<Subscription> {
        // An interface's number comes before what it is.
        ["id", "oper-status"]
            .map(|leaf| on_change(of_state(leaf)))
            .to_vec()
    }

    fn absent(switch: SwitchId, controller: &Controller) {
        controller.see_untold(switch, &Interfaces::default());
    }

    fn synced(&mut self, controller: &Controller) {
        controller.see_untold(self.switch, &self.interfaces);
    }

    fn take(&mut self, news: Notification, controller: &Controller) {
        let switch = self.switch;
        for (port, is_up) in self.interfaces.take(news) {
            // An interface that is gone is down.
            controller.see_port(SwitchPort { switch, port }, is_up.unwrap_or(false));
        }
    }
}

impl Controller {
    /// Of ports that a switch does not tell of, or not any more, nothing is known: nothing is held against them.
    fn see_untold(&self, switch: SwitchId, told: &Interfaces<Status>) {
        let told: BTreeSet<PortNumber> = told.ports().collect();
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

/// Whether an interface is up, once that is told.
#[derive(Debug, Default)]
struct Status(Option<bool>);

impl Told for Status {
    type Whole = bool;

    fn take(&mut self, leaf: &[&str], value: Value) -> bool {
        match (leaf, value) {
            (["oper-status"], Value::StringVal(status)) => self.0 = Some(status == "UP"),
            _ => return false,
        }
        true
    }

    fn whole(&self) -> Option<bool> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::interfaces::tests::{gone, says};
    use super::*;

    #[test]
    fn only_up_is_up() {
        let mut heard = Interfaces::<Status>::default();
        let nine = PortNumber(9);
        let status = |up: &str| says("eth9", [("oper-status", Value::StringVal(up.into()))]);
        assert_eq!(heard.take(says("eth9", [("id", Value::UintVal(9))])), []);
        assert_eq!(heard.take(status("UP")), [(nine, Some(true))]);
        let is_down = [(nine, Some(false))];
        assert_eq!(heard.take(status("LOWER_LAYER_DOWN")), is_down);
        assert_eq!(heard.take(status("UP")), [(nine, Some(true))]);
        assert_eq!(heard.take(gone("eth9", &["oper-status"])), [(nine, None)]);
    }
}
