//! The result of `ultima job check`.

use ultima_api::document::{Check, Path, TestedPath};
use ultima_console::output::table;

use super::Text;

/// Paths that are shown of one finding. JSON has all.
const SHOWN: usize = 12;

impl Text for Check {
    /// The findings with advice, then a table of the paths that lost packets.
    fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            text += &format!("{}: {}\n", finding.hop, finding.problem);
            if !finding.paths.is_empty() {
                let mut paths: Vec<String> = finding.paths.iter().map(Path::text).collect();
                if let Some(more) = paths.len().checked_sub(SHOWN).filter(|more| *more > 1) {
                    paths.truncate(SHOWN);
                    paths.push(format!("and {more} more"));
                }
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
}

impl Text for Path {
    fn text(&self) -> String {
        let multicast = if self.multicast { " (multicast)" } else { "" };
        format!("{}→{}{multicast}", self.from, self.to)
    }
}
