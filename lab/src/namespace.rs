//! Named network namespaces, as `ip netns` keeps them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

use nix::sched::{CloneFlags, setns};

use crate::error::LabError;
use crate::name::LabName;

/// Where named namespaces are (ip-netns(8)).
const FOLDER: &str = "/run/netns";
/// What the names of ours begin with. A colon cannot stand in a name of a fabric or lab.
const PREFIX: &str = "ultima:";

/// The namespace of a lab's switches.
pub fn of_lab(name: &LabName) -> String {
    format!("{PREFIX}{name}")
}

/// The namespace of a lab's host.
pub fn of_host(name: &LabName, host: &str) -> String {
    format!("{PREFIX}{name}:{host}")
}

/// The file that keeps a namespace.
pub fn path(namespace: &str) -> PathBuf {
    Path::new(FOLDER).join(namespace)
}

/// Whether there is one of that name.
pub fn exists(namespace: &str) -> bool {
    path(namespace).exists()
}

/// The namespaces of a lab that there are, whoever made them.
pub fn all_of(name: &LabName) -> Result<Vec<String>, LabError> {
    let (lab, hosts) = (of_lab(name), format!("{}:", of_lab(name)));
    let of_lab = |found: &String| *found == lab || found.starts_with(&hosts);
    Ok(all()?.into_iter().filter(of_lab).collect())
}

/// The names of all labs that have a namespace.
pub fn labs() -> Result<Vec<LabName>, LabError> {
    let lab = |namespace: String| {
        let name = namespace.strip_prefix(PREFIX)?;
        name.split(':').next()?.parse().ok()
    };
    Ok(all()?.into_iter().filter_map(lab).collect())
}

fn all() -> Result<Vec<String>, LabError> {
    let entries = match fs::read_dir(FOLDER) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(LabError::file(FOLDER))?,
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    Ok(entries.filter_map(name).collect())
}

/// What tells namespaces apart: device and inode of the kernel's file of one.
pub type Identity = (u64, u64);

/// The identity of a file of a namespace; none where it keeps none.
pub fn identity(file: &Path) -> Option<Identity> {
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino()))
}

/// Runs `work` on a thread in a namespace. Processes that it starts are in there, too.
pub fn within<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    let file = open(namespace)?;
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            enter(&file, namespace)?;
            work()
        });
        inside
            .join()
            .unwrap_or_else(|cause| panic::resume_unwind(cause))
    })
}

/// The file that keeps a namespace, open.
pub fn open(namespace: &str) -> Result<File, LabError> {
    let path = path(namespace);
    File::open(&path).map_err(LabError::file(path))
}

/// Puts the calling thread into a namespace.
pub fn enter(file: &File, namespace: &str) -> Result<(), LabError> {
    setns(file, CloneFlags::CLONE_NEWNET).map_err(LabError::system(format!(
        "cannot enter the namespace {namespace}"
    )))
}
