//! `ultima-research study tail-drop`: what cutting the tail off costs in accuracy and gains in time.

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

/// Cuts the tail off every message: accuracy and speed-up against the share that is cut
///
/// First the completion times of each algorithm, simulated. Then for each share: the bounds t_S and t_B of `tar` with which
/// that share of contributions and of aggregates comes too late, found by simulation, and what a step takes with them;
/// and the accuracy of a real training job, run over the real protocol cores in this process, which lose that share of
/// every message's packets, the last ones. All of it with each seed; the same arguments give the same bytes.
/// docs/simulation.md says what is modelled.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima-research study tail-drop --ranks 4 --shares 0,0.01,0.1 --seeds 2 --steps 200 --out /tmp/tail-drop"
)]
pub struct Arguments {
    #[command(flatten)]
    training: options::Training,
    /// Shares of every message's packets that are cut, from 0 to under 1
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,0.001,0.005,0.01,0.02,0.05,0.1,0.2",
        value_parser = share_under_one
    )]
    shares: Vec<f64>,
    /// Simulation: the algorithms whose completion times are compared [default: all]
    #[arg(long, value_delimiter = ',', value_parser = algorithms())]
    algorithms: Vec<Algorithm>,
    /// Simulation: bytes of the bucket that is averaged
    #[arg(long, default_value = "25M", value_parser = bytes)]
    bytes: u64,
    /// Simulation: bits per second of a host's link
    #[arg(long, default_value = "10G", value_parser = bit_rate)]
    rate: u64,
    /// Simulation: p99/p50 of one message over one idle hop
    #[arg(long, default_value_t = 3.0, value_name = "RATIO")]
    tail: f64,
    /// Simulation: operations of each run
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    operations: u32,
    /// What a step computes besides its operation; nothing overlaps with that
    #[arg(long, default_value = "40ms", value_parser = duration)]
    compute: Duration,
    /// Also write tables (CSV) and plots (SVG) to this folder; made if it is not there
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

/// Runs the study, prints what it found, and writes it to files where asked to.
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
            ("tail-drop.svg", plot::cuts(&study.rows)?),
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

/// What a share that is cut makes of an operation of `tar`.
struct Speed {
    share: f64,
    t_s_ms: f64,
    t_b_ms: f64,
    late_share: f64,
    operation_ms: f64,
    step_ms: f64,
    speed_up: f64,
}

/// By share.
fn speeds(arguments: &Arguments) -> Result<Vec<Speed>> {
    let tar = arguments.experiment(Algorithm::Tar);
    let mut experiments = all("looking for bounds", &arguments.shares, |share| {
        bounds::cut(&tar, *share)
    })?;
    experiments.push(bounds::uncut(&tar));
    let reports = simulate("simulating cuts", arguments, &experiments)?;
    let mean = |reports: &[Report], figure: fn(&Report) -> f64| {
        reports.iter().map(figure).sum::<f64>() / reports.len() as f64
    };
    let compute_ms = arguments.compute.as_secs_f64() * 1e3;
    let step_ms = |reports: &[Report]| compute_ms + mean(reports, |r| r.completion_ms.mean);
    let uncut_ms = reports.last().map_or(0.0, |reports| step_ms(reports));
    let cuts = arguments.shares.iter().zip(&experiments).zip(&reports);
    Ok(cuts
        .map(|((share, experiment), reports)| {
            let (t_s, t_b) = experiment.bounds();
            Speed {
                share: *share,
                t_s_ms: t_s.as_secs_f64() * 1e3,
                t_b_ms: t_b.as_secs_f64() * 1e3,
                late_share: mean(reports, bounds::late),
                operation_ms: mean(reports, |r| r.completion_ms.mean),
                step_ms: step_ms(reports),
                speed_up: uncut_ms / step_ms(reports),
            }
        })
        .collect())
}

/// A training run: with exact means, or with a share cut.
struct Run {
    job: Job,
    cut: Option<(f64, Variant)>,
}

/// Trains with what the protocol cores deliver when `share` is cut off every message.
fn with_cut(job: &Job, share: f64, variant: Variant) -> Result<Trained> {
    let mut tails = Tails::new(share, job.plan.seed);
    training::with_losses(job, variant, &mut |header, receiver| {
        tails.cuts(header, receiver)
    })
}

/// By share, dealing and variant.
fn rows(arguments: &Arguments, speeds: &[Speed]) -> Result<Vec<Row>> {
    let seeds = usize::from(arguments.training.seeds);
    let mut runs = Vec::new();
    let with_all_seeds = |shards, cut| {
        let run = move |seed| Run {
            job: arguments.training.job(shards, seed),
            cut,
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
    let trained = all("training", &runs, |run| match run.cut {
        None => training::exact(&run.job),
        Some((share, variant)) => with_cut(&run.job, share, variant),
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
