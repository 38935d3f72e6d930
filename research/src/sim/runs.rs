//! Runs an experiment file on all cores, and writes its table and plots.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use ultima_sim::Report;

use super::file::{self, Grid};
use super::{plot, table};
use ultima_console::input::{name_of, read_text};
use ultima_console::output::write_whole;

/// Runs the experiments of `file`, and writes a table and a plot of each to `out`; returns the paths of the written files.
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
    let reports: Vec<Report> = runs
        .par_iter()
        .with_max_len(1)
        .map(|run| {
            let report = run.experiment.run(&mut |_| ());
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
    let mut written = vec![write_whole(out, "results.csv", &table::csv(&results)?)?];
    for (grid, reports) in &results {
        let svg = plot::draw(file.title.as_deref(), grid, reports)?;
        written.push(write_whole(out, &format!("{}.svg", grid.name), &svg)?);
    }
    Ok(written)
}
