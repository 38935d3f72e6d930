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
            Action::Differs => "differs",
            Action::Deleted => "deleted",
            Action::WouldBeDeleted => "would be deleted",
        };
        text.to_owned()
    }
}

impl Text for Applied {
    /// The action as text, with the switches that are behind.
    fn text(&self) -> String {
        let text = self.action.text();
        match self.pending_switches.is_empty() {
            true => text,
            false => format!("{text}; {}", pending(&self.pending_switches.join(", "))),
        }
    }
}
