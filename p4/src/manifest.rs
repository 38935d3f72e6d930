//! The manifest: which compiler printed the compiled files, by which command, from which sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The compiler for v1model.
pub const COMPILER: &str = "p4c-bm2-ss";
/// The manifest of the v1model program, relative to the repository.
pub const V1MODEL: &str = "p4/compiled/v1model/manifest.json";

const COMMAND: [&str; 11] = [
    COMPILER,
    "--arch",
    "v1model",
    "-I",
    "p4/include",
    "--Werror",
    "-o",
    "p4/compiled/v1model/ultima.json",
    "--p4runtime-files",
    "p4/compiled/v1model/ultima.p4info.txtpb",
    "p4/ultima_v1model.p4",
];

/// What `p4/compiled/v1model/manifest.json` holds. Paths are relative to the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The compiler's `--version`.
    pub compiler: String,
    /// The command line, run in the repository's root.
    pub command: Vec<String>,
    /// SHA-256 of every source file.
    pub sources: BTreeMap<PathBuf, String>,
    /// SHA-256 of every file that the compiler printed.
    pub outputs: BTreeMap<PathBuf, String>,
}

/// Why the compiled files could not be checked or made.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The manifest is not valid JSON of the right form.
    #[error("{V1MODEL}: {0}")]
    Format(#[from] serde_json::Error),
    /// The compiler is not on the PATH or cannot be started.
    #[error("{COMPILER} cannot be started ({0}): put p4lang/p4c's on the PATH")]
    NoCompiler(io::Error),
    /// The compiler refused the program.
    #[error("{COMPILER} failed:\n{0}")]
    Compile(String),
}

impl Manifest {
    /// The committed manifest of the repository at `root`.
    ///
    /// # Errors
    /// If it is missing or malformed.
    pub fn load(root: &Path) -> Result<Self, ManifestError> {
        Ok(serde_json::from_slice(&read(root, Path::new(V1MODEL))?)?)
    }

    /// The manifest that would describe the files at `root` as they are, had `compiler` printed them.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_files(root: &Path, compiler: String) -> Result<Self, ManifestError> {
        let mut sources = vec![PathBuf::from("p4/ultima_v1model.p4")];
        let include = root.join("p4/include");
        let entries = fs::read_dir(&include)
            .and_then(|entries| entries.collect::<io::Result<Vec<_>>>())
            .map_err(|source| ManifestError::File {
                path: include,
                source,
            })?;
        sources.extend(
            entries
                .iter()
                .map(|entry| Path::new("p4/include").join(entry.file_name())),
        );
        let outputs = [COMMAND[7], COMMAND[9]].map(PathBuf::from);
        let digests = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| Ok((path.clone(), hex(&Sha256::digest(read(root, path)?)))))
                .collect::<Result<_, ManifestError>>()
        };
        Ok(Self {
            compiler,
            command: COMMAND.map(String::from).to_vec(),
            sources: digests(&sources)?,
            outputs: digests(&outputs)?,
        })
    }

    /// What the files at `root` and this manifest disagree about, a line each; empty where they agree.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn differences(&self, root: &Path) -> Result<Vec<String>, ManifestError> {
        let now = Self::of_files(root, self.compiler.clone())?;
        let mut lines = Vec::new();
        if now.command != self.command {
            lines.push(format!(
                "command: {} is not {}",
                self.command.join(" "),
                now.command.join(" ")
            ));
        }
        for (recorded, found) in [(&self.sources, &now.sources), (&self.outputs, &now.outputs)] {
            for (path, digest) in found {
                match recorded.get(path) {
                    None => lines.push(format!("{}: not in the manifest", path.display())),
                    Some(other) if other != digest => {
                        lines.push(format!("{}: changed since it was compiled", path.display()));
                    }
                    Some(_) => {}
                }
            }
            for path in recorded.keys().filter(|path| !found.contains_key(*path)) {
                lines.push(format!("{}: in the manifest, but gone", path.display()));
            }
        }
        Ok(lines)
    }
}

/// The compiler's version, as it prints it (to standard error, as it happens).
///
/// # Errors
/// [`ManifestError::NoCompiler`] where it is not on the PATH.
pub fn compiler_version() -> Result<String, ManifestError> {
    let output = Command::new(COMPILER)
        .arg("--version")
        .output()
        .map_err(ManifestError::NoCompiler)?;
    let words = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&words)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" "))
}

/// Compiles the program in the repository at `root`, in place, and writes its manifest.
///
/// # Errors
/// If the compiler is missing, refuses the program, or a file cannot be written.
pub fn recompile(root: &Path) -> Result<Manifest, ManifestError> {
    let compiler = compiler_version()?;
    let output = Command::new(COMMAND[0])
        .args(&COMMAND[1..])
        .current_dir(root)
        .output()
        .map_err(ManifestError::NoCompiler)?;
    if !output.status.success() {
        return Err(ManifestError::Compile(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    let manifest = Manifest::of_files(root, compiler)?;
    let path = root.join(V1MODEL);
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    fs::write(&path, text).map_err(|source| ManifestError::File { path, source })?;
    Ok(manifest)
}

fn read(root: &Path, path: &Path) -> Result<Vec<u8>, ManifestError> {
    let path = root.join(path);
    fs::read(&path).map_err(|source| ManifestError::File { path, source })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
