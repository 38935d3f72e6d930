//! How labs stand.

use serde::Serialize;
use ultima_controller::fabric;

use crate::error::LabError;
use crate::folder::{self, Folder};
use crate::name::LabName;
use crate::namespace;
use crate::plan::Plan;
use crate::state::{Started, State};

/// A lab, as it is.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Where its controller listens.
    pub controller: String,
    /// What is written of it; none where a command that made it was killed at once.
    pub state: Option<State>,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// What it consists of.
    pub plan: Option<Plan>,
    /// Namespaces that it should have and that somebody has deleted.
    pub missing: Vec<String>,
}

/// A process of a lab, as it is.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessStatus {
    /// What it is and where its log is.
    #[serde(flatten)]
    pub started: Started,
    /// Whether it still runs.
    pub runs: bool,
}

impl Status {
    /// Whether everything was made, is there and runs.
    pub fn is_well(&self) -> bool {
        let complete = self.state.as_ref().is_some_and(|state| state.complete);
        let runs = self.processes.iter().all(|process| process.runs);
        complete && runs && self.missing.is_empty()
    }
}

/// How the lab of this name stands.
///
/// # Errors
/// There is none.
pub fn status(name: &LabName) -> Result<Status, LabError> {
    let known = folder::names()?;
    if !known.contains(name) {
        let name = name.clone();
        return Err(LabError::NoLab { name, known });
    }
    let state = Folder::of(name).state();
    let started = state.iter().flat_map(|state| state.processes.clone());
    let processes = started.map(|started| ProcessStatus {
        runs: started.process.runs(),
        started,
    });
    let plan = plan(name).ok();
    let namespaces = plan.iter().flat_map(Plan::namespaces);
    let missing = namespaces.filter(|namespace| !namespace::exists(namespace));
    Ok(Status {
        name: name.to_string(),
        controller: folder::controller_address(name),
        processes: processes.collect(),
        missing: missing.map(str::to_owned).collect(),
        plan,
        state,
    })
}

/// What a lab consists of.
pub(crate) fn plan(name: &LabName) -> Result<Plan, LabError> {
    let fabric = fabric::load(&Folder::of(name).fabric())?;
    Plan::new(name, &fabric)
}
