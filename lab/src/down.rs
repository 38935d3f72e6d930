//! Ending a lab.

use std::path::Path;

use crate::error::LabError;
use crate::folder::{self, Folder, Lock};
use crate::name::LabName;
use crate::{ip, namespace, process};

/// What there was of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Processes that were stopped, those that users had started there among them.
    pub processes: usize,
    /// Namespaces, with all interfaces in them.
    pub namespaces: usize,
}

/// Ends a lab, whatever is left of it.
///
/// # Errors
/// There is none of that name; or something of it cannot be ended, which a second try may.
pub fn down(name: &LabName) -> Result<Removed, LabError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    let lock = Lock::take()?;
    let known = folder::names()?;
    if !known.contains(name) {
        let name = name.clone();
        return Err(LabError::NoLab { name, known });
    }
    remove(name, &lock)
}

/// Stops the processes, then lets go of the namespaces, then of the folder: what a killed `down` leaves the next one
/// still finds.
pub(crate) fn remove(name: &LabName, lock: &Lock) -> Result<Removed, LabError> {
    let folder = Folder::of(name);
    let namespaces = namespace::all_of(name)?;
    let own = namespace::identity(Path::new("/proc/self/ns/net"));
    // A file of that name that keeps no namespace is on another device than those that do.
    let identities: Vec<_> = namespaces
        .iter()
        .filter_map(|namespace| namespace::identity(&namespace::path(namespace)))
        .collect();
    if own.is_some_and(|own| identities.contains(&own)) {
        return Err(LabError::Inside { name: name.clone() });
    }
    let started = folder.state().map(|state| state.processes);
    let recorded = started.unwrap_or_default();
    let recorded: Vec<_> = recorded.iter().map(|started| started.process).collect();
    let processes = process::stop(name, &identities, &recorded)?;
    for namespace in &namespaces {
        ip::delete_namespace(namespace, lock)?;
    }
    folder.remove()?;
    Ok(Removed {
        processes,
        namespaces: namespaces.len(),
    })
}
