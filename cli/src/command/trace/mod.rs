//! `ultima trace`: one operation of a trace as a time–sequence picture and as a summary.
//!
//! | file | |
//! | --- | --- |
//! | `read.rs` | a trace's lines |
//! | `operation.rs` | what is known of one operation at one rank |
//! | `summary.rs` | the same as text |
//! | `picture.rs` | the same as a picture |
//! | `svg.rs` | a picture's elements |
//! | `scale.rs` | times on an axis |

mod operation;
mod picture;
mod read;
mod scale;
mod summary;
mod svg;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ultima_host::OperationId;

use read::TraceReader;
use ultima_console::output;

/// Shows one operation of a trace: as text, and drawn against time
///
/// Agents, the demo and simulations write traces with --trace; docs/trace.md has the format and says how to read the
/// picture.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    ultima trace rank0.jsonl --list\n  \
    ultima trace rank0.jsonl --operation 17:0 --svg step17.svg")]
pub struct Arguments {
    /// The trace
    file: PathBuf,
    /// The operation, of bucket 0 unless said [default: the one that took longest]
    #[arg(long, value_name = "STEP[:BUCKET]", value_parser = id)]
    operation: Option<OperationId>,
    /// At which rank, where the trace has several [default: where it took longest]
    #[arg(long, value_name = "RANK")]
    rank: Option<u16>,
    /// Draw it
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
    /// List the trace's operations instead
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

/// Prints what was asked for, and draws it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let file = &arguments.file;
    let index = operation::Index::read(TraceReader::open(file)?)?;
    if arguments.list {
        let listed = index.entries(arguments.rank);
        return Ok(output::print(&summary::list(listed))?);
    }
    let found = index.choose(arguments.operation, arguments.rank);
    let chosen = found.with_context(|| file.display().to_string())?;
    let operation = operation::Operation::read(TraceReader::open(file)?, chosen)?;
    if let Some(svg) = &arguments.svg {
        let place = || svg.display().to_string();
        fs::write(svg, picture::draw(&operation)).with_context(place)?;
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
