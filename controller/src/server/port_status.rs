//! Port states over gNMI: a link between switches is down as soon as either end reports so, and is
//! used again after [damping](ultima_planner::fabric::damping).
//!
//! Host ports change no route: no other path leads to a host, and an absent host is not a failure.

use std::collections::BTreeSet;

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Subscription};
use ultima_planner::fabric::{Element, SwitchId, SwitchPort};
use ultima_planner::target::PortNumber;

use super::controller::Controller;
use super::gnmi::{Listener, of_state, on_change};
use super::interfaces::{Interfaces, LeafState};

/// Follows which ports of a switch are up.
pub(super) struct PortStatus {
    switch: SwitchId,
    interfaces: Interfaces<Status>,
}

impl Listener for PortStatus {
    const SUBJECT: &'static str = "port states";

    fn new(switch: SwitchId) -> Self {
        PortStatus {
            switch,
            interfaces: Interfaces::default(),
        }
    }

    fn subscriptions() -> Vec<Subscription> {
        // The id first: values are usable only with it.
        ["id", "oper-status"]
            .map(|leaf| on_change(of_state(leaf)))
            .to_vec()
    }

    fn absent(switch: SwitchId, controller: &Controller) {
        controller.note_gnmi(switch, false);
        assume_unreported_up(controller, switch, &Interfaces::default());
    }

    fn synced(&mut self, controller: &Controller) {
        controller.note_gnmi(self.switch, true);
        assume_unreported_up(controller, self.switch, &self.interfaces);
    }

    fn take(&mut self, notification: Notification, controller: &Controller) {
        let switch = self.switch;
        for (port, is_up) in self.interfaces.take(notification) {
            // A deleted interface counts as down.
            observe_port(
                controller,
                SwitchPort { switch, port },
                is_up.unwrap_or(false),
            );
        }
    }
}

/// Ports that the switch does not report, or no longer reports, count as up.
fn assume_unreported_up(controller: &Controller, switch: SwitchId, reported: &Interfaces<Status>) {
    let reported: BTreeSet<PortNumber> = reported.ports().collect();
    let ports = controller.fabric().ports_of(switch);
    for port in ports.filter(|port| !reported.contains(port)) {
        observe_port(controller, SwitchPort { switch, port }, true);
    }
}

/// Records a reported port state.
fn observe_port(controller: &Controller, port: SwitchPort, is_up: bool) {
    let fabric = controller.fabric();
    let name = fabric.name_of(Element::Port(port));
    tracing::debug!(port = name, is_up, "port state reported");
    match fabric.across(port) {
        Some(_) => controller.observe(Element::Port(port), is_up),
        None if fabric.has_link(port) => controller.observe_host(port, is_up),
        None => {}
    }
}

/// True if the interface is up; none before it is reported.
#[derive(Debug, Default)]
struct Status(Option<bool>);

impl LeafState for Status {
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
