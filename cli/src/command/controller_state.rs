//! `--state`: where a controller stores its jobs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{env, io};

use anyhow::{Context, Result};
use nix::unistd::Uid;
use ultima_controller::store::etcd;

/// A store.
#[derive(Clone, Debug)]
pub enum State {
    /// A database file.
    File(PathBuf),
    /// Memory.
    Memory,
    /// etcd.
    Etcd(Box<etcd::Config>),
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("etcd://") {
            Some(rest) => match etcd::Config::parse(rest) {
                Some(cluster) => Ok(State::Etcd(Box::new(cluster))),
                None => Err(
                    "expected etcd://HOST:PORT,.../PREFIX, such as etcd://127.0.0.1:2379/ultima"
                        .into(),
                ),
            },
            None if text == "memory" => Ok(State::Memory),
            None => Ok(State::File(text.into())),
        }
    }
}

/// The file of a controller without `--state`: `STEM-DIGEST.redb`, where STEM is the stem of the fabric's file and DIGEST is the
/// FNV-1a hash of its path, because fabrics in different folders may have the same name. Creates its folder.
pub fn default_file(fabric: &Path) -> Result<PathBuf> {
    let folder = folder().context("pass --state FILE: neither $XDG_STATE_HOME nor $HOME is set")?;
    let made = fs::create_dir_all(&folder);
    made.with_context(|| {
        format!(
            "cannot make {}; pass --state FILE, or --state memory",
            folder.display()
        )
    })?;
    Ok(folder.join(name_of(fabric)))
}

/// The name of that file.
fn name_of(fabric: &Path) -> OsString {
    // A fabric on standard input has no path.
    let mut name = OsString::from("controller");
    if let Ok(path) = fabric.canonicalize()
        && let Some(stem) = path.file_stem()
    {
        let bytes = path.as_os_str().as_bytes().iter();
        let digest = bytes.fold(0xcbf2_9ce4_8422_2325, |digest: u64, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        name = stem.to_owned();
        name.push(format!("-{digest:016x}"));
    }
    name.push(".redb");
    name
}

fn folder() -> io::Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let state = match (set("XDG_STATE_HOME"), Uid::effective().is_root()) {
        (Some(state), _) => PathBuf::from(state),
        (None, true) => PathBuf::from("/var/lib"),
        (None, false) => {
            let home = set("HOME").ok_or(io::ErrorKind::NotFound)?;
            Path::new(&home).join(".local/state")
        }
    };
    Ok(state.join("ultima"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_of_one_name_have_stores_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ["a", "b"].map(|name| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder).expect("made");
            let file = folder.join("fabric.yaml");
            fs::write(&file, "").expect("written");
            name_of(&file)
        });
        assert_ne!(files[0], files[1]);
        // By another path to the same file.
        let file = folder.path().join("a/../a/fabric.yaml");
        assert_eq!(name_of(&file), files[0]);
        let link = folder.path().join("link.yaml");
        std::os::unix::fs::symlink(&file, &link).expect("made");
        assert_eq!(name_of(&link), files[0]);
        assert_eq!(name_of(Path::new("-")), "controller.redb");
    }
}
