//! The table: BMv2, the embedded switch and their ratio, each as the median and the range over rounds.

use std::fmt;

/// A quantity measured at both switches, round by round.
pub struct Row {
    /// Its name.
    pub name: String,
    /// BMv2's values.
    pub bmv2: Vec<f64>,
    /// The embedded switch's values, of the same rounds.
    pub embedded: Vec<f64>,
    /// The number of decimal places.
    pub digits: usize,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratios: Vec<f64> = (self.embedded.iter().zip(&self.bmv2))
            .map(|(embedded, bmv2)| embedded / bmv2)
            .collect();
        write!(
            f,
            "| {} | {} | {} | {} |",
            self.name,
            spread(&self.bmv2, self.digits),
            spread(&self.embedded, self.digits),
            spread(&ratios, 2)
        )
    }
}

/// The head of the table.
pub fn head() -> &'static str {
    "| median (least–most) | BMv2 | embedded switch | ratio |\n| --- | --- | --- | --- |"
}

fn spread(values: &[f64], digits: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
        return "–".to_owned();
    };
    let median = percentile(&sorted, 50.0);
    format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
}

/// A percentile of sorted values.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * percent / 100.0).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
