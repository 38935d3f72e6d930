//! The summary of runs that differ only in their seeds (CSV): means and confidence intervals.

use anyhow::Result;
use serde::Serialize;
use ultima_sim::{Completion, Report};

use super::file::Grid;

/// The 97.5th percentile of Student's t distribution, by degrees of freedom from 1.
const T975: [f64; 9] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
];
/// The same of the normal distribution, for more degrees of freedom.
const Z975: f64 = 1.960;

/// Runs of an experiment with equal settings. Times are in milliseconds. Intervals are half-widths of the 95 % confidence
/// interval of the mean over the seeds; none with one seed.
#[derive(Debug, Serialize)]
struct Row<'a> {
    experiment: &'a str,
    simulated: bool,
    axis: &'a str,
    value: &'a str,
    /// The other settings that vary.
    settings: String,
    algorithm: &'a str,
    seeds: usize,
    /// Operations of all seeds together.
    operations: u32,
    mean_ms: f64,
    mean_interval_ms: Option<f64>,
    p50_ms: f64,
    p50_interval_ms: Option<f64>,
    p99_ms: f64,
    p99_interval_ms: Option<f64>,
    max_ms: f64,
    arrived_share: f64,
}

/// The mean of `values`, and the half-width of its 95 % confidence interval if there are several.
fn estimate(values: &[f64]) -> (f64, Option<f64>) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let interval = (values.len() > 1).then(|| {
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let t = T975.get(values.len() - 2).copied().unwrap_or(Z975);
        t * (squares / (count - 1.0) / count).sqrt()
    });
    (mean, interval)
}

/// A header and a row for each combination of settings, in the order of the runs.
pub fn csv(results: &[(&Grid, Vec<Report>)]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (grid, reports) in results {
        let settings: Vec<_> = grid
            .runs
            .iter()
            .map(|run| (&run.panel, &run.x, run.experiment.algorithm))
            .collect();
        for (at, key) in settings.iter().enumerate() {
            if settings[..at].contains(key) {
                continue;
            }
            let alike = settings
                .iter()
                .zip(reports)
                .filter(|(other, _)| *other == key);
            let alike: Vec<&Report> = alike.map(|(_, report)| report).collect();
            writer.serialize(row(grid, *key, &alike))?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The settings by which runs differ, except the seed: the panel, the axis and the algorithm.
type Key<'a> = (&'a Vec<(String, String)>, &'a String, ultima_sim::Algorithm);

fn row<'a>(grid: &'a Grid, (panel, x, algorithm): Key<'a>, reports: &[&Report]) -> Row<'a> {
    let over = |figure: fn(&Completion) -> f64| {
        let values = reports.iter().map(|report| figure(&report.completion_ms));
        estimate(&values.collect::<Vec<f64>>())
    };
    let (mean_ms, mean_interval_ms) = over(|times| times.mean);
    let (p50_ms, p50_interval_ms) = over(|times| times.p50);
    let (p99_ms, p99_interval_ms) = over(|times| times.p99);
    let arrived: Vec<f64> = reports.iter().map(|report| report.arrived_share).collect();
    let settings: Vec<String> = panel
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    Row {
        experiment: &grid.name,
        simulated: true,
        axis: grid.x.setting(),
        value: x,
        settings: settings.join(", "),
        algorithm: algorithm.name(),
        seeds: reports.len(),
        operations: reports.iter().map(|report| report.operations).sum(),
        mean_ms,
        mean_interval_ms,
        p50_ms,
        p50_interval_ms,
        p99_ms,
        p99_interval_ms,
        max_ms: reports
            .iter()
            .fold(0.0, |max, report| report.completion_ms.max.max(max)),
        arrived_share: estimate(&arrived).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_student() {
        assert_eq!(estimate(&[4.0]), (4.0, None));
        // Standard deviation 1, three values: 4.303 / √3.
        let (mean, interval) = estimate(&[1.0, 2.0, 3.0]);
        assert_eq!(mean, 2.0);
        assert!((interval.expect("three values") - 2.484).abs() < 0.001);
        let (_, interval) = estimate(&[2.0; 12]);
        assert_eq!(interval, Some(0.0));
    }
}
