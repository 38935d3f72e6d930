//! `ultima-research study`: the cost of choices of the transport, measured on gradients of a training job.

mod cores;
mod estimators;
mod figure;
mod format;
mod options;
mod paths;
mod progress;
mod recycling;
mod tail_drop;
mod training;

use anyhow::Result;

/// Measure the cost of choices of the transport on gradients of a training job
#[derive(clap::Args)]
#[command(after_help = "Example: ultima-research study estimators --loss 0.05:6")]
pub struct Arguments {
    #[command(subcommand)]
    study: Study,
}

#[derive(clap::Subcommand)]
enum Study {
    Estimators(Box<estimators::Arguments>),
    Recycling(Box<recycling::Arguments>),
    TailDrop(Box<tail_drop::Arguments>),
}

/// Runs the study and prints its results.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.study {
        Study::Estimators(arguments) => estimators::run(arguments),
        Study::Recycling(arguments) => recycling::run(arguments),
        Study::TailDrop(arguments) => tail_drop::run(arguments),
    }
}
