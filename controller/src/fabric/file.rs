//! A fabric's YAML form, before anything is known to be right about it.

use std::path::PathBuf;

use serde::Deserialize;
use serde_yaml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FabricFile {
    pub switches: Spanned<Vec<SwitchFile>>,
    pub hosts: Spanned<Vec<HostFile>>,
    pub links: Spanned<Vec<LinkFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchFile {
    pub name: Spanned<String>,
    pub target: Spanned<String>,
    pub grpc: Spanned<String>,
    pub device_id: Spanned<u64>,
    pub tls: Option<TlsFile>,
    #[serde(default)]
    pub limits: LimitsFile,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkFile {
    pub ends: Spanned<Vec<Spanned<String>>>,
}
