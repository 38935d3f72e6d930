//! The actions of `ultima apply`.

use ultima_api::document::{Action, Applied};

use super::{Text, pending};

impl Text for Action {
    fn text(&self) -> String {
        let text = match self {
            Action::Unchanged => "unchanged",
            Action::Created => "created",
            Action::WouldBeCreated => "would be created",
            Action::Resized => "resized; a running job changes when all new members have joined",
            Action::WouldBeResized => "would be resized",
            Action::WouldBeRejected => "would be rejected",
            Action::Changed => "changed",
            Action::WouldBeChanged => "would be changed",
            Action::Differs => "differs",
            Action::Deleted => "deleted",
            Action::WouldBeDeleted => "would be deleted",
        };
        text.to_owned()
    }
}

impl Text for Applied {
    /// The action as text, with the changed settings, and the switches that are behind.
    fn text(&self) -> String {
        let mut text = self.action.text();
        if !self.changes.is_empty() {
            text = format!("{text} ({})", self.changes.join(", "));
        }
        match self.pending_switches.is_empty() {
            true => text,
            false => format!("{text}; {}", pending(&self.pending_switches.join(", "))),
        }
    }
}
