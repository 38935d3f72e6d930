//! The files of `p4/vectors/`: entries, packets, and their expected effects on every target.
//!
//! `p4/ptf/` runs them on a chip.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::Deserialize;
use ultima_p4::names::loss;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session, multicast_group};
use ultima_p4runtime::v1::{CloneSessionEntry, MeterConfig, TableEntry, Update, digest_entry};

/// The entries for every file.
const SETUP: &str = "setup.yaml";
/// The entries for v1model only.
const SETUP_OF_V1MODEL: &str = "setup_of_v1model.yaml";
/// The entries for Tofino only.
const SETUP_OF_TOFINO: &str = "setup_of_tofino.yaml";

/// The content of one file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    /// The entries that are written after the setup.
    #[serde(default)]
    pub entries: Entries,
    /// The packets, in order.
    #[serde(default)]
    pub packets: Vec<Step>,
    /// The expected counters, by array and index.
    #[serde(default)]
    pub counters: Counted,
}

/// Packets by a counter array's name and index.
pub type Counted = BTreeMap<String, BTreeMap<u32, u64>>;

/// Entries with names from P4Info.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Entries {
    tables: Vec<Row>,
    groups: Vec<Group>,
    sessions: Vec<Session>,
    meters: Vec<MeterCell>,
    digests: Vec<String>,
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

/// A clone session, or a mirror session on Tofino, with the number of bytes to copy; 0 for all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Session {
    session: u32,
    port: SessionPort,
    bytes: i32,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SessionPort {
    Port(u16),
    Named(NamedPort),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NamedPort {
    /// The session whose packets are recirculated.
    Recirculation,
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

/// A packet and its expected effects.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A short description.
    pub name: String,
    /// The ingress port.
    pub port: u16,
    #[serde(default)]
    numbers: Option<Numbers>,
    frame: String,
    out: Vec<Expected>,
    /// The expected digests.
    #[serde(default)]
    pub digests: Vec<LossDigest>,
}

/// The losses of an operation in the program's digest.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // `headers.p4` has the fields.
pub struct LossDigest {
    pub job: u16,
    pub epoch: u16,
    pub step: u32,
    pub bucket: u16,
    pub source_rank: u16,
    pub port: u16,
    pub trimmed: u32,
    pub late: u32,
    pub upstream_lost: u32,
}

/// A step that is repeated, with its packet numbers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    from: u32,
    to: u32,
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
/// If a file is not valid.
pub fn all() -> BTreeMap<String, Vectors> {
    let entries = fs::read_dir(folder()).expect("p4/vectors is in the repository");
    entries
        .map(|entry| entry.expect("it can be read").file_name())
        .map(|name| name.into_string().expect("ASCII"))
        .filter(|name| ![SETUP, SETUP_OF_V1MODEL, SETUP_OF_TOFINO].contains(&name.as_str()))
        .map(|name| {
            let vectors = load(&name);
            (name, vectors)
        })
        .collect()
}

/// The setup for v1model.
///
/// # Panics
/// If a file is not valid.
pub fn setup() -> [Entries; 2] {
    [SETUP, SETUP_OF_V1MODEL].map(|name| load(name).entries)
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../p4/vectors"))
}

fn load(name: &str) -> Vectors {
    let text = fs::read_to_string(folder().join(name)).expect("the file exists");
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

impl Entries {
    /// The P4Runtime updates for v1model.
    ///
    /// # Panics
    /// If the program lacks a name.
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
        let sessions = self.sessions.iter().map(|session| {
            let to = Replica {
                port: match session.port {
                    SessionPort::Port(port) => port.into(),
                    SessionPort::Named(NamedPort::Recirculation) => loss::SESSION_PORT.into(),
                },
                instance: 0,
            };
            let entry = clone_session(session.session, [to]);
            let entry = entry.unwrap_or_else(|error| panic!("{error}"));
            Update::insert(CloneSessionEntry {
                packet_length_bytes: session.bytes,
                ..entry
            })
        });
        let digests = self.digests.iter().map(|name| {
            let digest = names.digest(name);
            let digest = digest.unwrap_or_else(|error| panic!("{error}"));
            Update::insert(digest.entry(digest_entry::Config {
                max_timeout_ns: 10_000_000,
                max_list_size: 1,
                ack_timeout_ns: 1_000_000_000,
            }))
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
        (groups.chain(sessions))
            .chain(rows)
            .chain(meters)
            .chain(digests)
            .collect()
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
    /// The value, and the length if it is a prefix.
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
    /// The packet numbers, in order. 0 if the frame has a fixed one.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let numbers = self.numbers.unwrap_or(Numbers { from: 0, to: 0 });
        numbers.from..=numbers.to
    }

    /// The frame to send.
    ///
    /// # Panics
    /// If it is not hexadecimal.
    pub fn frame(&self, number: u32) -> Vec<u8> {
        let bytes = pattern(&self.frame, number).into_iter();
        bytes
            .map(|byte| byte.expect("a sent frame has no wildcards"))
            .collect()
    }

    /// Compares arrivals, by port, with the expected ones.
    ///
    /// # Errors
    /// A description of the first difference.
    pub fn check(&self, number: u32, arrivals: &BTreeMap<u16, Vec<Vec<u8>>>) -> Result<(), String> {
        let mut expected: BTreeMap<u16, Vec<Vec<Option<u8>>>> = BTreeMap::new();
        for copy in &self.out {
            expected
                .entry(copy.port)
                .or_default()
                .push(pattern(&copy.frame, number));
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

/// The bytes of a frame in the notation of `setup.yaml`; `None` matches any byte.
fn pattern(text: &str, number: u32) -> Vec<Option<u8>> {
    let digits: String = text
        .replace("nnnnnnnn", &format!("{number:08x}"))
        .lines()
        .map(|line| line.split('#').next().expect("a part"))
        .flat_map(str::split_whitespace)
        .map(|word| match word.split_once('*') {
            None => word.to_owned(),
            Some((word, times)) => word.repeat(times.parse().expect("a count")),
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

/// The sum over a UDP datagram and its pseudo-header (RFC 768): all ones if the checksum is correct. `None` without a checksum.
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

    /// A chip rounds rates, so the files use values that it does not change.
    #[test]
    fn chips_do_not_round_the_rates_of_the_meters() {
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
    fn words_are_repeated() {
        let (any, byte) = (None, Some);
        assert_eq!(
            pattern("01 02..*2 # 03", 0),
            [byte(1), byte(2), any, byte(2), any]
        );
        assert_eq!(pattern("nnnnnnnn", 0x201), [0, 0, 2, 1].map(Some));
    }

    #[test]
    fn wrong_bytes_lengths_and_checksums_are_detected() {
        let vectors = load("forwarding.yaml");
        let step = &vectors.packets[0];
        let out: Vec<u8> = pattern(&step.out[0].frame, 0)
            .into_iter()
            .map(|byte| byte.expect("a plain datagram has no wildcards"))
            .collect();
        let port = step.out[0].port;
        let check = |frame: Vec<u8>| step.check(0, &BTreeMap::from([(port, vec![frame])]));
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
            step.check(0, &BTreeMap::new())
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
