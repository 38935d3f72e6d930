//! Removal of a lab.

use std::path::Path;

use crate::error::LabError;
use crate::folder::{self, Folder, Lock};
use crate::name::LabName;
use crate::{ip, namespace, process};

/// The numbers of removed processes and namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Stopped processes, including those that users started in the lab.
    pub processes: usize,
    /// Removed namespaces, with all their interfaces.
    pub namespaces: usize,
}

/// Removes a lab, complete or not.
///
/// # Errors
/// The lab does not exist, or a process or namespace cannot be removed; a retry may succeed.
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

/// Stops the processes, then removes the namespaces, then the folder: if `down` is killed, the next one finds
/// the rest.
pub(crate) fn remove(name: &LabName, lock: &Lock) -> Result<Removed, LabError> {
    let folder = Folder::of(name);
    let namespaces = namespace::all_of(name)?;
    let own = namespace::identity(Path::new("/proc/self/ns/net"));
    // A file of that name that is not a namespace has another device.
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
