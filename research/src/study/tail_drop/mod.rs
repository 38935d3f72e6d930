//! `ultima-research study tail-drop`: accuracy lost and time gained by dropping the last packets of messages.

mod bounds;
mod completion;
mod plot;
mod table;
mod tails;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ultima_sim::{Algorithm, Experiment, Report};

use crate::chart::Spread;
use crate::study::progress::all;
use crate::study::training::{self, Job, Trained, Variant};
use crate::study::{format, options};
use completion::Completion;
use table::{Row, Study};
use tails::Tails;
use ultima_console::output::{self, Output, write_whole};
use ultima_console::units::{bit_rate, bytes, duration, share_under_one};
use ultima_digits::shards::Dealing;

/// Drop the tail of every message: accuracy and speed-up for each dropped share
///
/// Simulates the completion times of each algorithm. For each share, it then searches the time limits t_S and t_B of `tar` at
/// which that share of contributions and aggregates is late, and simulates a step with them. It also trains a model over
/// the protocol cores in this process, which lose the last packets of every message, by that share, and measures the accuracy. All
/// of this runs with each seed. The same options give the same output, byte by byte. docs/simulation.md describes the model.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima-research study tail-drop --ranks 4 --shares 0,0.01,0.1 --seeds 2 --steps 200 --out /tmp/tail-drop"
)]
pub struct Arguments {
    #[command(flatten)]
    training: options::Training,
    /// Dropped shares of every message's packets, from 0 to under 1
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,0.001,0.005,0.01,0.02,0.05,0.1,0.2",
        value_parser = share_under_one
    )]
    shares: Vec<f64>,
    /// Simulation: algorithms to compare [default: all]
    #[arg(long, value_delimiter = ',', value_parser = algorithms())]
    algorithms: Vec<Algorithm>,
    /// Simulation: size of the averaged bucket, in bytes
    #[arg(long, default_value = "25M", value_parser = bytes)]
    bytes: u64,
    /// Simulation: rate of host links, in bits per second
    #[arg(long, default_value = "10G", value_parser = bit_rate)]
    rate: u64,
    /// Simulation: p99/p50 of the time of a message over one idle hop
    #[arg(long, default_value_t = 3.0, value_name = "RATIO")]
    tail: f64,
    /// Simulation: number of operations of each run
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    operations: u32,
    /// Compute time per step, not overlapped
    #[arg(long, default_value = "40ms", value_parser = duration)]
    compute: Duration,
    /// Output folder for tables (CSV) and plots (SVG); created if missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name)).map(|name| {
        let named = |algorithm: &Algorithm| algorithm.name() == name;
        let found = Algorithm::ALL.into_iter().find(named);
        found.expect("a possible value")
    })
}

impl Arguments {
    fn experiment(&self, algorithm: Algorithm) -> Experiment {
        let mut experiment = Experiment {
            bytes: self.bytes,
            tail: self.tail,
            operations: self.operations,
            seed: self.training.seed,
            ..Experiment::new(algorithm, self.training.ranks)
        };
        experiment.network.rate = self.rate;
        experiment
    }

    fn algorithms(&self) -> Vec<Algorithm> {
        match self.algorithms.is_empty() {
            true => Algorithm::ALL.to_vec(),
            false => self.algorithms.clone(),
        }
    }

    fn validate(&self) -> Result<()> {
        self.training.validate()?;
        for algorithm in self.algorithms().into_iter().chain([Algorithm::Tar]) {
            self.experiment(algorithm).validate()?;
        }
        Ok(())
    }
}

/// Runs the study, prints its results, and writes them to `--out`.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.validate()?;
    if let Some(folder) = &arguments.out {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let completion = completion(arguments)?;
    let speeds = speeds(arguments)?;
    let rows = rows(arguments, &speeds)?;
    let study = Study {
        simulated: true,
        completion,
        rows,
    };
    if let Some(folder) = &arguments.out {
        for (name, content) in [
            ("completion.csv", format::csv(&study.completion)?),
            (
                "cdf.csv",
                format::csv(study.completion.iter().flat_map(Completion::distribution))?,
            ),
            ("tail-drop.csv", format::csv(&study.rows)?),
            ("cdf.svg", plot::distributions(&study.completion)?),
            ("tail-drop.svg", plot::accuracies(&study.rows)?),
        ] {
            write_whole(folder, name, &content)?;
        }
    }
    let text = arguments.output.print(&study, || table::text(&study))?;
    Ok(output::print(&text)?)
}

/// Runs each of `experiments` with every seed.
fn simulate(
    what: &'static str,
    arguments: &Arguments,
    experiments: &[Experiment],
) -> Result<Vec<Vec<Report>>> {
    let seeded = |experiment: &Experiment| {
        let of = |seed| Experiment {
            seed,
            ..experiment.clone()
        };
        arguments.training.seeds().map(of).collect::<Vec<_>>()
    };
    let runs: Vec<Experiment> = experiments.iter().flat_map(seeded).collect();
    let reports = all(what, &runs, |run| Ok(run.run(&mut |_| ())?))?;
    let by_experiment = reports.chunks(arguments.training.seeds.into());
    Ok(by_experiment.map(<[Report]>::to_vec).collect())
}

fn completion(arguments: &Arguments) -> Result<Vec<Completion>> {
    let algorithms = arguments.algorithms().into_iter();
    let experiments: Vec<Experiment> = algorithms.map(|a| arguments.experiment(a)).collect();
    let reports = simulate("simulating algorithms", arguments, &experiments)?;
    let completed = experiments.iter().zip(&reports);
    Ok(completed
        .map(|(experiment, reports)| Completion::of(experiment, reports))
        .collect())
}

/// The time of an operation of `tar` with a share dropped.
struct Speed {
    share: f64,
    t_s_ms: f64,
    t_b_ms: f64,
    late_share: f64,
    operation_ms: f64,
    step_ms: f64,
    speed_up: f64,
}

/// The times, by share.
fn speeds(arguments: &Arguments) -> Result<Vec<Speed>> {
    let tar = arguments.experiment(Algorithm::Tar);
    let mut experiments = all("searching time limits", &arguments.shares, |share| {
        bounds::with_late_share(&tar, *share)
    })?;
    experiments.push(bounds::without_late(&tar));
    let reports = simulate("simulating drops", arguments, &experiments)?;
    let mean = |reports: &[Report], figure: fn(&Report) -> f64| {
        reports.iter().map(figure).sum::<f64>() / reports.len() as f64
    };
    let compute_ms = arguments.compute.as_secs_f64() * 1e3;
    let step_ms = |reports: &[Report]| compute_ms + mean(reports, |r| r.completion_ms.mean);
    let without_late_ms = reports.last().map_or(0.0, |reports| step_ms(reports));
    let speeds = arguments.shares.iter().zip(&experiments).zip(&reports);
    Ok(speeds
        .map(|((share, experiment), reports)| {
            let (t_s, t_b) = experiment.bounds();
            Speed {
                share: *share,
                t_s_ms: t_s.as_secs_f64() * 1e3,
                t_b_ms: t_b.as_secs_f64() * 1e3,
                late_share: mean(reports, bounds::late),
                operation_ms: mean(reports, |r| r.completion_ms.mean),
                step_ms: step_ms(reports),
                speed_up: without_late_ms / step_ms(reports),
            }
        })
        .collect())
}

/// A training run: with exact means, or with a share dropped.
struct Run {
    job: Job,
    drops: Option<(f64, Variant)>,
}

/// Trains over the protocol cores, which lose the last packets of every message, by `share`.
fn with_drops(job: &Job, share: f64, variant: Variant) -> Result<Trained> {
    let mut tails = Tails::new(share, job.plan.seed);
    training::with_losses(job, variant, &mut |header, receiver| {
        tails.drops(header, receiver)
    })
}

/// The rows, by share, distribution of the data and variant.
fn rows(arguments: &Arguments, speeds: &[Speed]) -> Result<Vec<Row>> {
    let seeds = usize::from(arguments.training.seeds);
    let mut runs = Vec::new();
    let with_all_seeds = |shards, drops| {
        let run = move |seed| Run {
            job: arguments.training.job(shards, seed),
            drops,
        };
        arguments.training.seeds().map(run)
    };
    for shards in Dealing::ALL {
        runs.extend(with_all_seeds(shards, None));
    }
    for speed in speeds {
        for shards in Dealing::ALL {
            for variant in Variant::ALL {
                runs.extend(with_all_seeds(shards, Some((speed.share, variant))));
            }
        }
    }
    let trained = all("training", &runs, |run| match run.drops {
        None => training::exact(&run.job),
        Some((share, variant)) => with_drops(&run.job, share, variant),
    })?;
    let accuracy = |trained: &[Trained]| {
        let values: Vec<f64> = trained.iter().map(|trained| trained.accuracy).collect();
        Spread::of(&values)
    };
    let mut trained = trained.chunks(seeds);
    let exact: Vec<Spread> = trained
        .by_ref()
        .take(Dealing::ALL.len())
        .map(accuracy)
        .collect();
    let mut rows = Vec::new();
    for speed in speeds {
        for (shards, exact) in Dealing::ALL.into_iter().zip(&exact) {
            for (variant, trained) in Variant::ALL.into_iter().zip(trained.by_ref()) {
                let accuracy = accuracy(trained);
                rows.push(Row {
                    simulated: true,
                    ranks: arguments.training.ranks,
                    bytes: arguments.bytes,
                    rate_bps: arguments.rate,
                    tail: arguments.tail,
                    operations: arguments.operations,
                    share: speed.share,
                    t_s_ms: speed.t_s_ms,
                    t_b_ms: speed.t_b_ms,
                    late_share: speed.late_share,
                    operation_ms: speed.operation_ms,
                    compute_ms: arguments.compute.as_secs_f64() * 1e3,
                    step_ms: speed.step_ms,
                    speed_up: speed.speed_up,
                    shards: shards.name(),
                    hadamard: variant.hadamard,
                    recycling: variant.recycling,
                    steps: arguments.training.steps,
                    seed: arguments.training.seed,
                    seeds: arguments.training.seeds,
                    accuracy: accuracy.mean,
                    accuracy_least: accuracy.least,
                    accuracy_most: accuracy.most,
                    exact: exact.mean,
                    exact_least: exact.least,
                    exact_most: exact.most,
                    replica_spread: trained.iter().map(|t| t.spread).sum::<f64>() / seeds as f64,
                });
            }
        }
    }
    Ok(rows)
}
