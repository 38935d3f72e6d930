//! The study's results as a table.

use serde::Serialize;

use crate::chart::Spread;
use crate::study::format::accuracy;
use ultima_console::output::table;

/// One loss and one distribution of the data: mean, minimum and maximum over the seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// As on the command line.
    pub loss: String,
    pub shards: &'static str,
    pub ranks: u16,
    pub steps: u32,
    /// First seed.
    pub seed: u64,
    pub seeds: u16,
    /// On the held-out examples, after the last step, with exact means.
    pub exact: f64,
    pub exact_least: f64,
    pub exact_most: f64,
    /// Without recycling.
    pub accuracy_without: f64,
    /// With it.
    pub accuracy_with: f64,
    pub accuracy_with_least: f64,
    pub accuracy_with_most: f64,
    /// ‖Σ applied − Σ exact‖²/‖Σ exact‖² of a run, mean over the ranks.
    pub error_without: f64,
    pub error_without_least: f64,
    pub error_with: f64,
    pub error_with_most: f64,
    /// `error_with` over `error_without`; none without errors.
    pub error_ratio: Option<f64>,
    /// The same of single steps, mean over them.
    pub step_error_without: f64,
    pub step_error_with: f64,
    /// The largest distance of a replica from rank 0's at the end, in units of its norm.
    pub spread_without: f64,
    pub spread_with: f64,
    pub spread_with_most: f64,
    /// Default bound of the drift rule: smaller distances are not corrected.
    pub spread_bound: f64,
}

/// Largest expected error with recycling, in units of the error without.
const ERROR_RATIO: f64 = 0.1;

impl Row {
    pub fn exact(&self) -> Spread {
        Spread {
            least: self.exact_least,
            mean: self.exact,
            most: self.exact_most,
        }
    }

    pub fn accuracy_with(&self) -> Spread {
        Spread {
            least: self.accuracy_with_least,
            mean: self.accuracy_with,
            most: self.accuracy_with_most,
        }
    }

    /// The goals of recycling that the row misses.
    pub fn misses(&self) -> Vec<&'static str> {
        let exact = self.exact_least..=self.exact_most;
        [
            (
                self.error_ratio.is_none_or(|ratio| ratio <= ERROR_RATIO),
                "error",
            ),
            (exact.contains(&self.accuracy_with), "accuracy"),
            (self.spread_with_most <= self.spread_bound, "replicas"),
        ]
        .into_iter()
        .filter_map(|(holds, what)| (!holds).then_some(what))
        .collect()
    }
}

/// The table as text.
pub fn text(rows: &[Row]) -> String {
    let header = [
        "loss",
        "shards",
        "exact",
        "without",
        "with",
        "run's error without",
        "with",
        "ratio",
        "step's error without",
        "with",
        "replicas without",
        "with, most",
        "misses",
    ];
    let lines = rows.iter().map(|row| {
        let misses = row.misses();
        [
            row.loss.clone(),
            row.shards.to_owned(),
            accuracy(row.exact()),
            format!("{:.1}", row.accuracy_without * 100.0),
            accuracy(row.accuracy_with()),
            format!("{:.1e}", row.error_without),
            format!("{:.1e}", row.error_with),
            row.error_ratio
                .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}")),
            format!("{:.2}", row.step_error_without),
            format!("{:.2}", row.step_error_with),
            format!("{:.1e}", row.spread_without),
            format!("{:.1e}", row.spread_with_most),
            match misses.is_empty() {
                true => "none".to_owned(),
                false => misses.join(", "),
            },
        ]
    });
    let bound = rows.first().map_or(0.0, |row| row.spread_bound);
    format!(
        "Training with simulated losses, without and with recycling. Accuracy in %: mean over the seeds ± the largest \
         deviation. Goals with recycling: at most a tenth of the run's error, accuracy within the range of exact runs, \
         replicas within {bound}; \"misses\" lists the goals that a row misses\n\n{}",
        table(header, lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_is_named() {
        let row = Row {
            loss: "0.01:6".into(),
            shards: "random",
            ranks: 4,
            steps: 10,
            seed: 1,
            seeds: 2,
            exact: 0.95,
            exact_least: 0.94,
            exact_most: 0.96,
            accuracy_without: 0.9,
            accuracy_with: 0.955,
            accuracy_with_least: 0.93,
            accuracy_with_most: 0.97,
            error_without: 1e-2,
            error_without_least: 1e-2,
            error_with: 1e-3,
            error_with_most: 1e-2,
            error_ratio: Some(0.1),
            step_error_without: 0.1,
            step_error_with: 0.2,
            spread_without: 0.1,
            spread_with: 1e-3,
            spread_with_most: 5e-3,
            spread_bound: 5e-3,
        };
        assert!(row.misses().is_empty() && text(std::slice::from_ref(&row)).contains("none"));
        let bad = Row {
            accuracy_with: 0.939,
            error_ratio: Some(0.11),
            spread_with_most: 6e-3,
            ..row
        };
        assert_eq!(bad.misses(), ["error", "accuracy", "replicas"]);
        assert!(text(&[bad]).contains("error, accuracy, replicas"));
    }
}
