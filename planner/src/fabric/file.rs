//! A fabric's YAML form, before validation.

use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_yaml::Spanned;

use super::panel_file::{PortFile, PortMapFile};
use super::{MAX_MTU, MIN_MTU};
use crate::settings::{Settings, Values, settings_schema};
use crate::target::TARGETS;
use crate::yaml;

/// The most switches of a fabric. Route tables grow with the square of their number: 8 MiB at this
/// size.
pub(super) const MOST_SWITCHES: usize = 1024;

/// A fabric of Ultima: switches, hosts, and the links between them.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Ultima fabric")]
#[serde(deny_unknown_fields)]
pub(super) struct FabricFile {
    /// The switches. Their order defines the default device ids and addresses.
    #[schemars(length(min = 1, max = MOST_SWITCHES))]
    pub switches: Vec<SwitchFile>,
    /// The hosts, each linked to one port of a switch.
    #[schemars(length(min = 1))]
    pub hosts: Vec<HostFile>,
    /// The links.
    #[schemars(length(min = 1))]
    pub links: Vec<LinkFile>,
    /// Background traffic, which runs as long as a lab.
    #[serde(default)]
    pub traffic: Vec<FlowFile>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchFile {
    /// The name, unique among switches and hosts.
    #[schemars(regex(pattern = yaml::NAME))]
    pub name: String,
    /// The kind of switch. Default: v1model.
    #[serde(default)]
    #[schemars(schema_with = "target_schema")]
    pub target: Option<String>,
    /// HOST:PORT of the P4Runtime server. Default: 127.0.0.1 with ports from 9559.
    pub grpc: Option<String>,
    /// P4Runtime's device id. Default: ids from 1.
    pub device_id: Option<u64>,
    /// TLS of the P4Runtime server.
    pub tls: Option<TlsFile>,
    /// True if the ports' queues drain at their links' rates. Default: depends on the target.
    pub line_rate_queues: Option<bool>,
    /// Limits below the target's.
    #[serde(default)]
    #[schemars(with = "Option<LimitsFile>")]
    pub limits: LimitsFile,
    /// The vendor of a Tofino's P4Runtime server.
    pub server: Option<ServerFile>,
    /// The front panel's wiring: the board's name, or the first device port of each connector.
    #[serde(default)]
    #[schemars(schema_with = "port_map_schema")]
    pub port_map: Option<PortMapFile>,
    /// The default speed of the switch's ports.
    pub speed: Option<String>,
    /// The default forward error correction.
    pub fec: Option<String>,
    /// True if ports negotiate their speed with the other end.
    pub autoneg: Option<bool>,
    /// Settings of single ports, or of all channels of a connector.
    pub ports: Option<Vec<PortFile>>,
}

/// The vendor of a Tofino's P4Runtime server.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerFile {
    Stratum,
    Pi,
}

/// TLS of a switch's server: files in PEM format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsFile {
    /// The trusted certificate authorities.
    pub ca: PathBuf,
    /// The client certificate.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
}

/// Limits below the target's, for switches that share their replication engine with other uses.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsFile {
    /// Multicast groups.
    pub groups: Option<u32>,
    /// Replicas (port and RID) of one group.
    pub group_replicas: Option<u32>,
    /// Nodes over all groups.
    pub nodes: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HostFile {
    /// The name, unique among switches and hosts.
    #[schemars(regex(pattern = yaml::NAME))]
    pub name: String,
    /// The MAC address: six hexadecimal octets with colons, quoted.
    pub mac: String,
    /// The IPv4 address in the fabric.
    #[schemars(extend("format" = "ipv4"))]
    pub ip: String,
    /// The number of ranks of one job for which the host has room. Default: 1.
    #[schemars(range(min = 1))]
    pub ranks: Option<u16>,
    /// The UDP port of the host's first rank.
    #[schemars(range(min = 1))]
    pub udp_port: Option<u16>,
}

/// A link. Its settings have the names of `ultima wire`'s; `a_to_b` and `b_to_a` override them for
/// one direction.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = with_alias)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkFile {
    /// The ends A and B: a host's name, or SWITCH/PORT.
    #[schemars(with = "[String; 2]")]
    pub ends: Vec<String>,
    /// Bytes of the largest IPv4 packet. Default: 1500.
    #[schemars(range(min = MIN_MTU, max = MAX_MTU))]
    pub mtu: Option<u32>,
    /// Bits per second.
    #[schemars(with = "Option<Values>")]
    rate: Option<Spanned<Values>>,
    /// The delay of a frame.
    #[schemars(with = "Option<Values>")]
    delay: Option<Spanned<Values>>,
    /// Frames per second, whatever their length.
    #[serde(alias = "packet-rate")]
    #[schemars(with = "Option<Values>")]
    packet_rate: Option<Spanned<Values>>,
    /// Flows of other jobs that share the rate: their share of it, and their mean size in bytes.
    #[schemars(with = "Option<Values>")]
    background: Option<Spanned<Values>>,
    /// Random extra delay.
    #[schemars(with = "Option<Values>")]
    jitter: Option<Spanned<Values>>,
    /// True if frames may overtake each other.
    #[schemars(with = "Option<Values>")]
    reorder: Option<Spanned<Values>>,
    /// Random loss: a ratio, or a ratio and the mean length of bursts.
    #[schemars(with = "Option<Values>")]
    loss: Option<Spanned<Values>>,
    /// Bytes of the queue in front of the link.
    #[schemars(with = "Option<Values>")]
    queue: Option<Spanned<Values>>,
    /// Frames of the queue in front of the link.
    #[serde(alias = "queue-packets")]
    #[schemars(with = "Option<Values>")]
    queue_packets: Option<Spanned<Values>>,
    /// The queue length from which frames are ECN-marked.
    #[schemars(with = "Option<Values>")]
    ecn: Option<Spanned<Values>>,
    /// Settings from A to B only.
    #[serde(default)]
    #[schemars(schema_with = "settings_schema")]
    pub a_to_b: Settings,
    /// Settings from B to A only.
    #[serde(default)]
    #[schemars(schema_with = "settings_schema")]
    pub b_to_a: Settings,
}

/// The schema of target names.
fn target_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    json_schema!({ "enum": names })
}

/// The schema of a port map: a board's name, or numbers by connector.
fn port_map_schema(_: &mut SchemaGenerator) -> Schema {
    let port = json_schema!({ "type": "integer", "minimum": 0, "maximum": 65535 });
    json_schema!({
        "anyOf": [
            { "type": "string" },
            { "type": "object", "propertyNames": { "pattern": "^[0-9]+$" }, "additionalProperties": port },
            { "type": "null" },
        ],
    })
}

/// Adds the aliases of settings with two words, which derived schemas lack.
fn with_alias(schema: &mut Schema) {
    let properties = schema
        .get_mut("properties")
        .and_then(|it| it.as_object_mut());
    let Some(properties) = properties else { return };
    for (name, alias) in [
        ("queue_packets", "queue-packets"),
        ("packet_rate", "packet-rate"),
    ] {
        if let Some(setting) = properties.get(name).cloned() {
            properties.insert(alias.to_owned(), setting);
        }
    }
}

impl LinkFile {
    /// The settings that are given for both directions.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&str, &Spanned<Values>)> {
        let all = [
            ("rate", &self.rate),
            ("packet-rate", &self.packet_rate),
            ("background", &self.background),
            ("delay", &self.delay),
            ("jitter", &self.jitter),
            ("reorder", &self.reorder),
            ("loss", &self.loss),
            ("queue", &self.queue),
            ("queue-packets", &self.queue_packets),
            ("ecn", &self.ecn),
        ];
        all.into_iter()
            .filter_map(|(name, values)| Some((name, values.as_ref()?)))
    }
}

/// Background traffic.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowFile {
    /// The sending host.
    pub from: String,
    /// The receiving host.
    pub to: String,
    /// The protocol.
    #[serde(default)]
    pub protocol: ProtocolFile,
    /// Bits per second, for UDP only.
    pub rate: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ProtocolFile {
    #[default]
    Udp,
    Tcp,
}
