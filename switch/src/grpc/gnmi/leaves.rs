//! The data tree of ports, after OpenConfig's model of interfaces.
//!
//! Changes of a port's status are events. Counters change with each packet and are read on request.
//!
//! An interface has the name of its port's attachment (`veth1`, `unix:PATH`). `state/id` is the port's number in the program, as
//! in Stratum.

use ultima_gnmi::path::{elem, entry, leads_to};
use ultima_gnmi::v0::get_request::DataType;
use ultima_gnmi::v0::typed_value::Value as Typed;
use ultima_gnmi::v0::{Encoding, ModelData, PathElem, TypedValue};

use crate::datapath::{PortSnapshot, PortStatus};
use crate::stats::{Place, PortStats};

/// Name of the container of counters.
pub(super) const COUNTERS: &str = "counters";

/// Returns the model and its version.
pub(super) fn model() -> ModelData {
    ModelData {
        name: "openconfig-interfaces".to_owned(),
        organization: "OpenConfig working group".to_owned(),
        version: "3.7.2".to_owned(),
    }
}

/// The value of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    Truth(bool),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Leaf {
    pub(super) path: Vec<PathElem>,
    pub(super) value: Value,
}

/// True if the leaf is configuration (`config`), false if it is state (`state`).
fn is_config(leaf: &[PathElem]) -> bool {
    leaf.iter().any(|elem| elem.name == "config")
}

/// Returns the status leaves of these ports that match one of `patterns`.
pub(super) fn select(ports: &[PortStatus], patterns: &[Vec<PathElem>]) -> Vec<Leaf> {
    matching(ports.iter().flat_map(of), patterns)
}

/// Returns the counter leaves of these ports that match one of `patterns`.
pub(super) fn select_counters(ports: &[PortSnapshot], patterns: &[Vec<PathElem>]) -> Vec<Leaf> {
    let ports = ports.iter();
    let leaves = ports.flat_map(|port| counters_of(&port.attachment, &port.stats));
    matching(leaves, patterns)
}

fn matching(all: impl Iterator<Item = Leaf>, patterns: &[Vec<PathElem>]) -> Vec<Leaf> {
    all.filter(|leaf| patterns.iter().any(|pattern| leads_to(pattern, &leaf.path)))
        .collect()
}

/// True if a pattern can match a leaf of a port.
pub(super) fn is_known(pattern: &[PathElem]) -> bool {
    let name = pattern.iter().find_map(|elem| elem.key.get("name"));
    let name = name.cloned().unwrap_or_default();
    let counters = counters_of(&name, &PortStats::new(false));
    let status = PortStatus {
        number: 0,
        name: name.clone(),
        up: true,
        enabled: true,
        interface: Some(0),
    };
    let mut leaves = counters.chain(of(&status));
    leaves.any(|leaf| leads_to(pattern, &leaf.path))
}

fn counters_of<'a>(name: &'a str, stats: &PortStats) -> impl Iterator<Item = Leaf> + use<'a> {
    let at = |place| stats.at(place);
    let overrun = at(Place::Overrun).packets;
    let mut sent = at(Place::Left);
    sent += at(Place::Wire);
    // Those in are all that came, whether or not they were read.
    let leaves = [
        (
            "in-pkts",
            at(Place::Entered).packets.saturating_add(overrun),
        ),
        ("in-octets", at(Place::Entered).bytes),
        ("in-discards", overrun),
        ("out-pkts", sent.packets),
        ("out-octets", sent.bytes),
        ("out-discards", at(Place::Queue).packets),
    ];
    leaves.into_iter().map(|(leaf, number)| {
        let path = [
            elem("interfaces"),
            entry("interface", "name", name),
            elem("state"),
            elem(COUNTERS),
            elem(leaf),
        ];
        Leaf {
            path: path.to_vec(),
            value: Value::Number(number),
        }
    })
}

pub(super) fn retain(leaves: &mut Vec<Leaf>, of: DataType) {
    leaves.retain(|leaf| match of {
        DataType::All => true,
        DataType::Config => is_config(&leaf.path),
        DataType::State | DataType::Operational => !is_config(&leaf.path),
    });
}

fn of(port: &PortStatus) -> impl Iterator<Item = Leaf> {
    let name = || Value::Text(port.name.clone());
    let status = |up| Value::Text(if up { "UP" } else { "DOWN" }.to_owned());
    let number = port.number.into();
    let leaves = [
        ("config", "name", Some(name())),
        ("config", "enabled", Some(Value::Truth(port.enabled))),
        ("state", "name", Some(name())),
        ("state", "id", Some(Value::Number(number))),
        (
            "state",
            "ifindex",
            port.interface.map(|index| Value::Number(index.into())),
        ),
        ("state", "enabled", Some(Value::Truth(port.enabled))),
        ("state", "admin-status", Some(status(port.enabled))),
        ("state", "oper-status", Some(status(port.up))),
    ];
    leaves
        .into_iter()
        .filter_map(move |(container, leaf, value)| {
            let path = [
                elem("interfaces"),
                entry("interface", "name", &port.name),
                elem(container),
                elem(leaf),
            ];
            Some(Leaf {
                path: path.to_vec(),
                value: value?,
            })
        })
}

impl Value {
    /// Encodes the value in a [supported](ENCODINGS) encoding.
    pub(super) fn encode(&self, encoding: Encoding) -> TypedValue {
        let value = match encoding {
            Encoding::Json => Typed::JsonVal(self.json()),
            Encoding::JsonIetf => Typed::JsonIetfVal(self.json()),
            _ => match self {
                Value::Text(text) => Typed::StringVal(text.clone()),
                Value::Number(number) => Typed::UintVal(*number),
                Value::Truth(truth) => Typed::BoolVal(*truth),
            },
        };
        TypedValue { value: Some(value) }
    }

    fn json(&self) -> Vec<u8> {
        let json = match self {
            Value::Text(text) => serde_json::Value::from(text.as_str()),
            Value::Number(number) => serde_json::Value::from(*number),
            Value::Truth(truth) => serde_json::Value::from(*truth),
        };
        json.to_string().into_bytes()
    }
}

/// Supported encodings of values.
pub(super) const ENCODINGS: [Encoding; 3] = [Encoding::Proto, Encoding::Json, Encoding::JsonIetf];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Count, Key};
    use crate::tm::Held;

    #[test]
    fn a_port_has_the_leaves_of_an_interface() {
        let veth = PortStatus {
            number: 3,
            name: "veth\"3".to_owned(),
            up: false,
            enabled: true,
            interface: Some(17),
        };
        let socket = PortStatus {
            number: 4,
            name: "unix:/run/s1.4".to_owned(),
            interface: None,
            ..veth.clone()
        };
        let leaf = |name: &str| vec![elem("..."), elem(name)];
        let value = |name: &str, port: &PortStatus| {
            let found = select(std::slice::from_ref(port), &[leaf(name)]);
            found.first().map(|leaf| leaf.value.clone())
        };
        assert_eq!(
            value("oper-status", &veth),
            Some(Value::Text("DOWN".into()))
        );
        assert_eq!(value("admin-status", &veth), Some(Value::Text("UP".into())));
        assert_eq!(value("id", &veth), Some(Value::Number(3)));
        assert_eq!(value("ifindex", &veth), Some(Value::Number(17)));
        assert_eq!(value("ifindex", &socket), None);

        let ports = [veth, socket];
        let mut all = select(&ports, &[Vec::new()]);
        assert_eq!(all.len(), 15);
        retain(&mut all, DataType::Config);
        assert_eq!(all.len(), 4);
        assert_eq!(select(&ports, &[leaf("in-pkts")]), []);

        let mut stats = PortStats::new(false);
        let count = |packets, bytes| Count { packets, bytes };
        stats.add(Place::Entered, Key::NONE, count(5, 500));
        stats.add(Place::Overrun, Key::NONE, count(2, 0));
        let port = PortSnapshot {
            number: 3,
            attachment: "veth3".to_owned(),
            connected: true,
            stats,
            held: Held::default(),
        };
        let counters = select_counters(std::slice::from_ref(&port), &[leaf("in-pkts")]);
        assert_eq!(counters[0].value, Value::Number(7));
        assert_eq!(select_counters(&[port], &[Vec::new()]).len(), 6);
        let interface = |name| vec![elem("interfaces"), entry("interface", "name", name)];
        for (pattern, known) in [
            (Vec::new(), true),
            (interface("*"), true),
            (interface("veth9"), true),
            (leaf("counters"), true),
            (leaf("out-octets"), true),
            (leaf("oper-status"), true),
            (leaf("mtu"), false),
            (vec![elem("interfaces"), elem("config")], false),
        ] {
            assert_eq!(is_known(&pattern), known, "{pattern:?}");
        }

        let text = Value::Text("a\"b".into()).encode(Encoding::JsonIetf);
        assert_eq!(text.value, Some(Typed::JsonIetfVal(br#""a\"b""#.to_vec())));
    }
}
