//! The data tree: what is known of each port, as OpenConfig's model of interfaces has it.
//!
//! An interface is called as its port is attached (`veth1`, `unix:PATH`), and `state/id` is the port's number in the program, as in
//! Stratum.

use ultima_gnmi::path::{elem, entry, leads_to};
use ultima_gnmi::v0::get_request::DataType;
use ultima_gnmi::v0::typed_value::Value as Typed;
use ultima_gnmi::v0::{Encoding, ModelData, PathElem, TypedValue};

use crate::datapath::PortStatus;

/// The model, in the version whose leaves these are.
pub(super) fn model() -> ModelData {
    ModelData {
        name: "openconfig-interfaces".to_owned(),
        organization: "OpenConfig working group".to_owned(),
        version: "3.7.2".to_owned(),
    }
}

/// What a leaf says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    Truth(bool),
}

/// One leaf.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Leaf {
    pub(super) path: Vec<PathElem>,
    pub(super) value: Value,
}

/// Whether a leaf is wished, or so.
fn is_config(leaf: &[PathElem]) -> bool {
    leaf.iter().any(|elem| elem.name == "config")
}

/// The leaves of these ports to which one of `patterns` leads.
pub(super) fn select(ports: &[PortStatus], patterns: &[Vec<PathElem>]) -> Vec<Leaf> {
    let all = ports.iter().flat_map(of);
    all.filter(|leaf| patterns.iter().any(|pattern| leads_to(pattern, &leaf.path)))
        .collect()
}

/// Those among them that are of a type.
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
    /// As a message, in an encoding that is [supported](ENCODINGS).
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

/// Encodings of values that are known here.
pub(super) const ENCODINGS: [Encoding; 3] = [Encoding::Proto, Encoding::Json, Encoding::JsonIetf];

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = Value::Text("a\"b".into()).encode(Encoding::JsonIetf);
        assert_eq!(text.value, Some(Typed::JsonIetfVal(br#""a\"b""#.to_vec())));
    }
}
