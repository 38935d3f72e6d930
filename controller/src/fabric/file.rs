//! A fabric's YAML form, before anything is known to be right about it.

use std::path::PathBuf;

use serde::Deserialize;
use serde_yaml::Spanned;

use super::panel_file::{PortFile, PortMapFile};
use crate::settings::{Settings, Values};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FabricFile {
    pub switches: Spanned<Vec<SwitchFile>>,
    pub hosts: Spanned<Vec<HostFile>>,
    pub links: Spanned<Vec<LinkFile>>,
    #[serde(default)]
    pub traffic: Vec<FlowFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchFile {
    pub name: Spanned<String>,
    pub target: Option<Spanned<String>>,
    pub grpc: Option<Spanned<String>>,
    pub device_id: Option<Spanned<u64>>,
    pub tls: Option<TlsFile>,
    pub line_rate_queues: Option<bool>,
    #[serde(default)]
    pub limits: LimitsFile,
    pub server: Option<Spanned<ServerFile>>,
    pub port_map: Option<Spanned<PortMapFile>>,
    pub speed: Option<Spanned<String>>,
    pub fec: Option<Spanned<String>>,
    pub autoneg: Option<Spanned<bool>>,
    pub ports: Option<Spanned<Vec<PortFile>>>,
}

/// Whose P4Runtime server a Tofino has.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerFile {
    Stratum,
    Pi,
}

/// How a switch's server is spoken to that serves TLS: files in PEM format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsFile {
    pub ca: Spanned<PathBuf>,
    pub cert: Option<Spanned<PathBuf>>,
    pub key: Option<Spanned<PathBuf>>,
}

/// Limits below the target's, for switches that share their replication engine with others.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsFile {
    pub groups: Option<Spanned<u32>>,
    pub group_replicas: Option<Spanned<u32>>,
    pub nodes: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostFile {
    pub name: Spanned<String>,
    pub mac: Spanned<String>,
    pub ip: Spanned<String>,
    pub ranks: Option<Spanned<u16>>,
    pub udp_port: Option<Spanned<u16>>,
}

/// A link. Its settings are called as `ultima wire` calls them; those of both directions stand here, those of
/// one in `a_to_b` and `b_to_a`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkFile {
    pub ends: Spanned<Vec<Spanned<String>>>,
    pub mtu: Option<Spanned<u32>>,
    rate: Option<Spanned<Values>>,
    delay: Option<Spanned<Values>>,
    jitter: Option<Spanned<Values>>,
    reorder: Option<Spanned<Values>>,
    loss: Option<Spanned<Values>>,
    queue: Option<Spanned<Values>>,
    #[serde(alias = "queue-packets")]
    queue_packets: Option<Spanned<Values>>,
    ecn: Option<Spanned<Values>>,
    #[serde(default)]
    pub a_to_b: Settings,
    #[serde(default)]
    pub b_to_a: Settings,
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
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowFile {
    pub from: Spanned<String>,
    pub to: Spanned<String>,
    #[serde(default)]
    pub protocol: ProtocolFile,
    pub rate: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ProtocolFile {
    #[default]
    Udp,
    Tcp,
}
