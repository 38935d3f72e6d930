//! What a check of a job found, for people and for scripts.

use serde::Serialize;
use ultima_controller::api;

use ultima_console::output::table;

/// What a check found.
#[derive(Serialize)]
pub struct Report {
    /// Whether packets arrive by every way and all members take part.
    pub ok: bool,
    findings: Vec<Finding>,
    ways: Vec<Way>,
    attending: Vec<u32>,
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
    what: String,
    advice: String,
    paths: Vec<Path>,
}

#[derive(Clone, Copy, Serialize)]
struct Path {
    from: u32,
    to: u32,
    by_group: bool,
}

#[derive(Serialize)]
struct Way {
    #[serde(flatten)]
    path: Path,
    sent: u32,
    short_came: u32,
    full_came: u32,
    hops: u32,
}

impl From<&api::CheckJobResponse> for Report {
    fn from(check: &api::CheckJobResponse) -> Self {
        let findings = check.findings.iter().map(|finding| Finding {
            hop: name(finding.hop()),
            switch: Some(finding.switch.clone()).filter(|switch| !switch.is_empty()),
            port: Some(finding.port).filter(|port| *port > 0),
            port_name: Some(finding.port_name.clone()).filter(|name| !name.is_empty()),
            what: finding.what.clone(),
            advice: finding.advice.clone(),
            paths: finding.paths.iter().map(path).collect(),
        });
        let ways = check.ways.iter().map(|way| Way {
            path: path(&way.path.unwrap_or_default()),
            sent: way.sent,
            short_came: way.short_came,
            full_came: way.full_came,
            hops: way.hops,
        });
        Self {
            ok: check.findings.is_empty(),
            findings: findings.collect(),
            ways: ways.collect(),
            attending: check.attending.clone(),
        }
    }
}

impl Report {
    /// What was found and what to do; then how many packets came by each way that lost some.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            text += &format!("{}: {}\n", finding.hop, finding.what);
            if !finding.paths.is_empty() {
                let paths: Vec<String> = finding.paths.iter().map(Path::text).collect();
                text += &format!("  closes {}\n", paths.join(", "));
            }
            text += &format!("  {}\n", finding.advice);
        }
        let lossy: Vec<&Way> = self.ways.iter().filter(|way| way.is_lossy()).collect();
        if !lossy.is_empty() {
            let header = ["WAY", "SENT", "SHORT CAME", "FULL CAME", "HOPS"];
            let rows = lossy.iter().map(|way| {
                [
                    way.path.text(),
                    way.sent.to_string(),
                    way.short_came.to_string(),
                    way.full_came.to_string(),
                    way.hops.to_string(),
                ]
            });
            text += &table(header, rows);
        }
        if self.ok {
            text += &match lossy.len() {
                0 => format!(
                    "{} members attend; packets arrive by all {} ways that were tried\n",
                    self.attending.len(),
                    self.ways.len()
                ),
                lossy => format!("some packets arrive by every way; {lossy} ways lose some\n"),
            };
        }
        text
    }

    /// Whether packets arrive by every way.
    pub fn is_ok(&self) -> bool {
        self.ok
    }
}

impl Way {
    fn is_lossy(&self) -> bool {
        self.short_came < self.sent || self.full_came < self.sent
    }
}

impl Path {
    fn text(&self) -> String {
        let by = if self.by_group { " by group" } else { "" };
        format!("{}→{}{by}", self.from, self.to)
    }
}

fn path(path: &api::Path) -> Path {
    Path {
        from: path.from,
        to: path.to,
        by_group: path.by_group,
    }
}

fn name(hop: api::Hop) -> &'static str {
    match hop {
        api::Hop::Unspecified => "unknown",
        api::Hop::Member => "member",
        api::Hop::OwnSocket => "own socket",
        api::Hop::FirstPort => "first switch's port",
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
