//! What is kept of labs while they are up.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::error::LabError;
use crate::name::LabName;
use crate::namespace;
use crate::plan::PlannedSwitch;
use crate::state::State;

/// Where labs are kept: it does not outlive the machine's running, and neither do they.
const LABS: &str = "/run/ultima/labs";

/// One lab's folder.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of the lab of this name, whether it is there or not.
    pub fn of(name: &LabName) -> Self {
        Folder(Path::new(LABS).join(name.as_str()))
    }

    /// Makes it, empty.
    pub fn make(&self) -> Result<(), LabError> {
        make(&self.0).map_err(LabError::file(&self.0))?;
        make(&self.logs()).map_err(LabError::file(self.logs()))
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Takes it away, if it is there.
    pub fn remove(&self) -> Result<(), LabError> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::file(&self.0)(error))
            }
            _ => Ok(()),
        }
    }

    /// The fabric, as it was when the lab was made.
    pub fn fabric(&self) -> PathBuf {
        self.0.join("fabric.yaml")
    }

    /// What hosts find as /etc/hosts.
    pub fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// The controller's socket.
    pub fn controller(&self) -> PathBuf {
        self.0.join("controller.sock")
    }

    /// What a process has to say.
    pub fn log(&self, role: &str) -> PathBuf {
        self.logs().join(format!("{role}.log"))
    }

    /// The socket at which BMv2 tells what it learns.
    pub fn notifications(&self, switch: &PlannedSwitch) -> PathBuf {
        self.0.join(format!("bmv2-{}", switch.thrift_port))
    }

    fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    fn state_file(&self) -> PathBuf {
        self.0.join("lab.json")
    }

    /// Writes a file whole.
    pub fn write(&self, path: &Path, content: &str) -> Result<(), LabError> {
        fs::write(path, content).map_err(LabError::file(path))
    }

    /// Puts down how the lab stands: all of it or, for one who is killed meanwhile, what stood there before.
    pub fn put(&self, state: &State) -> Result<(), LabError> {
        let (path, new) = (self.state_file(), self.0.join("lab.json.new"));
        let text = serde_json::to_string_pretty(state)
            .map_err(|error| LabError::file(&path)(error.into()))?;
        self.write(&new, &text)?;
        fs::rename(&new, &path).map_err(LabError::file(path))
    }

    /// How the lab stands; none where that is not, or not readably, written.
    pub fn state(&self) -> Option<State> {
        let text = fs::read_to_string(self.state_file()).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Only root has a business there.
fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Where the controller of a lab listens, as its clients write it.
pub fn controller_address(name: &LabName) -> String {
    format!("unix:{}", Folder::of(name).controller().display())
}

/// All labs of which there is anything, by name.
///
/// # Errors
/// The folders that list them cannot be read.
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

/// One command at a time makes or ends labs; a killed one lets go.
pub struct Lock(File);

impl Lock {
    /// Waits until no other command makes or ends a lab.
    pub fn take() -> Result<Lock, LabError> {
        make(Path::new(LABS)).map_err(LabError::file(LABS))?;
        let path = Path::new(LABS).join(".lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(LabError::file(&path))?;
        file.lock().map_err(LabError::file(path))?;
        Ok(Lock(file))
    }

    /// For a process that is to hold it, too.
    pub fn share(&self) -> Result<Stdio, LabError> {
        let file = self.0.try_clone();
        Ok(file
            .map_err(LabError::system("cannot share the lock"))?
            .into())
    }
}
