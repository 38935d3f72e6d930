//! The state of a switch's interfaces as reported over gNMI, by port number. Its size is bounded,
//! whatever the switch reports.

use std::collections::BTreeMap;

use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Notification, Path};
use ultima_planner::target::PortNumber;

/// Limit of interfaces per switch: more than any has. Others are ignored.
pub(super) const MOST: usize = 4096;
/// Limit of an interface name in bytes. Interfaces with longer names are ignored.
pub(super) const LONGEST_NAME: usize = 255;

/// The reported state of one interface, except its port number.
pub(super) trait LeafState: Default {
    /// The value that the leaves give together.
    type Whole;

    /// Records a leaf's value; `leaf` is its path below `state`. Returns false for other leaves.
    fn take(&mut self, leaf: &[&str], value: Value) -> bool;

    /// The value, once enough leaves were reported.
    fn whole(&self) -> Option<Self::Whole>;
}

/// The reported state, by interface name.
#[derive(Debug, Default)]
pub(super) struct Interfaces<T>(BTreeMap<String, Interface<T>>);

#[derive(Debug, Default)]
struct Interface<T> {
    port: Option<PortNumber>,
    state: T,
}

impl<T: LeafState> Interfaces<T> {
    /// Processes a notification. Returns the ports that it concerns with their present values; a
    /// deleted interface has none.
    pub(super) fn take(
        &mut self,
        notification: Notification,
    ) -> Vec<(PortNumber, Option<T::Whole>)> {
        let prefix = notification.prefix.unwrap_or_default();
        let mut about: Vec<String> = Vec::new();
        for update in notification.update {
            let path = update.path.unwrap_or_default();
            let Some((name, leaf)) = of_interface(&prefix, &path) else {
                continue;
            };
            let Some(value) = update.val.and_then(|it| it.value) else {
                continue;
            };
            if !self.0.contains_key(name) && !self.has_room(name) {
                continue;
            }
            let interface = self.0.entry(name.to_owned()).or_default();
            let is_ours = match (&leaf[..], value) {
                (["id"], Value::UintVal(number)) => {
                    interface.port = u16::try_from(number).ok().map(PortNumber);
                    true
                }
                (leaf, value) => interface.state.take(leaf, value),
            };
            if is_ours && about.last().is_none_or(|last| last != name) {
                about.push(name.to_owned());
            }
        }
        let mut gone = Vec::new();
        for path in notification.delete {
            let interface = of_interface(&prefix, &path).and_then(|(name, _)| self.0.remove(name));
            gone.extend(interface.and_then(|it| Some((it.port?, None))));
        }
        let now = about.iter().filter_map(|name| {
            let interface = self.0.get(name)?;
            Some((interface.port?, Some(interface.state.whole()?)))
        });
        now.chain(gone).collect()
    }

    /// The ports that were reported.
    pub(super) fn ports(&self) -> impl Iterator<Item = PortNumber> {
        self.0.values().filter_map(|interface| interface.port)
    }

    fn has_room(&self, name: &str) -> bool {
        self.0.len() < MOST && name.len() <= LONGEST_NAME
    }
}

/// Splits a path into the interface's name and the elements below `state`.
fn of_interface<'a>(prefix: &'a Path, path: &'a Path) -> Option<(&'a str, Vec<&'a str>)> {
    let mut all = prefix.elem.iter().chain(&path.elem);
    if all.next()?.name != "interfaces" {
        return None;
    }
    let name = all.next()?.key.get("name")?;
    let below = all.skip_while(|elem| elem.name == "state");
    Some((name, below.map(|elem| elem.name.as_str()).collect()))
}

#[cfg(test)]
pub(super) mod tests {
    use ultima_gnmi::path::{elem, entry, path};
    use ultima_gnmi::v0::{TypedValue, Update};

    use super::*;

    /// The path of a leaf of an interface's state.
    fn state(name: &str, leaf: &str) -> Path {
        let interface = entry("interface", "name", name);
        let above = [elem("interfaces"), interface, elem("state")];
        path(above.into_iter().chain(leaf.split('/').map(elem)))
    }

    /// A notification with values of an interface's leaves, for example `counters/in-pkts`.
    pub(in crate::server) fn says(
        name: &str,
        leaves: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Notification {
        let update = |(leaf, value): (&str, Value)| Update {
            path: Some(state(name, leaf)),
            val: Some(TypedValue { value: Some(value) }),
            duplicates: 0,
        };
        Notification {
            update: leaves.into_iter().map(update).collect(),
            ..Notification::default()
        }
    }

    /// A notification that deletes leaves of an interface.
    pub(in crate::server) fn gone(name: &str, leaves: &[&str]) -> Notification {
        Notification {
            delete: leaves.iter().map(|leaf| state(name, leaf)).collect(),
            ..Notification::default()
        }
    }

    impl LeafState for u64 {
        type Whole = u64;

        fn take(&mut self, leaf: &[&str], value: Value) -> bool {
            let Value::UintVal(number) = value else {
                return false;
            };
            *self = number;
            leaf == ["counters", "in-pkts"]
        }

        fn whole(&self) -> Option<u64> {
            Some(*self)
        }
    }

    #[test]
    fn an_interface_id_gives_the_port_number() {
        let mut heard = Interfaces::<u64>::default();
        let count = |count| says("eth9", [("counters/in-pkts", Value::UintVal(count))]);
        assert_eq!(heard.take(count(1)), [], "no number yet");
        let nine = PortNumber(9);
        let number = says("eth9", [("id", Value::UintVal(9))]);
        assert_eq!(heard.take(number), [(nine, Some(1))]);
        assert_eq!(heard.take(count(2)), [(nine, Some(2))]);
        let other = says("eth9", [("mtu", Value::UintVal(1))]);
        assert_eq!(heard.take(other), []);
        // A number beyond 16 bits is no port.
        let number = Value::UintVal(1 << 20);
        let both = [("id", number), ("counters/in-pkts", Value::UintVal(3))];
        assert_eq!(heard.take(says("eth8", both)), []);
        assert_eq!(heard.ports().collect::<Vec<_>>(), [nine]);
        let gone = gone("eth9", &["counters/in-pkts", "id"]);
        assert_eq!(heard.take(gone), [(nine, None)]);
        assert_eq!(heard.ports().count(), 0);
    }

    #[test]
    fn invented_interfaces_take_bounded_memory() {
        let mut heard = Interfaces::<u64>::default();
        for number in 0..2 * MOST as u64 {
            heard.take(says(&format!("eth{number}"), [("id", Value::UintVal(1))]));
        }
        assert_eq!(heard.0.len(), MOST);
        let mut heard = Interfaces::<u64>::default();
        let long = "e".repeat(LONGEST_NAME + 1);
        heard.take(says(&long, [("id", Value::UintVal(1))]));
        assert_eq!(heard.0.len(), 0);
    }
}
