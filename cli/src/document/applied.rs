//! What is done about the jobs of files.

use serde::Serialize;

/// What was done about a job, as it is printed.
#[derive(Serialize)]
pub struct Applied {
    /// The job's name.
    pub name: String,
    /// What that was.
    pub action: Action,
    /// In what the job that is there is another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
}

/// What is done about a job, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Unchanged,
    Created,
    WouldBeCreated,
    /// Its members are on the way to be those of the file.
    Resized,
    WouldBeResized,
    /// What would be done about it, the controller would refuse; its plan says why.
    WouldBeRefused,
    Differs,
}

impl Action {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Action::Unchanged => "unchanged",
            Action::Created => "created",
            Action::WouldBeCreated => "would be created",
            Action::Resized => "resized, where it runs as soon as newcomers have joined",
            Action::WouldBeResized => "would be resized",
            Action::WouldBeRefused => "would be refused",
            Action::Differs => "differs",
        }
    }
}

impl Applied {
    /// One that does not differ.
    pub fn new(name: &str, action: Action) -> Self {
        Applied {
            name: name.to_owned(),
            action,
            differs: Vec::new(),
        }
    }

    /// Why it cannot be made what its file says.
    pub fn refusal(&self) -> Option<String> {
        let differs = self.differs.join("; ");
        (self.action == Action::Differs)
            .then(|| format!("{differs}; delete it first, or correct the file"))
    }
}
