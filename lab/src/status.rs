//! The status of labs.

use serde::Serialize;
use ultima_planner::fabric;

use crate::error::LabError;
use crate::folder::{self, Folder};
use crate::name::LabName;
use crate::namespace;
use crate::plan::Plan;
use crate::state::{Started, State};

/// A lab's status.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The address of its controller.
    pub controller: String,
    /// Its stored state. None if the command that created it was killed early.
    pub state: Option<State>,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// Its plan.
    pub plan: Option<Plan>,
    /// Its namespaces that were deleted.
    pub missing: Vec<String>,
}

/// The status of a process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessStatus {
    /// Its role, identity and log.
    #[serde(flatten)]
    pub started: Started,
    /// True if it still runs.
    pub runs: bool,
}

impl Status {
    /// True if the lab is complete, exists and runs.
    pub fn is_well(&self) -> bool {
        let complete = self.state.as_ref().is_some_and(|state| state.complete);
        let runs = self.processes.iter().all(|process| process.runs);
        complete && runs && self.missing.is_empty()
    }
}

/// Returns the status of the lab `name`.
///
/// # Errors
/// The lab does not exist.
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

/// The plan of a lab.
pub(crate) fn plan(name: &LabName) -> Result<Plan, LabError> {
    let fabric = fabric::load(&Folder::of(name).fabric())?;
    Plan::new(name, &fabric)
}
