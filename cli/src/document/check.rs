//! The result of `ultima job check`.

use serde::Serialize;
use ultima_api::v1 as api;

use ultima_console::output::table;

/// The result of a check.
#[derive(Serialize)]
pub struct Report {
    /// True if packets arrive on every path and all members respond.
    pub ok: bool,
    findings: Vec<Finding>,
    paths: Vec<TestedPath>,
    /// Ranks of the members that took part.
    responding: Vec<u32>,
}

#[derive(Serialize)]
struct Finding {
    hop: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_name: Option<String>,
    problem: String,
    advice: String,
    paths: Vec<Path>,
}

#[derive(Clone, Copy, Serialize)]
struct Path {
    from: u32,
    to: u32,
    multicast: bool,
}

#[derive(Serialize)]
struct TestedPath {
    #[serde(flatten)]
    path: Path,
    sent: u32,
    short_received: u32,
    full_received: u32,
    hops: u32,
}

impl From<&api::CheckJobResponse> for Report {
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

impl Report {
    /// The findings with advice, then a table of the paths that lost packets.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            text += &format!("{}: {}\n", finding.hop, finding.problem);
            if !finding.paths.is_empty() {
                let paths: Vec<String> = finding.paths.iter().map(Path::text).collect();
                text += &format!("  affected paths: {}\n", paths.join(", "));
            }
            text += &format!("  {}\n", finding.advice);
        }
        let lossy: Vec<&TestedPath> = self.paths.iter().filter(|path| path.is_lossy()).collect();
        if !lossy.is_empty() {
            let header = ["PATH", "SENT", "SHORT-RECEIVED", "FULL-RECEIVED", "HOPS"];
            let rows = lossy.iter().map(|tested| {
                [
                    tested.path.text(),
                    tested.sent.to_string(),
                    tested.short_received.to_string(),
                    tested.full_received.to_string(),
                    tested.hops.to_string(),
                ]
            });
            text += &table(header, rows);
        }
        if self.ok {
            text += &match lossy.len() {
                0 => format!(
                    "members that respond: {}; packets arrive on every tested path ({})\n",
                    self.responding.len(),
                    self.paths.len()
                ),
                lossy => format!("packets arrive on every path; {lossy} of them lose some\n"),
            };
        }
        text
    }

    /// True if the check found no problem.
    pub fn is_ok(&self) -> bool {
        self.ok
    }
}

impl TestedPath {
    fn is_lossy(&self) -> bool {
        self.short_received < self.sent || self.full_received < self.sent
    }
}

impl Path {
    fn text(&self) -> String {
        let multicast = if self.multicast { " (multicast)" } else { "" };
        format!("{}→{}{multicast}", self.from, self.to)
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
