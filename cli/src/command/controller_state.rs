//! `--state`: where a controller stores its jobs.

use std::fs;
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

/// The file of a controller without `--state`, which has the name of its fabric. Creates its folder.
pub fn default_file(fabric: &Path) -> Result<PathBuf> {
    let folder = folder().context("pass --state FILE: neither $XDG_STATE_HOME nor $HOME is set")?;
    let made = fs::create_dir_all(&folder);
    made.with_context(|| {
        format!(
            "cannot make {}; pass --state FILE, or --state memory",
            folder.display()
        )
    })?;
    let mut name = match fabric.file_stem().filter(|_| fabric != Path::new("-")) {
        Some(name) => name.to_owned(),
        None => "controller".into(),
    };
    name.push(".redb");
    Ok(folder.join(name))
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
