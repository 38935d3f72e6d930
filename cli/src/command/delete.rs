//! `ultima delete`: deletes jobs, named as for `ultima get`, or those of files.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::deletion::Options;
use super::desired;
use super::job::delete;
use crate::controller_address::ControllerAddress;
use crate::exit::InputErrors as _;
use crate::names;
use crate::objects::Objects;
use crate::runtime::run_beside;
use crate::which::Kind;

/// Delete jobs
///
/// Switches, hosts and links are in the fabric file of the controller.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima delete job train\n  \
    ultima delete job/train job/other --wait 10s\n  \
    ultima delete -f jobs.yaml")]
pub struct Arguments {
    /// The jobs, such as `job train` or job/train
    #[arg(value_name = "OBJECT", required_unless_present = "files", add = names::job_objects())]
    words: Vec<String>,
    /// YAML file with the jobs to delete, or a folder of such files; `-` reads standard input. Repeatable
    #[arg(short, long = "file", value_name = "FILE", conflicts_with = "words")]
    files: Vec<PathBuf>,
    /// With `jobs`: delete all jobs
    #[arg(long, conflicts_with = "files")]
    all: bool,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    at: ControllerAddress,
}

impl Arguments {
    /// The names of the jobs and grids.
    fn names(&self) -> Result<Vec<String>> {
        let written = desired::read(&self.files)?;
        let mut names: Vec<String> = (written.iter()).flat_map(|it| it.request.names()).collect();
        let Some((which, others)) = self.words.split_first() else {
            return Ok(names);
        };
        for (kind, of_kind) in Objects::of(which, others)?.by_kind()? {
            match kind {
                Kind::Jobs if of_kind.is_empty() != self.all => {
                    bail!("expected the names of jobs, such as job/train, or jobs --all")
                }
                Kind::Jobs => names.extend(of_kind),
                other => bail!(
                    "only jobs can be deleted; a {} is removed from the controller's fabric file",
                    other.singular()
                ),
            }
        }
        Ok(names)
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let names = arguments.names().input()?;
    run_beside(async {
        let client = arguments.at.connect().await?;
        let names = (!arguments.all).then_some(&names[..]);
        delete(&client, names, &arguments.options).await?;
        Ok(ExitCode::SUCCESS)
    })
}
