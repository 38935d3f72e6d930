//! The vectors of `p4/vectors/`: packets with the entries that they meet, and what must come of them on every target.
//!
//! `p4/ptf/` runs the same files on a chip.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::Deserialize;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, multicast_group};
use ultima_p4runtime::v1::{MeterConfig, TableEntry, Update};

/// What every vector starts from.
const SETUP: &str = "setup.yaml";
/// What only Tofino needs, which takes packets that it cuts another way.
const SETUP_OF_TOFINO: &str = "setup_of_tofino.yaml";

/// One file: a story told in packets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    /// What is written beside the setup.
    #[serde(default)]
    pub entries: Entries,
    /// Sent one after the other.
    #[serde(default)]
    pub packets: Vec<Step>,
    /// Packets counted by all of them, by array and index.
    #[serde(default)]
    pub counters: Counted,
}

/// Packets by a counter array's name and index.
pub type Counted = BTreeMap<String, BTreeMap<u32, u64>>;

/// What is written over P4Runtime, by names of P4Info.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Entries {
    tables: Vec<Row>,
    groups: Vec<Group>,
    meters: Vec<MeterCell>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    table: String,
    #[serde(rename = "match")]
    key: BTreeMap<String, Value>,
    action: String,
    params: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    group: u32,
    replicas: Vec<GroupReplica>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupReplica {
    port: u16,
    rid: u16,
}

/// Rates in bytes per second, bursts in bytes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeterCell {
    meter: String,
    index: u64,
    cir: i64,
    cburst: i64,
    pir: i64,
    pburst: i64,
}

/// A number, an IPv4 address, a prefix of one, or a MAC address.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u64),
    Text(String),
}

/// A packet, and what must come out for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What is tried.
    pub name: String,
    /// Where it goes in.
    pub port: u16,
    frame: String,
    out: Vec<Expected>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    port: u16,
    frame: String,
}

/// All files but the setups, by name.
///
/// # Panics
/// If one is none.
pub fn all() -> BTreeMap<String, Vectors> {
    let entries = fs::read_dir(folder()).expect("p4/vectors is in the repository");
    entries
        .map(|entry| entry.expect("it can be read").file_name())
        .map(|name| name.into_string().expect("ASCII"))
        .filter(|name| name != SETUP && name != SETUP_OF_TOFINO)
        .map(|name| {
            let vectors = load(&name);
            (name, vectors)
        })
        .collect()
}

/// What every vector starts from.
///
/// # Panics
/// If the file is none.
pub fn setup() -> Entries {
    load(SETUP).entries
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../p4/vectors"))
}

fn load(name: &str) -> Vectors {
    let text = fs::read_to_string(folder().join(name)).expect("it was found");
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

impl Entries {
    /// As P4Runtime writes them.
    ///
    /// # Panics
    /// If the program has no such place.
    pub fn updates(&self, names: &Names) -> Vec<Update> {
        let rows = self
            .tables
            .iter()
            .map(|row| Update::insert(row.entry(names)));
        let groups = self.groups.iter().map(|group| {
            let replicas = group.replicas.iter().map(|replica| Replica {
                port: replica.port.into(),
                instance: replica.rid.into(),
            });
            let group = multicast_group(group.group, replicas);
            Update::insert(group.unwrap_or_else(|error| panic!("{error}")))
        });
        let meters = self.meters.iter().map(|cell| {
            let meter = names.meter(&cell.meter);
            let entry = meter
                .unwrap_or_else(|error| panic!("{error}"))
                .cell(cell.index);
            let mut entry = entry.unwrap_or_else(|error| panic!("{error}"));
            entry.config = Some(MeterConfig {
                cir: cell.cir,
                cburst: cell.cburst,
                pir: cell.pir,
                pburst: cell.pburst,
                ..MeterConfig::default()
            });
            Update::modify(entry)
        });
        groups.chain(rows).chain(meters).collect()
    }
}

impl Row {
    fn entry(&self, names: &Names) -> TableEntry {
        let table = names
            .table(&self.table)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut entry = table.entry();
        for (field, value) in &self.key {
            let (value, prefix) = value.read();
            let filled = match prefix {
                None => entry.exact(field, value),
                Some(length) => entry.lpm(field, value, length),
            };
            entry = filled.unwrap_or_else(|error| panic!("{error}"));
        }
        let params: Vec<_> = self
            .params
            .iter()
            .map(|(name, value)| (name.as_str(), value.read().0))
            .collect();
        entry
            .action(&self.action, &params)
            .and_then(|entry| entry.build())
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Value {
    /// The value, and how many of its bits count if it is a prefix.
    fn read(&self) -> (Bytestring, Option<u32>) {
        let text = match self {
            Value::Number(number) => return ((*number).into(), None),
            Value::Text(text) => text,
        };
        if text.contains(':') {
            let octets: Vec<u8> = text
                .split(':')
                .map(|octet| u8::from_str_radix(octet, 16).expect("a MAC address"))
                .collect();
            return (<[u8; 6]>::try_from(octets).expect("six").into(), None);
        }
        let (address, prefix) = match text.split_once('/') {
            None => (text.as_str(), None),
            Some((address, prefix)) => (address, Some(prefix.parse().expect("a length"))),
        };
        let address: Ipv4Addr = address.parse().expect("an IPv4 address");
        (address.into(), prefix)
    }
}

impl Step {
    /// The frame that is sent.
    ///
    /// # Panics
    /// If it is not all hexadecimal.
    pub fn frame(&self) -> Vec<u8> {
        let bytes = pattern(&self.frame).into_iter();
        bytes
            .map(|byte| byte.expect("what is sent is known"))
            .collect()
    }

    /// Why these arrivals, by port, are not what must come out.
    ///
    /// # Errors
    /// What is another, in words.
    pub fn check(&self, arrivals: &BTreeMap<u16, Vec<Vec<u8>>>) -> Result<(), String> {
        let mut expected: BTreeMap<u16, Vec<Vec<Option<u8>>>> = BTreeMap::new();
        for copy in &self.out {
            expected
                .entry(copy.port)
                .or_default()
                .push(pattern(&copy.frame));
        }
        let ports = expected.keys().chain(arrivals.keys());
        for port in ports.collect::<std::collections::BTreeSet<_>>() {
            let expected = expected.get(port).map_or(&[][..], Vec::as_slice);
            let arrived = arrivals.get(port).map_or(&[][..], Vec::as_slice);
            if arrived.len() != expected.len() {
                return Err(format!(
                    "{} frames out of port {port} are not {}: {arrived:02x?}",
                    arrived.len(),
                    expected.len()
                ));
            }
            for (arrived, expected) in arrived.iter().zip(expected) {
                matches(arrived, expected).map_err(|why| format!("out of port {port}: {why}"))?;
            }
        }
        Ok(())
    }
}

/// The bytes of a frame as it is written: hexadecimal, `..` for any byte, and what `#` begins is a remark; `*` and a number
/// behind a word say how often it comes.
fn pattern(text: &str) -> Vec<Option<u8>> {
    let digits: String = text
        .lines()
        .map(|line| line.split('#').next().expect("there is always a first"))
        .flat_map(str::split_whitespace)
        .map(|word| match word.split_once('*') {
            None => word.to_owned(),
            Some((word, times)) => word.repeat(times.parse().expect("how often")),
        })
        .collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    (0..digits.len())
        .step_by(2)
        .map(|at| match &digits[at..at + 2] {
            ".." => None,
            byte => Some(u8::from_str_radix(byte, 16).expect("hexadecimal")),
        })
        .collect()
}

fn matches(arrived: &[u8], expected: &[Option<u8>]) -> Result<(), String> {
    if arrived.len() != expected.len() {
        return Err(format!(
            "{} bytes are not {}: {arrived:02x?}",
            arrived.len(),
            expected.len()
        ));
    }
    for (at, (arrived, expected)) in arrived.iter().zip(expected).enumerate() {
        if let Some(expected) = expected
            && arrived != expected
        {
            return Err(format!("byte {at} is {arrived:02x}, not {expected:02x}"));
        }
    }
    if udp_sum(arrived).is_some_and(|sum| sum != 0xffff) {
        return Err("its UDP checksum is wrong".into());
    }
    Ok(())
}

/// The sum over a UDP datagram and its pseudo-header (RFC 768), which is all ones where the checksum is right; none
/// where there is none.
fn udp_sum(frame: &[u8]) -> Option<u16> {
    const IPV4: usize = 14;
    const UDP: usize = IPV4 + 20;
    if frame.len() < UDP + 8 || frame[12..14] != [8, 0] || frame[IPV4 + 9] != 17 {
        return None;
    }
    if frame[UDP + 6..UDP + 8] == [0, 0] {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([frame[UDP + 4], frame[UDP + 5]]));
    let datagram = frame.get(UDP..UDP + length)?;
    let words = frame[IPV4 + 12..UDP].chunks(2).chain(datagram.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |byte| u32::from(*byte)))
        .sum();
    let mut sum = sum + 17 + u32::try_from(length).expect("16 bits");
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ultima_p4runtime::tofino::METER;
    use ultima_p4runtime::v1::entity::Entity;

    /// So they are the same on a chip, which rounds what it is told.
    #[test]
    fn chips_keep_the_meters_as_they_are_written() {
        let names = names();
        let configs: Vec<MeterConfig> = (all().values())
            .flat_map(|vectors| vectors.entries.updates(&names))
            .filter_map(|update| match update.entity?.entity? {
                Entity::MeterEntry(cell) => cell.config,
                _ => None,
            })
            .collect();
        assert!(!configs.is_empty(), "some vector has a meter");
        for config in configs {
            assert_eq!(METER.kept(&config), config);
        }
    }

    fn names() -> Names {
        let info = ultima_p4runtime::text::parse(ultima_p4::v1model().p4info);
        Names::new(info.expect("P4Info")).expect("names")
    }

    #[test]
    fn words_come_as_often_as_is_said() {
        let (any, byte) = (None, Some);
        assert_eq!(
            pattern("01 02..*2 # 03"),
            [byte(1), byte(2), any, byte(2), any]
        );
    }

    #[test]
    fn another_byte_another_length_and_a_wrong_checksum_are_noticed() {
        let vectors = load("forwarding.yaml");
        let step = &vectors.packets[0];
        let out: Vec<u8> = pattern(&step.out[0].frame)
            .into_iter()
            .map(|byte| byte.expect("a plain datagram has no times"))
            .collect();
        let port = step.out[0].port;
        let check = |frame: Vec<u8>| step.check(&BTreeMap::from([(port, vec![frame])]));
        assert_eq!(check(out.clone()), Ok(()));
        assert!(
            check(out[1..].to_vec())
                .unwrap_err()
                .contains("bytes are not")
        );
        let mut other = out.clone();
        other[0] ^= 1;
        assert!(check(other).unwrap_err().contains("byte 0 is 03"));
        assert!(
            step.check(&BTreeMap::new())
                .unwrap_err()
                .contains("0 frames out of port 4")
        );

        let mut wrong = out;
        wrong[45] ^= 1;
        let any = vec![None; wrong.len()];
        assert_eq!(
            matches(&wrong, &any),
            Err("its UDP checksum is wrong".into())
        );
    }
}
