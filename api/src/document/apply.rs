//! The actions that `ultima apply` takes, or would take, for each job of its files.

use serde::Serialize;

/// The action for one job.
#[derive(Clone, Debug, Serialize)]
pub struct Applied {
    /// The job's name.
    pub name: String,
    /// The action.
    pub action: Action,
    /// The settings that change, or would change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// The fields in which the existing job differs from its file, and which cannot change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// Disconnected switches, from which the controller removes the deleted job when they are back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending_switches: Vec<String>,
}

/// An action, done or planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Unchanged,
    Created,
    WouldBeCreated,
    /// The controller has started to give the job the members of its file.
    Resized,
    WouldBeResized,
    /// The job has other settings.
    Changed,
    WouldBeChanged,
    /// The controller would reject the change; its plan has the reason.
    WouldBeRejected,
    Differs,
    /// Deleted, because no file has the job.
    Deleted,
    WouldBeDeleted,
}

impl Applied {
    /// An action for a job that does not differ.
    pub fn new(name: &str, action: Action) -> Self {
        Applied {
            name: name.to_owned(),
            action,
            changes: Vec::new(),
            differs: Vec::new(),
            pending_switches: Vec::new(),
        }
    }

    /// Why `apply` cannot change the job to match its file.
    pub fn rejection(&self) -> Option<String> {
        let differs = self.differs.join("; ");
        (self.action == Action::Differs)
            .then(|| format!("{differs}; delete the job first, or correct the file"))
    }
}
