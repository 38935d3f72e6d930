//! Named network namespaces, as `ip netns` stores them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

use nix::sched::{CloneFlags, setns};

use crate::error::LabError;
use crate::name::LabName;

/// The folder of named namespaces (ip-netns(8)).
const FOLDER: &str = "/run/netns";
/// Prefix of labs' namespaces. Names of fabrics and labs have no colon.
const PREFIX: &str = "ultima:";

/// The namespace of a lab's switches.
pub fn of_lab(name: &LabName) -> String {
    format!("{PREFIX}{name}")
}

/// The namespace of a lab's host.
pub fn of_host(name: &LabName, host: &str) -> String {
    format!("{PREFIX}{name}:{host}")
}

/// The file of a namespace.
pub fn path(namespace: &str) -> PathBuf {
    Path::new(FOLDER).join(namespace)
}

/// True if the namespace exists.
pub fn exists(namespace: &str) -> bool {
    path(namespace).exists()
}

/// The existing namespaces of a lab, whatever created them.
pub fn all_of(name: &LabName) -> Result<Vec<String>, LabError> {
    let (lab, hosts) = (of_lab(name), format!("{}:", of_lab(name)));
    let of_lab = |found: &String| *found == lab || found.starts_with(&hosts);
    Ok(all()?.into_iter().filter(of_lab).collect())
}

/// The names of all labs with a namespace.
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

/// A namespace's identity: device and inode of its file in the kernel.
pub type Identity = (u64, u64);

/// The identity of a namespace's file. None if it is another file.
pub fn identity(file: &Path) -> Option<Identity> {
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino()))
}

/// Runs `work` on a thread in a namespace. Its child processes are in there, too.
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

/// Opens the file of a namespace.
pub fn open(namespace: &str) -> Result<File, LabError> {
    let path = path(namespace);
    File::open(&path).map_err(LabError::file(path))
}

/// Moves the calling thread into a namespace.
pub fn enter(file: &File, namespace: &str) -> Result<(), LabError> {
    setns(file, CloneFlags::CLONE_NEWNET).map_err(LabError::system(format!(
        "cannot enter the namespace {namespace}"
    )))
}
