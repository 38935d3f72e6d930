//! Manifests of the compiled files: the compiler, its command lines, and the digests of sources and outputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{normal, schema};

/// How a program is compiled for a target. Paths are relative to the repository.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The target, which is also the name of its folder in `p4/compiled/`.
    pub target: &'static str,
    /// The main source file; its `#include`s name all others.
    top: &'static str,
    /// The command lines, run in order in the repository's root. The first one runs the compiler.
    commands: &'static [&'static [&'static str]],
    /// The committed outputs.
    outputs: &'static [&'static str],
    /// Further outputs, deleted after each run: no target loads them.
    leftovers: &'static [&'static str],
    /// Outputs that are committed in the form of [`normal::json`].
    json: &'static [&'static str],
    /// Outputs that are committed in the form of `normal::binary`.
    binaries: &'static [&'static str],
    /// Outputs whose order differs between runs. The old file stays if both mean the same ([`schema`]).
    unordered: &'static [&'static str],
    /// The output that names the compiler's version and commit, if `--version` does not print the commit.
    version_in: Option<&'static str>,
}

const INCLUDE: &str = "p4/include";

/// The program for v1model: BMv2's simple_switch and the embedded switch.
pub const V1MODEL: Build = Build {
    target: "v1model",
    top: "p4/ultima_v1model.p4",
    commands: &[&[
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
    ]],
    outputs: &[
        "p4/compiled/v1model/ultima.json",
        "p4/compiled/v1model/ultima.p4info.txtpb",
    ],
    leftovers: &[],
    json: &["p4/compiled/v1model/ultima.json"],
    binaries: &[],
    unordered: &[],
    version_in: None,
};

/// The program for Tofino, compiled and assembled. docs/tofino.md explains the flags.
pub const TOFINO: Build = Build {
    target: "tofino",
    top: "p4/ultima_tna.p4",
    commands: &[
        &[
            "p4c-barefoot",
            "--target",
            "tofino",
            "--arch",
            "tna",
            "-D__TARGET_TOFINO__=1",
            "-I",
            INCLUDE,
            "--Wdisable=uninitialized-use",
            "--Wdisable=uninitialized-out-param",
            "-o",
            "p4/compiled/tofino",
            "--bf-rt-schema",
            "p4/compiled/tofino/bfrt.json",
            "--p4runtime-force-std-externs",
            "--p4runtime-files",
            "p4/compiled/tofino/ultima.p4info.txtpb",
            "p4/ultima_tna.p4",
        ],
        &[
            "bfas",
            "--no-warn",
            "--target",
            "tofino",
            "--table-handle-offset0",
            "-o",
            "p4/compiled/tofino/pipe",
            "p4/compiled/tofino/pipe/ultima_tna.bfa",
        ],
    ],
    outputs: &[
        "p4/compiled/tofino/bfrt.json",
        "p4/compiled/tofino/pipe/context.json",
        "p4/compiled/tofino/pipe/tofino.bin",
        "p4/compiled/tofino/ultima.p4info.txtpb",
    ],
    leftovers: &[
        "p4/compiled/tofino/pipe/graphs",
        "p4/compiled/tofino/pipe/logs",
        "p4/compiled/tofino/pipe/ultima_tna.bfa",
        "p4/compiled/tofino/pipe/ultima_tna.dynhash.json",
        "p4/compiled/tofino/pipe/ultima_tna.prim.json",
    ],
    json: &[
        "p4/compiled/tofino/bfrt.json",
        "p4/compiled/tofino/pipe/context.json",
    ],
    binaries: &["p4/compiled/tofino/pipe/tofino.bin"],
    unordered: &["p4/compiled/tofino/bfrt.json"],
    version_in: Some("p4/compiled/tofino/pipe/context.json"),
};

/// The program for Tofino 2, compiled and assembled.
pub const TOFINO2: Build = Build {
    target: "tofino2",
    top: "p4/ultima_tna.p4",
    commands: &[
        &[
            "p4c-barefoot",
            "--target",
            "tofino2",
            "--arch",
            "t2na",
            "-D__TARGET_TOFINO__=2",
            "-I",
            INCLUDE,
            "--Wdisable=uninitialized-use",
            "--Wdisable=uninitialized-out-param",
            "--no-clot",
            "-o",
            "p4/compiled/tofino2",
            "--bf-rt-schema",
            "p4/compiled/tofino2/bfrt.json",
            "--p4runtime-force-std-externs",
            "--p4runtime-files",
            "p4/compiled/tofino2/ultima.p4info.txtpb",
            "p4/ultima_tna.p4",
        ],
        &[
            "bfas",
            "--no-warn",
            "--target",
            "tofino2",
            "--table-handle-offset0",
            "-o",
            "p4/compiled/tofino2/pipe",
            "p4/compiled/tofino2/pipe/ultima_tna.bfa",
        ],
    ],
    outputs: &[
        "p4/compiled/tofino2/bfrt.json",
        "p4/compiled/tofino2/pipe/context.json",
        "p4/compiled/tofino2/pipe/tofino2.bin",
        "p4/compiled/tofino2/ultima.p4info.txtpb",
    ],
    leftovers: &[
        "p4/compiled/tofino2/pipe/graphs",
        "p4/compiled/tofino2/pipe/logs",
        "p4/compiled/tofino2/pipe/ultima_tna.bfa",
        "p4/compiled/tofino2/pipe/ultima_tna.dynhash.json",
        "p4/compiled/tofino2/pipe/ultima_tna.prim.json",
    ],
    json: &[
        "p4/compiled/tofino2/bfrt.json",
        "p4/compiled/tofino2/pipe/context.json",
    ],
    binaries: &["p4/compiled/tofino2/pipe/tofino2.bin"],
    unordered: &["p4/compiled/tofino2/bfrt.json"],
    version_in: Some("p4/compiled/tofino2/pipe/context.json"),
};

/// The builds for all targets.
pub const BUILDS: &[Build] = &[V1MODEL, TOFINO, TOFINO2];

/// The word before the version in a compiler's output.
const VERSION: &str = "Version ";

/// The member of an output that names the compiler's version.
#[derive(Deserialize)]
struct Printed {
    compiler_version: String,
}

/// The contents of a `manifest.json`. Paths are relative to the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The compiler, its version and the commit that it was built from.
    pub compiler: String,
    /// The command lines, run in the repository's root.
    pub commands: Vec<Vec<String>>,
    /// SHA-256 of every source file.
    pub sources: BTreeMap<PathBuf, String>,
    /// SHA-256 of every committed output.
    pub outputs: BTreeMap<PathBuf, String>,
}

/// Why checking or compiling failed.
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
    /// A file is not JSON of the expected form.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// The compiler is not on the PATH or cannot be started.
    #[error("cannot start {compiler}: {source}; put the {compiler} of p4lang/p4c on the PATH")]
    NoCompiler {
        /// The compiler or assembler.
        compiler: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The compiler rejected the program or was killed.
    #[error("{compiler} failed ({status}):\n{output}")]
    Compile {
        /// The compiler.
        compiler: &'static str,
        /// The exit status.
        status: ExitStatus,
        /// Standard error and output.
        output: String,
    },
}

impl Build {
    /// The compiler's name.
    pub fn compiler(&self) -> &'static str {
        self.commands[0][0]
    }

    /// The folder of the compiled files.
    pub fn folder(&self) -> PathBuf {
        Path::new("p4/compiled").join(self.target)
    }

    /// The manifest's path.
    pub fn manifest(&self) -> PathBuf {
        self.folder().join("manifest.json")
    }

    /// Returns the name and version of the compiler on the PATH: a prefix of [`Manifest::compiler`] if the compiler does not
    /// print its commit.
    ///
    /// # Errors
    /// [`ManifestError::NoCompiler`] if it is not on the PATH.
    pub fn compiler_version(&self) -> Result<String, ManifestError> {
        let output = run(&[self.compiler(), "--version"], Path::new("."))?;
        let text = text(&output);
        let version = text.lines().find(|line| line.starts_with(VERSION));
        Ok(format!("{} {}", self.compiler(), version.unwrap_or(&text)))
    }

    /// Compiles the program in the repository at `root` and writes its outputs and manifest there.
    ///
    /// # Errors
    /// If the compiler is missing or rejects the program, or a file cannot be read or written.
    pub fn recompile(&self, root: &Path) -> Result<Manifest, ManifestError> {
        let version = self.compiler_version()?;
        let before = self.unordered.iter();
        let before = before.map(|path| (*path, read(root, Path::new(path)).ok()));
        let before: Vec<(&str, Option<Vec<u8>>)> = before.collect();
        for command in self.commands {
            let output = run(command, root)?;
            if !output.status.success() {
                return Err(ManifestError::Compile {
                    compiler: command[0],
                    status: output.status,
                    output: text(&output),
                });
            }
        }
        let rewrite = |path: &str, form: &dyn Fn(Vec<u8>) -> Vec<u8>| {
            let text = form(read(root, Path::new(path))?);
            let path = root.join(path);
            fs::write(&path, text).map_err(|source| ManifestError::File { path, source })
        };
        for path in self.json {
            rewrite(path, &|text| normal::json(&text))?;
        }
        for path in self.binaries {
            rewrite(path, &normal::binary)?;
        }
        for (path, before) in before {
            rewrite(path, &|now| match &before {
                Some(before) if schema::is_same(before, &now) => before.clone(),
                _ => now,
            })?;
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
        let manifest = Manifest::of_files(self, root, version)?;
        let path = root.join(self.manifest());
        let text = serde_json::to_string_pretty(&manifest).expect("strings") + "\n";
        fs::write(&path, text).map_err(|source| ManifestError::File { path, source })?;
        Ok(manifest)
    }

    /// Returns the compiler that an output at `root` names, or `version` if none does.
    fn printed_by(&self, root: &Path, version: String) -> Result<String, ManifestError> {
        let Some(path) = self.version_in.map(Path::new) else {
            return Ok(version);
        };
        let printed: Printed =
            serde_json::from_slice(&read(root, path)?).map_err(|source| ManifestError::Format {
                path: path.into(),
                source,
            })?;
        let printed = printed.compiler_version;
        Ok(format!("{} {VERSION}{printed}", self.compiler()))
    }

    /// Returns the main source file and everything that it includes from the repository, each once.
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
    /// Reads a program's manifest in the repository at `root`.
    ///
    /// # Errors
    /// If it is missing or malformed.
    pub fn load(build: &Build, root: &Path) -> Result<Self, ManifestError> {
        let path = build.manifest();
        serde_json::from_slice(&read(root, &path)?)
            .map_err(|source| ManifestError::Format { path, source })
    }

    /// Computes the manifest of the files at `root`. `version` is the compiler's, unless an output names it.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_files(build: &Build, root: &Path, version: String) -> Result<Self, ManifestError> {
        let outputs: Vec<_> = build.outputs.iter().map(PathBuf::from).collect();
        let digests = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| Ok((path.clone(), hex(&Sha256::digest(read(root, path)?)))))
                .collect::<Result<_, ManifestError>>()
        };
        Ok(Self {
            compiler: build.printed_by(root, version)?,
            commands: build
                .commands
                .iter()
                .map(|command| command.iter().map(ToString::to_string).collect())
                .collect(),
            sources: digests(&build.sources(root)?)?,
            outputs: digests(&outputs)?,
        })
    }

    /// Returns one line for each difference between this manifest and the files at `root`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn differences(&self, build: &Build, root: &Path) -> Result<Vec<String>, ManifestError> {
        let now = Self::of_files(build, root, self.compiler.clone())?;
        let mut lines = Vec::new();
        if now.compiler != self.compiler {
            lines.push(format!(
                "compiler: {} is not {}",
                self.compiler, now.compiler
            ));
        }
        if now.commands != self.commands {
            let line = |commands: &[Vec<String>]| {
                let lines: Vec<_> = commands.iter().map(|command| command.join(" ")).collect();
                lines.join("; ")
            };
            lines.push(format!(
                "commands: {} is not {}",
                line(&self.commands),
                line(&now.commands)
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
                lines.push(format!("{}: in the manifest, but missing", path.display()));
            }
        }
        Ok(lines)
    }
}

/// Returns a command's standard error and output as text.
fn text(output: &Output) -> String {
    let bytes = [&output.stderr[..], &output.stdout[..]].concat();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn run(command: &[&'static str], directory: &Path) -> Result<Output, ManifestError> {
    Command::new(command[0])
        .args(&command[1..])
        .current_dir(directory)
        .output()
        .map_err(|source| ManifestError::NoCompiler {
            compiler: command[0],
            source,
        })
}

fn read(root: &Path, path: &Path) -> Result<Vec<u8>, ManifestError> {
    let path = root.join(path);
    fs::read(&path).map_err(|source| ManifestError::File { path, source })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
