//! A fabric's YAML form, before anything is known to be right about it.

use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_yaml::Spanned;

use super::check::MOST_SWITCHES;
use super::panel_file::{PortFile, PortMapFile};
use super::{MAX_MTU, MIN_MTU};
use crate::settings::{Settings, Values, settings_schema};
use crate::target::TARGETS;
use crate::yaml;

/// A fabric of Ultima: switches, hosts, and the links between them.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "Ultima fabric")]
#[serde(deny_unknown_fields)]
pub(super) struct FabricFile {
    /// The switches; their places give device ids and addresses where they say none.
    #[schemars(with = "Vec<SwitchFile>", length(min = 1, max = MOST_SWITCHES))]
    pub switches: Spanned<Vec<SwitchFile>>,
    /// The hosts, each linked to one port of a switch.
    #[schemars(with = "Vec<HostFile>", length(min = 1))]
    pub hosts: Spanned<Vec<HostFile>>,
    /// The links.
    #[schemars(with = "Vec<LinkFile>", length(min = 1))]
    pub links: Spanned<Vec<LinkFile>>,
    /// Traffic that is no job's, from a lab's start to its end.
    #[serde(default)]
    pub traffic: Vec<FlowFile>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchFile {
    /// Unique among switches and hosts.
    #[schemars(with = "String", regex(pattern = yaml::NAME))]
    pub name: Spanned<String>,
    /// What it is; v1model where it is not said.
    #[serde(default)]
    #[schemars(schema_with = "target_schema")]
    pub target: Option<Spanned<String>>,
    /// Where its P4Runtime server listens, HOST:PORT; 127.0.0.1 from port 9559 on where it is not said.
    #[schemars(with = "Option<String>")]
    pub grpc: Option<Spanned<String>>,
    /// P4Runtime's device id; from 1 on where it is not said.
    #[schemars(with = "Option<u64>")]
    pub device_id: Option<Spanned<u64>>,
    /// For a server that serves TLS.
    pub tls: Option<TlsFile>,
    /// Whether its ports' queues drain at the rates of their links; as its target's where it is not said.
    pub line_rate_queues: Option<bool>,
    /// Limits below its target's.
    #[serde(default)]
    #[schemars(with = "Option<LimitsFile>")]
    pub limits: LimitsFile,
    /// Whose P4Runtime server a Tofino has.
    #[schemars(with = "Option<ServerFile>")]
    pub server: Option<Spanned<ServerFile>>,
    /// Of a switch with a front panel: its board's name, or the first device port of each connector.
    #[serde(default)]
    #[schemars(schema_with = "port_map_schema")]
    pub port_map: Option<Spanned<PortMapFile>>,
    /// What its ports are set to, where `ports` does not say something else.
    #[schemars(with = "Option<String>")]
    pub speed: Option<Spanned<String>>,
    /// Forward error correction.
    #[schemars(with = "Option<String>")]
    pub fec: Option<Spanned<String>>,
    /// Whether ports agree on their speed with the other end.
    #[schemars(with = "Option<bool>")]
    pub autoneg: Option<Spanned<bool>>,
    /// What single ports, or all channels of a connector, are set to.
    #[schemars(with = "Option<Vec<PortFile>>")]
    pub ports: Option<Spanned<Vec<PortFile>>>,
}

/// Whose P4Runtime server a Tofino has.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerFile {
    Stratum,
    Pi,
}

/// How a switch's server is spoken to that serves TLS: files in PEM format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsFile {
    /// Authorities whose certificates are believed.
    #[schemars(with = "String")]
    pub ca: Spanned<PathBuf>,
    /// Our certificate.
    #[schemars(with = "Option<String>")]
    pub cert: Option<Spanned<PathBuf>>,
    /// Its key.
    #[schemars(with = "Option<String>")]
    pub key: Option<Spanned<PathBuf>>,
}

/// Limits below the target's, for switches that share their replication engine with others.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsFile {
    /// Multicast groups.
    #[schemars(with = "Option<u32>")]
    pub groups: Option<Spanned<u32>>,
    /// Replicas (port and RID) of one group.
    #[schemars(with = "Option<u32>")]
    pub group_replicas: Option<Spanned<u32>>,
    /// Nodes over all groups.
    #[schemars(with = "Option<u32>")]
    pub nodes: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HostFile {
    /// Unique among switches and hosts.
    #[schemars(with = "String", regex(pattern = yaml::NAME))]
    pub name: Spanned<String>,
    /// Six octets in hexadecimal with colons, quoted.
    #[schemars(with = "String")]
    pub mac: Spanned<String>,
    /// Its IPv4 address in the fabric.
    #[schemars(with = "String", extend("format" = "ipv4"))]
    pub ip: Spanned<String>,
    /// How many ranks of one job it has room for; 1 where it is not said.
    #[schemars(with = "Option<u16>", range(min = 1))]
    pub ranks: Option<Spanned<u16>>,
    /// The UDP port of its first rank.
    #[schemars(with = "Option<u16>", range(min = 1))]
    pub udp_port: Option<Spanned<u16>>,
}

/// A link. Its settings are called as `ultima wire` calls them; those of both directions stand here, those of
/// one in `a_to_b` and `b_to_a`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = with_alias)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkFile {
    /// A and B: a host's name, or SWITCH/PORT.
    #[schemars(with = "[String; 2]")]
    pub ends: Spanned<Vec<Spanned<String>>>,
    /// Bytes of the largest IPv4 packet; 1500 where it is not said.
    #[schemars(with = "Option<u32>", range(min = MIN_MTU, max = MAX_MTU))]
    pub mtu: Option<Spanned<u32>>,
    /// Bits per second.
    #[schemars(with = "Option<Values>")]
    rate: Option<Spanned<Values>>,
    /// How long a frame is under way.
    #[schemars(with = "Option<Values>")]
    delay: Option<Spanned<Values>>,
    /// What is added to the delay, at random.
    #[schemars(with = "Option<Values>")]
    jitter: Option<Spanned<Values>>,
    /// Whether frames may overtake each other.
    #[schemars(with = "Option<Values>")]
    reorder: Option<Spanned<Values>>,
    /// What is lost at random: a share, or a share and the length of bursts.
    #[schemars(with = "Option<Values>")]
    loss: Option<Spanned<Values>>,
    /// Bytes of the queue before it.
    #[schemars(with = "Option<Values>")]
    queue: Option<Spanned<Values>>,
    /// Frames of the queue before it.
    #[serde(alias = "queue-packets")]
    #[schemars(with = "Option<Values>")]
    queue_packets: Option<Spanned<Values>>,
    /// Where ECN marks begin.
    #[schemars(with = "Option<Values>")]
    ecn: Option<Spanned<Values>>,
    /// What is different from A to B.
    #[serde(default)]
    #[schemars(schema_with = "settings_schema")]
    pub a_to_b: Settings,
    /// What is different from B to A.
    #[serde(default)]
    #[schemars(schema_with = "settings_schema")]
    pub b_to_a: Settings,
}

/// Names of targets.
fn target_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    json_schema!({ "enum": names })
}

/// A name, or numbers by connector.
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

/// The other way to write `queue_packets`, which a derived schema does not know.
fn with_alias(schema: &mut Schema) {
    if let Some(properties) = schema
        .get_mut("properties")
        .and_then(|it| it.as_object_mut())
        && let Some(queue) = properties.get("queue_packets").cloned()
    {
        properties.insert("queue-packets".to_owned(), queue);
    }
}

impl LinkFile {
    /// The settings of both directions that are given.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&str, &Spanned<Values>)> {
        let all = [
            ("rate", &self.rate),
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

/// Traffic that is no job's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowFile {
    /// The host that sends.
    #[schemars(with = "String")]
    pub from: Spanned<String>,
    /// The host that receives.
    #[schemars(with = "String")]
    pub to: Spanned<String>,
    /// What it is.
    #[serde(default)]
    pub protocol: ProtocolFile,
    /// Bits per second; what UDP needs, and TCP may have.
    #[schemars(with = "Option<String>")]
    pub rate: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ProtocolFile {
    #[default]
    Udp,
    Tcp,
}
