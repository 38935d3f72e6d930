//! A test: NAME.json, NAME.p4info.txtpb and NAME.stf.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::text;
use ultima_p4runtime::v1::ForwardingPipelineConfig;

use super::script::{self, Command, Step};
use super::session::{Failure, Session};
use super::target::{Bench, Target};

/// Extension of scripts.
const SCRIPT: &str = "stf";

/// Why a folder has no tests to run.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be read.
    #[error("{}: {source}", folder.display())]
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The folder contains no tests.
    #[error("{}: expected NAME.json, NAME.p4info.txtpb and NAME.stf in it", .0.display())]
    Empty(PathBuf),
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All expectations hold.
    Passed,
    /// An expectation does not hold, for this reason.
    Failed(String),
    /// The test has an unknown command, or needs something that the target or the setup lacks, for this reason.
    Skipped(String),
}

/// A test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Name of its files without the extension.
    pub name: String,
    folder: PathBuf,
}

/// Returns the tests of a folder, by name.
///
/// # Errors
/// [`FolderError`] if the folder cannot be read or contains no tests.
pub fn cases(folder: &Path) -> Result<Vec<Case>, FolderError> {
    let unreadable = |source| FolderError::Unreadable {
        folder: folder.to_owned(),
        source,
    };
    let mut cases = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|ending| ending == SCRIPT)
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            cases.push(Case {
                name: name.to_owned(),
                folder: folder.to_owned(),
            });
        }
    }
    if cases.is_empty() {
        return Err(FolderError::Empty(folder.to_owned()));
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

impl Case {
    /// Runs the test on a target.
    pub async fn run(&self, target: &mut Target) -> Verdict {
        // Parse before anything else: a test with an unknown command is skipped even if its program is wrong.
        let steps = match self.read(SCRIPT).map(|text| script::parse(&text)) {
            Ok(Ok(steps)) => steps,
            Ok(Err(unknown)) => return Verdict::Skipped(unknown.to_string()),
            Err(problem) => return Verdict::Failed(problem),
        };
        let ports = ports(&steps);
        let is_ours = matches!(target, Target::Embedded);
        let outcome = target
            .with(&ports, async |bench| {
                self.run_on(bench, &steps, is_ours).await
            })
            .await;
        outcome.unwrap_or_else(|error| Verdict::Failed(error.to_string()))
    }

    async fn run_on(&self, bench: Bench<'_>, steps: &[Step], is_ours: bool) -> Verdict {
        let (p4info, names, json) = match self.program() {
            Ok(program) => program,
            Err(problem) => return Verdict::Failed(problem),
        };
        let config = ForwardingPipelineConfig {
            p4info: Some(p4info.clone()),
            p4_device_config: json,
            cookie: None,
        };
        if let Err(error) = bench.client.set_pipeline(config).await {
            return Verdict::Failed(format!("the program does not load: {error}"));
        }
        verdict(
            Session::new(bench, &names, &p4info).run(steps).await,
            is_ours,
        )
    }

    fn program(&self) -> Result<(P4Info, Names, Vec<u8>), String> {
        let p4info: P4Info = text::parse(&self.read("p4info.txtpb")?)
            .map_err(|error| format!("{}.p4info.txtpb: {error}", self.name))?;
        let names = Names::new(p4info.clone()).map_err(|error| error.to_string())?;
        let json = self.read("json")?.into_bytes();
        Ok((p4info, names, json))
    }

    fn read(&self, ending: &str) -> Result<String, String> {
        let file = format!("{}.{ending}", self.name);
        fs::read_to_string(self.folder.join(&file)).map_err(|error| format!("{file}: {error}"))
    }
}

/// Returns the verdict of an executed test. Another target may lack features; the embedded switch may not.
fn verdict(outcome: Result<(), Failure>, is_ours: bool) -> Verdict {
    match outcome {
        Ok(()) => Verdict::Passed,
        Err(failure) if !is_ours && failure.error.is_beyond_target() => {
            Verdict::Skipped(failure.to_string())
        }
        Err(failure) => Verdict::Failed(failure.to_string()),
    }
}

/// Returns the ports that a test names.
fn ports(steps: &[Step]) -> BTreeSet<u16> {
    let port = |step: &Step| match &step.command {
        Command::Packet { port, .. } | Command::Expect { port, .. } => Some(*port),
        _ => None,
    };
    steps.iter().filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::client::ClientError;
    use super::super::session::StepError;
    use super::*;

    #[test]
    fn only_other_targets_may_lack_something() {
        let outcome = |code| {
            let error = ClientError::Refused {
                code,
                message: "registers".into(),
            };
            Err(Failure {
                line: 3,
                error: Box::new(StepError::Client(error)),
            })
        };
        let why = "line 3: Unimplemented: registers".to_owned();
        let skipped = verdict(outcome(Code::Unimplemented), false);
        assert_eq!(skipped, Verdict::Skipped(why.clone()));
        let failed = verdict(outcome(Code::Unimplemented), true);
        assert_eq!(failed, Verdict::Failed(why));
        let refused = verdict(outcome(Code::NotFound), false);
        assert!(matches!(refused, Verdict::Failed(_)));
    }
}
