//! `ultima trace`: shows one operation of a trace as a summary and as a time–sequence plot.
//!
//! | file | |
//! | --- | --- |
//! | `read.rs` | parses the lines of a trace |
//! | `operation.rs` | one operation at one rank |
//! | `summary.rs` | its summary as text |
//! | `picture.rs` | its plot |
//! | `svg.rs` | SVG elements |
//! | `scale.rs` | the time axis |

mod operation;
mod picture;
mod read;
mod scale;
mod summary;
mod svg;

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ultima_host::OperationId;

use read::TraceReader;

use crate::exit::InputErrors as _;
use ultima_console::output;

/// Show one AllReduce operation of a trace file as a summary, or as an SVG plot
///
/// `ultima agent`, `ultima demo` and `ultima-research sim` write traces with `--trace`. docs/trace.md describes the
/// format and the plot.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima trace rank0.jsonl --list\n  \
    ultima trace rank0.jsonl --operation 17:0 --svg step17.svg")]
pub struct Arguments {
    /// Trace file (JSON lines)
    file: PathBuf,
    /// Operation to show; BUCKET defaults to 0 [default: the slowest operation]
    #[arg(long, value_name = "STEP[:BUCKET]", value_parser = id)]
    operation: Option<OperationId>,
    /// Rank to show, for a trace of several ranks [default: the slowest rank]
    #[arg(long, value_name = "RANK")]
    rank: Option<u16>,
    /// File for an SVG plot of the operation
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// List all operations of the trace instead
    #[arg(long, conflicts_with_all = ["operation", "svg"])]
    list: bool,
}

fn id(text: &str) -> Result<OperationId, String> {
    let (step, bucket) = text.split_once(':').unwrap_or((text, "0"));
    match (step.parse(), bucket.parse()) {
        (Ok(step), Ok(bucket)) => Ok(OperationId { step, bucket }),
        _ => Err("expected STEP or STEP:BUCKET, such as 17:0".into()),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let file = &arguments.file;
    let index = TraceReader::open(file).and_then(operation::Index::read);
    let index = index.input()?;
    if arguments.list {
        let listed = index.entries(arguments.rank);
        return Ok(output::print(&summary::list(listed))?);
    }
    let found = index.choose(arguments.operation, arguments.rank);
    let chosen = found.with_context(|| file.display().to_string()).input()?;
    let operation = TraceReader::open(file).and_then(|it| operation::Operation::read(it, chosen));
    let operation = operation.input()?;
    if let Some(svg) = &arguments.svg {
        let place = || svg.display().to_string();
        let mut file = File::create(svg).with_context(place).input()?;
        let written = file.write_all(picture::draw(&operation).as_bytes());
        written.with_context(place)?;
    }
    Ok(output::print(&summary::text(&operation))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_named_by_step_and_bucket() {
        assert_eq!(
            id("17"),
            Ok(OperationId {
                step: 17,
                bucket: 0
            })
        );
        assert_eq!(
            id("17:3"),
            Ok(OperationId {
                step: 17,
                bucket: 3
            })
        );
        for wrong in ["", ":", "x", "1:", "-1:0", "1:2:3", "1:65536"] {
            assert!(id(wrong).is_err(), "{wrong}");
        }
    }
}
