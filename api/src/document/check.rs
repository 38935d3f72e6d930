//! The result of `ultima job check`.

use crate::v1 as api;
use serde::Serialize;

/// The result of a check.
#[derive(Serialize)]
pub struct Check {
    /// True if packets arrive on every path and all members respond.
    pub ok: bool,
    pub findings: Vec<Finding>,
    pub paths: Vec<TestedPath>,
    /// Ranks of the members that took part.
    pub responding: Vec<u32>,
}

#[derive(Serialize)]
pub struct Finding {
    pub hop: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    pub problem: String,
    pub advice: String,
    pub paths: Vec<Path>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Path {
    pub from: u32,
    pub to: u32,
    pub multicast: bool,
}

#[derive(Serialize)]
pub struct TestedPath {
    #[serde(flatten)]
    pub path: Path,
    pub sent: u32,
    pub short_received: u32,
    pub full_received: u32,
    pub hops: u32,
}

impl From<&api::CheckJobResponse> for Check {
    fn from(check: &api::CheckJobResponse) -> Self {
        let findings = check.findings.iter().map(|finding| Finding {
            hop: name(finding.hop()),
            switch: Some(finding.switch.clone()).filter(|switch| !switch.is_empty()),
            port: Some(finding.port).filter(|port| *port > 0),
            port_name: Some(finding.port_name.clone()).filter(|name| !name.is_empty()),
            problem: finding.what.clone(),
            advice: finding.advice.clone(),
            paths: finding.paths.iter().map(path).collect(),
        });
        let paths = check.paths.iter().map(|tested| TestedPath {
            path: path(&tested.path.unwrap_or_default()),
            sent: tested.sent,
            short_received: tested.short_came,
            full_received: tested.full_came,
            hops: tested.hops,
        });
        Self {
            ok: check.findings.is_empty(),
            findings: findings.collect(),
            paths: paths.collect(),
            responding: check.attending.clone(),
        }
    }
}

impl Check {
    /// True if the check found no problem.
    pub fn is_ok(&self) -> bool {
        self.ok
    }
}

impl TestedPath {
    /// True if packets of the path were lost.
    pub fn is_lossy(&self) -> bool {
        self.short_received < self.sent || self.full_received < self.sent
    }
}

fn path(path: &api::Path) -> Path {
    Path {
        from: path.from,
        to: path.to,
        multicast: path.by_group,
    }
}

fn name(hop: api::Hop) -> &'static str {
    match hop {
        api::Hop::Unspecified => "unknown",
        api::Hop::Member => "member",
        api::Hop::OwnSocket => "sender's socket",
        api::Hop::FirstPort => "first switch port",
        api::Hop::Admission => "admission",
        api::Hop::Group => "group",
        api::Hop::Route => "route",
        api::Hop::Egress => "egress",
        api::Hop::Link => "link",
        api::Hop::ReceiverSocket => "receiver's socket",
        api::Hop::Mtu => "mtu",
        api::Hop::Switch => "switch",
    }
}
