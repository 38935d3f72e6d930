//! Runs an experiment file on all cores, and writes its table and plots.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use ultima_sim::{Experiment, Report};

use super::file::{self, Grid, Run};
use super::{plot, summary, table};
use ultima_console::input::{name_of, read_text};
use ultima_console::output::write_whole;

/// The experiments of `runs`, with calibrated background flows: those that calibrate alike do so once.
fn calibrated(runs: &[&Run]) -> Result<Vec<Experiment>> {
    let mut rings: Vec<Experiment> = Vec::new();
    for ring in runs
        .iter()
        .filter_map(|run| run.experiment.calibration_ring())
    {
        if !rings.contains(&ring) {
            rings.push(ring);
        }
    }
    let calibrations: Vec<_> = rings
        .par_iter()
        .map(Experiment::calibrate)
        .collect::<Result<_, _>>()?;
    let with_calibration = |run: &&Run| {
        let ring = run.experiment.calibration_ring();
        let at = ring.and_then(|ring| rings.iter().position(|other| *other == ring));
        match at.and_then(|at| calibrations[at]) {
            Some(calibration) => run.experiment.calibrated(calibration),
            None => run.experiment.clone(),
        }
    };
    Ok(runs.iter().map(with_calibration).collect())
}

/// Runs the experiments of `file`, and writes a table, a summary and a plot of each to `out`; returns the paths of the written files.
///
/// Writes each file whole, after all runs have ended. Runs are in the file's order.
///
/// # Errors
/// Before any run, if the file cannot be read or is invalid (with line and column); if the folder cannot be written.
pub fn run(file: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let file = file::parse(&read_text(file)?, &name_of(file))?;
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let runs: Vec<_> = file
        .experiments
        .iter()
        .flat_map(|grid| &grid.runs)
        .collect();
    let style = ProgressStyle::with_template("simulating {bar:40} {pos}/{len} runs, {elapsed}")?;
    let bar = ProgressBar::new(runs.len() as u64).with_style(style);
    let experiments = calibrated(&runs)?;
    let reports: Vec<Report> = experiments
        .par_iter()
        .with_max_len(1)
        .map(|experiment| {
            let report = experiment.run(&mut |_| ());
            bar.inc(1);
            report
        })
        .collect::<Result<_, _>>()?;
    bar.finish_and_clear();
    let mut reports = reports.into_iter();
    let results: Vec<(&Grid, Vec<Report>)> = file
        .experiments
        .iter()
        .map(|grid| (grid, reports.by_ref().take(grid.runs.len()).collect()))
        .collect();
    let mut written = vec![
        write_whole(out, "results.csv", &table::csv(&results)?)?,
        write_whole(out, "summary.csv", &summary::csv(&results)?)?,
    ];
    for (grid, reports) in &results {
        let svg = plot::draw(file.title.as_deref(), grid, reports)?;
        written.push(write_whole(out, &format!("{}.svg", grid.name), &svg)?);
    }
    Ok(written)
}
