//! The folders of running labs: paths, state, and the lock.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::error::LabError;
use crate::name::LabName;
use crate::namespace;
use crate::plan::PlannedSwitch;
use crate::state::State;

/// The folder of all labs. Like labs, it does not survive a reboot.
const LABS: &str = "/run/ultima/labs";
/// The lock of commands that create or remove labs.
const LOCK: &str = "/run/ultima/labs/.lock";

/// One lab's folder.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of the lab `name`, existing or not.
    pub fn of(name: &LabName) -> Self {
        Folder(Path::new(LABS).join(name.as_str()))
    }

    /// Creates it, empty.
    pub fn make(&self) -> Result<(), LabError> {
        make(&self.0).map_err(LabError::file(&self.0))?;
        make(&self.logs()).map_err(LabError::file(self.logs()))
    }

    /// True if it exists.
    pub fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Removes it, if it exists.
    pub fn remove(&self) -> Result<(), LabError> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::file(&self.0)(error))
            }
            _ => Ok(()),
        }
    }

    /// The fabric's text when the lab was created.
    pub fn fabric(&self) -> PathBuf {
        self.0.join("fabric.yaml")
    }

    /// The hosts' /etc/hosts.
    pub fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// The controller's socket.
    pub fn controller(&self) -> PathBuf {
        self.0.join("controller.sock")
    }

    /// The log of a process.
    pub fn log(&self, role: &str) -> PathBuf {
        self.logs().join(format!("{role}.log"))
    }

    /// The socket for BMv2's notifications.
    pub fn notifications(&self, switch: &PlannedSwitch) -> PathBuf {
        self.0.join(format!("bmv2-{}", switch.thrift_port))
    }

    fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    fn state_file(&self) -> PathBuf {
        self.0.join("lab.json")
    }

    /// Writes a whole file.
    pub fn write(&self, path: &Path, content: &str) -> Result<(), LabError> {
        fs::write(path, content).map_err(LabError::file(path))
    }

    /// Writes the lab's state atomically: after a crash the file has the old state or the new one.
    pub fn put(&self, state: &State) -> Result<(), LabError> {
        let (path, new) = (self.state_file(), self.0.join("lab.json.new"));
        let text = serde_json::to_string_pretty(state)
            .map_err(|error| LabError::file(&path)(error.into()))?;
        self.write(&new, &text)?;
        fs::rename(&new, &path).map_err(LabError::file(path))
    }

    /// The lab's state. None if it is missing or unreadable.
    pub fn state(&self) -> Option<State> {
        let text = fs::read_to_string(self.state_file()).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Only root has access.
fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The address of a lab's controller, as clients accept it.
pub fn controller_address(name: &LabName) -> String {
    format!("unix:{}", Folder::of(name).controller().display())
}

/// The names of all labs with a folder or namespace.
///
/// # Errors
/// The folders cannot be listed.
pub fn names() -> Result<Vec<LabName>, LabError> {
    let mut names = namespace::labs()?;
    let entries = match fs::read_dir(LABS) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(LabError::NotRoot);
        }
        entries => Some(entries.map_err(LabError::file(LABS))?),
    };
    let folders = entries.into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_type().ok()?.is_dir().then_some(())?;
        entry.file_name().to_str()?.parse().ok()
    });
    names.extend(folders);
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The lock of commands that create or remove labs. The end of its processes releases it.
///
/// The last holder removes the file and the folder of all labs, unless a lab is left: an ordinary user cannot read the folder.
pub struct Lock(File);

impl Lock {
    /// Waits for the lock.
    pub fn take() -> Result<Lock, LabError> {
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).write(true);
            let made = make(Path::new(LABS)).and_then(|()| options.open(LOCK));
            let file = match made {
                // The last holder has removed the folder in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(LabError::file(LOCK))?,
            };
            file.lock().map_err(LabError::file(LOCK))?;
            let locked = file.metadata().map_err(LabError::file(LOCK))?;
            // The last holder may have removed the file while this process waited.
            if fs::metadata(LOCK)
                .is_ok_and(|it| (it.dev(), it.ino()) == (locked.dev(), locked.ino()))
            {
                return Ok(Lock(file));
            }
        }
    }

    /// A handle that lets a child process hold the lock too.
    pub fn share(&self) -> Result<Stdio, LabError> {
        let file = self.0.try_clone();
        Ok(file
            .map_err(LabError::system("cannot share the lock"))?
            .into())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let is_last = fs::read_dir(LABS).is_ok_and(|entries| entries.count() == 1);
        if is_last && fs::remove_file(LOCK).is_ok() {
            // Fails if another process has made a lock in the folder since.
            if fs::remove_dir(LABS).is_ok() {
                let _ = Path::new(LABS).parent().map(fs::remove_dir);
            }
        }
    }
}
