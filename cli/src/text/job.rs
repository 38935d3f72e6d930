//! Deleted jobs.

use ultima_api::document::Deleted;

use super::Text;

impl Text for Deleted {
    /// A line for the job, and one for the pending switches.
    fn text(&self) -> String {
        let mut text = format!("deleted {}\n", self.name);
        if !self.pending_switches.is_empty() {
            text += &pending(&self.pending_switches.join(", "));
            text.push('\n');
        }
        text
    }
}

/// The line about disconnected switches that have entries of a deleted job.
pub fn pending(switches: &str) -> String {
    format!("disconnected: {switches}; the controller removes the job there when they are back")
}
