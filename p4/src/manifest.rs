//! The manifest: which compiler printed the compiled files, by which command, from which sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A program that is compiled: for which target, by what, into what. Paths are relative to the repository.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The target's name, and that of its folder in `p4/compiled/`.
    pub target: &'static str,
    /// The top file, whose `#include`s name all other sources.
    top: &'static str,
    /// The command line, run in the repository's root: the compiler first.
    command: &'static [&'static str],
    /// The committed files that the compiler printed.
    outputs: &'static [&'static str],
    /// What else it leaves in the folder, of no use to anybody who runs the program.
    leftovers: &'static [&'static str],
}

const INCLUDE: &str = "p4/include";

/// For v1model: BMv2's simple_switch and the embedded switch.
pub const V1MODEL: Build = Build {
    target: "v1model",
    top: "p4/ultima_v1model.p4",
    command: &[
        "p4c-bm2-ss",
        "--arch",
        "v1model",
        "-I",
        INCLUDE,
        "--Werror",
        "-o",
        "p4/compiled/v1model/ultima.json",
        "--p4runtime-files",
        "p4/compiled/v1model/ultima.p4info.txtpb",
        "p4/ultima_v1model.p4",
    ],
    outputs: &[
        "p4/compiled/v1model/ultima.json",
        "p4/compiled/v1model/ultima.p4info.txtpb",
    ],
    leftovers: &[],
};

/// All of them.
pub const BUILDS: &[Build] = &[V1MODEL];

/// What a program's `manifest.json` holds. Paths are relative to the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The compiler's `--version`.
    pub compiler: String,
    /// The command line, run in the repository's root.
    pub command: Vec<String>,
    /// SHA-256 of every source file.
    pub sources: BTreeMap<PathBuf, String>,
    /// SHA-256 of every committed file that the compiler printed.
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
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// The compiler is not on the PATH or cannot be started.
    #[error("{compiler} cannot be started ({source}): put p4lang/p4c's on the PATH")]
    NoCompiler {
        /// What was to be started.
        compiler: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The compiler refused the program.
    #[error("{compiler} failed:\n{said}")]
    Compile {
        /// The compiler.
        compiler: &'static str,
        /// What it said.
        said: String,
    },
}

impl Build {
    /// The compiler.
    pub fn compiler(&self) -> &'static str {
        self.command[0]
    }

    /// The command line as one writes it.
    pub fn command_line(&self) -> String {
        self.command.join(" ")
    }

    /// The folder of the compiled files.
    pub fn folder(&self) -> PathBuf {
        Path::new("p4/compiled").join(self.target)
    }

    /// The manifest.
    pub fn manifest(&self) -> PathBuf {
        self.folder().join("manifest.json")
    }

    /// The compiler's version, as it prints it (to standard error, as it happens).
    ///
    /// # Errors
    /// [`ManifestError::NoCompiler`] where it is not on the PATH.
    pub fn compiler_version(&self) -> Result<String, ManifestError> {
        let output = self.run(&["--version"], Path::new("."))?;
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
    pub fn recompile(&self, root: &Path) -> Result<Manifest, ManifestError> {
        let compiler = self.compiler_version()?;
        let output = self.run(&self.command[1..], root)?;
        if !output.status.success() {
            return Err(ManifestError::Compile {
                compiler: self.compiler(),
                said: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        for leftover in self.leftovers {
            let path = root.join(leftover);
            let gone = match fs::metadata(&path) {
                Err(_) => Ok(()),
                Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
            };
            gone.map_err(|source| ManifestError::File { path, source })?;
        }
        let manifest = Manifest::of_files(self, root, compiler)?;
        let path = root.join(self.manifest());
        let text = serde_json::to_string_pretty(&manifest).expect("strings") + "\n";
        fs::write(&path, text).map_err(|source| ManifestError::File { path, source })?;
        Ok(manifest)
    }

    fn run(&self, arguments: &[&str], directory: &Path) -> Result<Output, ManifestError> {
        Command::new(self.compiler())
            .args(arguments)
            .current_dir(directory)
            .output()
            .map_err(|source| ManifestError::NoCompiler {
                compiler: self.compiler(),
                source,
            })
    }

    /// The top file and all that it includes from the repository, each once.
    fn sources(&self, root: &Path) -> Result<Vec<PathBuf>, ManifestError> {
        let mut sources = vec![PathBuf::from(self.top)];
        let mut read_to = 0;
        while let Some(source) = sources.get(read_to) {
            let text = read(root, source)?;
            for line in String::from_utf8_lossy(&text).lines() {
                let included = line
                    .strip_prefix("#include \"")
                    .and_then(|rest| rest.strip_suffix('"'))
                    .map(|name| Path::new(INCLUDE).join(name));
                if let Some(included) = included.filter(|path| !sources.contains(path)) {
                    sources.push(included);
                }
            }
            read_to += 1;
        }
        Ok(sources)
    }
}

impl Manifest {
    /// The committed manifest of a program in the repository at `root`.
    ///
    /// # Errors
    /// If it is missing or malformed.
    pub fn load(build: &Build, root: &Path) -> Result<Self, ManifestError> {
        let path = build.manifest();
        serde_json::from_slice(&read(root, &path)?)
            .map_err(|source| ManifestError::Format { path, source })
    }

    /// The manifest that would describe the files at `root` as they are, had `compiler` printed them.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_files(build: &Build, root: &Path, compiler: String) -> Result<Self, ManifestError> {
        let outputs: Vec<_> = build.outputs.iter().map(PathBuf::from).collect();
        let digests = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| Ok((path.clone(), hex(&Sha256::digest(read(root, path)?)))))
                .collect::<Result<_, ManifestError>>()
        };
        Ok(Self {
            compiler,
            command: build.command.iter().map(ToString::to_string).collect(),
            sources: digests(&build.sources(root)?)?,
            outputs: digests(&outputs)?,
        })
    }

    /// What the files at `root` and this manifest disagree about, a line each; empty where they agree.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn differences(&self, build: &Build, root: &Path) -> Result<Vec<String>, ManifestError> {
        let now = Self::of_files(build, root, self.compiler.clone())?;
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

fn read(root: &Path, path: &Path) -> Result<Vec<u8>, ManifestError> {
    let path = root.join(path);
    fs::read(&path).map_err(|source| ManifestError::File { path, source })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
