//! `ultima-research study recycling`: errors of a training run with and without recycling.

mod plot;
mod table;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ultima_host::safeguards::DriftRule;
use ultima_link::Loss;

use super::paths::{self, Paths};
use super::progress::all;
use super::training::{self, Job, Trained, Variant};
use super::{format, options};
use crate::chart::Spread;
use table::Row;
use ultima_console::output::{self, Output, write_whole};
use ultima_digits::shards::Dealing;

/// Train with bursts of loss, with and without recycling, and compare updates and replicas
///
/// Measures the distance of a run's updates from the exact ones, and of the replicas from each other. The protocol cores
/// average the Hadamard-coded gradients in this process. Every path between two ranks loses packets of all kinds,
/// including repair requests and repairs, independently of other paths. Every seed runs with both distributions of the data. The same
/// options give the same output, byte by byte. docs/transport.md describes the comparison.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima-research study recycling --ranks 4 --losses 0.01:6,0.05:6 --seeds 2 --steps 100 --out /tmp/recycling"
)]
pub struct Arguments {
    #[command(flatten)]
    training: options::Training,
    /// Loss of every path: a probability, or P:LENGTH for bursts
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0.001:6,0.01:6,0.05:6",
        value_parser = paths::loss
    )]
    losses: Vec<Loss>,
    /// Output folder for the table (CSV) and the plot (SVG); created if missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Errors below this are rounding errors of the transform: a run without loss has about 10⁻¹⁵.
const ROUNDING: f64 = 1e-10;

/// A training run: with exact means, or with losses.
struct Run<'a> {
    job: Job,
    lossy: Option<(&'a Loss, Variant)>,
}

impl Run<'_> {
    fn train(&self) -> Result<Trained> {
        let Some((model, variant)) = self.lossy else {
            return training::exact(&self.job);
        };
        let mut paths = Paths::new(model, self.job.plan.workers, self.job.plan.seed);
        training::with_losses(&self.job, variant, &mut |header, receiver| {
            paths.lose(header.source, receiver)
        })
    }
}

/// Runs the study, prints its results, and writes them to `--out`.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.training.validate()?;
    if let Some(folder) = &arguments.out {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let rows = rows(arguments)?;
    if let Some(folder) = &arguments.out {
        write_whole(folder, "recycling.csv", &format::csv(&rows)?)?;
        write_whole(folder, "recycling.svg", &plot::runs(&rows)?)?;
    }
    let text = arguments.output.print(&rows, || table::text(&rows))?;
    Ok(output::print(&text)?)
}

/// The rows, by loss and distribution of the data.
fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let options = &arguments.training;
    let variants = [false, true].map(|recycling| Variant {
        hadamard: true,
        recycling,
    });
    let mut runs = Vec::new();
    let with_all_seeds = |shards, lossy| {
        let run = move |seed| Run {
            job: options.job(shards, seed),
            lossy,
        };
        options.seeds().map(run)
    };
    for shards in Dealing::ALL {
        runs.extend(with_all_seeds(shards, None));
    }
    for loss in &arguments.losses {
        for shards in Dealing::ALL {
            for variant in variants {
                runs.extend(with_all_seeds(shards, Some((loss, variant))));
            }
        }
    }
    let trained = all("training", &runs, Run::train)?;
    let mut trained = trained.chunks(options.seeds.into());
    let exact: Vec<&[Trained]> = trained.by_ref().take(Dealing::ALL.len()).collect();
    let mut rows = Vec::new();
    for loss in &arguments.losses {
        for (shards, exact) in Dealing::ALL.into_iter().zip(&exact) {
            let [Some(without), Some(with)] = [(); 2].map(|()| trained.next()) else {
                continue;
            };
            let over = |trained: &[Trained], figure: fn(&Trained) -> f64| {
                Spread::of(&trained.iter().map(figure).collect::<Vec<_>>())
            };
            let [exact, accuracy_without, accuracy_with] =
                [exact, without, with].map(|trained| over(trained, |t| t.accuracy));
            let [error_without, error_with] =
                [without, with].map(|trained| over(trained, |t| t.run_error));
            let [spread_without, spread_with] =
                [without, with].map(|trained| over(trained, |t| t.spread));
            rows.push(Row {
                loss: loss.to_string(),
                shards: shards.name(),
                ranks: options.ranks,
                steps: options.steps,
                seed: options.seed,
                seeds: options.seeds,
                exact: exact.mean,
                exact_least: exact.least,
                exact_most: exact.most,
                accuracy_without: accuracy_without.mean,
                accuracy_with: accuracy_with.mean,
                accuracy_with_least: accuracy_with.least,
                accuracy_with_most: accuracy_with.most,
                error_without: error_without.mean,
                error_without_least: error_without.least,
                error_with: error_with.mean,
                error_with_most: error_with.most,
                error_ratio: (error_without.mean > ROUNDING)
                    .then(|| error_with.mean / error_without.mean),
                step_error_without: over(without, |t| t.step_error).mean,
                step_error_with: over(with, |t| t.step_error).mean,
                spread_without: spread_without.mean,
                spread_with: spread_with.mean,
                spread_with_most: spread_with.most,
                spread_bound: DriftRule::default().bound,
            });
        }
    }
    Ok(rows)
}
