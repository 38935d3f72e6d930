//! `ultima-research study estimators`: bias and variance of both estimators under several loss patterns.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use ultima_host::{Coding, Config, Estimation};
use ultima_link::Loss;
use ultima_wire::{Header, Kind};

use super::cores::{Cores, Lost};
use super::paths::{self, Paths};
use ultima_console::output::{self, Output, table};
use ultima_console::units::share_under_one;
use ultima_digits::baseline::exact_mean;
use ultima_digits::shards::Dealing;
use ultima_digits::training::{Plan, STEPS, learning_rate};

/// The rank that a scenario makes lossy or absent.
const RANK: u16 = 1;
/// Operations over which weights are averaged.
const WEIGHED: u32 = 60;

/// Compare the estimators of the mean on gradients of a training job
///
/// Takes gradients at evenly spaced steps of the demo's training with exact means. The protocol cores average each
/// gradient many times, while contributions (SCATTER) are lost. Bias and variance are energies of the error, as shares of
/// the exact mean's energy; weights are in units of 1/N.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima-research study estimators --loss 0.05:6 --workers 8 --csv estimators.csv"
)]
pub struct Arguments {
    /// Number of workers
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(3..=64))]
    workers: u16,
    /// Loss of every path in the symmetric scenario: a probability, or P:LENGTH for bursts
    #[arg(long, default_value = "0.05:6", value_parser = paths::loss)]
    loss: Loss,
    /// Loss probability of the lossy rank's contributions, independent for each packet
    #[arg(long, default_value_t = 0.3, value_parser = share_under_one)]
    lossy: f64,
    /// Number of training steps from which gradients are taken
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    snapshots: u32,
    /// Number of AllReduces of each gradient
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    repeats: u32,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CSV file for the rows, in addition to the output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// A loss pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Scenario {
    /// Equal loss on every path.
    Symmetric,
    /// Loss of one rank's contributions.
    LossyRank,
    /// No contribution of one rank arrives.
    AbsentRank,
    /// No aggregate of one owner arrives.
    AbsentOwner,
}

impl Scenario {
    const ALL: [Scenario; 4] = [
        Scenario::Symmetric,
        Scenario::LossyRank,
        Scenario::AbsentRank,
        Scenario::AbsentOwner,
    ];

    fn name(self) -> &'static str {
        match self {
            Scenario::Symmetric => "symmetric loss",
            Scenario::LossyRank => "one lossy rank",
            Scenario::AbsentRank => "one absent rank",
            Scenario::AbsentOwner => "an absent owner",
        }
    }
}

/// The result of one estimator in one scenario.
#[derive(Clone, Debug, Serialize)]
struct Row {
    scenario: Scenario,
    shards: &'static str,
    estimator: &'static str,
    /// Weight of the scenario's rank, in units of 1/N.
    weight: f64,
    /// Largest distance of any rank's weight from 1/N, in units of 1/N.
    stray: f64,
    /// Energy of the mean error, as a share of the exact mean's energy.
    bias: f64,
    /// Energy of the deviations from the mean error, as the same share.
    variance: f64,
    /// Energy of the whole error: bias plus variance.
    error: f64,
}

/// The losses of a scenario.
struct Network {
    scenario: Scenario,
    paths: Paths,
}

impl Network {
    fn new(arguments: &Arguments, scenario: Scenario) -> Self {
        let model = match scenario {
            Scenario::Symmetric => arguments.loss.clone(),
            _ => Loss::Independent {
                probability: arguments.lossy,
            },
        };
        Self {
            scenario,
            paths: Paths::new(&model, arguments.workers, arguments.seed),
        }
    }

    fn loses(&mut self, header: &Header, receiver: u16) -> bool {
        let of_rank = header.source == RANK;
        match (self.scenario, header.kind) {
            (Scenario::Symmetric, Kind::Scatter) => self.paths.lose(header.source, receiver),
            (Scenario::LossyRank, Kind::Scatter) => of_rank && self.paths.lose(RANK, receiver),
            (Scenario::AbsentRank, Kind::Scatter) | (Scenario::AbsentOwner, Kind::Gather) => {
                of_rank
            }
            _ => false,
        }
    }
}

/// Runs the study and prints its results.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut rows = Vec::new();
    let all = Scenario::ALL.len() * Dealing::ALL.len() * Estimation::ALL.len();
    let style = ProgressStyle::with_template("measuring {bar:40} {pos}/{len}, {eta} left")?;
    let bar = ProgressBar::new(all as u64).with_style(style);
    for shards in Dealing::ALL {
        let snapshots = gradients(arguments, shards)?;
        for scenario in Scenario::ALL {
            for estimation in Estimation::ALL {
                rows.push(measure(
                    arguments, scenario, shards, estimation, &snapshots,
                )?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    if let Some(path) = &arguments.csv {
        let context = || format!("write {}", path.display());
        let mut writer = csv::Writer::from_path(path).with_context(context)?;
        for row in &rows {
            writer.serialize(row).with_context(context)?;
        }
        writer.flush().with_context(context)?;
    }
    let text = arguments.output.print(&rows, || text(&rows))?;
    Ok(output::print(&text)?)
}

/// The workers' gradients at evenly spaced steps of an exact run.
fn gradients(arguments: &Arguments, shards: Dealing) -> Result<Vec<Vec<Vec<f32>>>> {
    let plan = Plan {
        workers: arguments.workers,
        shards,
        seed: arguments.seed,
    };
    let (digits, mut batches) = plan.deal()?;
    let mut model = plan.model();
    let mut gradients = vec![vec![0.0; model.parameters().len()]; plan.workers.into()];
    let mut mean = vec![0.0; model.parameters().len()];
    let every = STEPS / arguments.snapshots;
    let mut snapshots = Vec::new();
    for step in 0..STEPS {
        for (batches, gradient) in batches.iter_mut().zip(&mut gradients) {
            let batch = batches.draw(&digits.train);
            model.gradient(batch.features(), batch.labels(), gradient);
        }
        exact_mean(&gradients, &mut mean);
        model.descend(&mean, learning_rate(step, STEPS));
        if step % every == 0 && snapshots.len() < arguments.snapshots as usize {
            snapshots.push(gradients.clone());
        }
    }
    Ok(snapshots)
}

fn config(arguments: &Arguments, estimation: Estimation, coding: Coding) -> Config {
    let t_b = Duration::from_millis(10);
    Config {
        estimation,
        coding,
        ..Config::new(1, 1, 0, arguments.workers, arguments.seed, t_b)
    }
}

fn measure(
    arguments: &Arguments,
    scenario: Scenario,
    shards: Dealing,
    estimation: Estimation,
    snapshots: &[Vec<Vec<f32>>],
) -> Result<Row> {
    let mut network = Network::new(arguments, scenario);
    let lost: &mut Lost<'_> = &mut |header, receiver| network.loses(header, receiver);
    let (weight, stray) = weights(arguments, estimation, lost)?;
    let mut cores = Cores::new(&config(arguments, estimation, Coding::default()))?;
    let (mut bias, mut variance) = (0.0, 0.0);
    let repeats = f64::from(arguments.repeats);
    for gradients in snapshots {
        let mut exact = vec![0.0; gradients[0].len()];
        exact_mean(gradients, &mut exact);
        // By entry, the sum of errors and of their squares.
        let mut errors = vec![(0.0f64, 0.0f64); exact.len()];
        for _ in 0..arguments.repeats {
            let mean = cores.allreduce(gradients, lost)?;
            for ((sum, squares), (mean, exact)) in errors.iter_mut().zip(mean.iter().zip(&exact)) {
                let error = f64::from(*mean) - f64::from(*exact);
                *sum += error;
                *squares += error * error;
            }
        }
        let energy: f64 = exact.iter().map(|value| f64::from(*value).powi(2)).sum();
        let of_sum: f64 = errors.iter().map(|(sum, _)| (sum / repeats).powi(2)).sum();
        let squares: f64 = errors.iter().map(|(_, squares)| squares / repeats).sum();
        // Unbiased estimates: the mean of few repeats still contains a part of the variance.
        let varies = (squares - of_sum) * repeats / (repeats - 1.0);
        variance += varies / energy;
        bias += (of_sum - varies / repeats) / energy;
    }
    let count = snapshots.len() as f64;
    let (bias, variance) = ((bias / count).max(0.0), variance / count);
    Ok(Row {
        scenario,
        shards: shards.name(),
        estimator: estimation.name(),
        weight,
        stray,
        bias,
        variance,
        error: bias + variance,
    })
}

/// The weight of [`RANK`]'s contributions in the mean, and the largest distance of any rank's weight from 1/N, both in units
/// of 1/N. Entry *i* of every slot is 1 in rank *i*'s contribution and 0 in the others', so the mean contains the weights.
fn weights(
    arguments: &Arguments,
    estimation: Estimation,
    lost: &mut Lost<'_>,
) -> Result<(f64, f64)> {
    let ranks = usize::from(arguments.workers);
    let config = Config {
        slot_bytes: 4 * ranks,
        ..config(arguments, estimation, Coding::Identity)
    };
    let mut cores = Cores::new(&config)?;
    let indicator =
        |rank| (0..ranks * ranks * 40).map(move |at| f32::from(u8::from(at % ranks == rank)));
    let buckets: Vec<Vec<f32>> = (0..ranks).map(|rank| indicator(rank).collect()).collect();
    let mut weights = vec![0.0; ranks];
    for _ in 0..WEIGHED {
        let mean = cores.allreduce(&buckets, lost)?;
        for (at, weight) in mean.iter().enumerate() {
            weights[at % ranks] += f64::from(*weight);
        }
    }
    // The sum for a weight of 1/N in every slot.
    let whole = f64::from(WEIGHED) * (buckets[0].len() / ranks) as f64 / ranks as f64;
    let stray = weights.iter().map(|weight| (weight / whole - 1.0).abs());
    Ok((
        weights[usize::from(RANK)] / whole,
        stray.fold(0.0, f64::max),
    ))
}

fn text(rows: &[Row]) -> String {
    let header = [
        "scenario",
        "shards",
        "estimator",
        "weight",
        "stray",
        "bias",
        "variance",
        "error",
    ];
    table(
        header,
        rows.iter().map(|row| {
            [
                row.scenario.name().into(),
                row.shards.into(),
                row.estimator.into(),
                format!("{:.3}", row.weight),
                format!("{:.3}", row.stray),
                format!("{:.1e}", row.bias),
                format!("{:.1e}", row.variance),
                format!("{:.1e}", row.error),
            ]
        }),
    )
}
