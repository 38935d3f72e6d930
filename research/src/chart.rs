//! Shared parts of all plots.

use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use ultima_sim::Algorithm;

/// A drawing area.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The font of all text.
pub const FONT: &str = "sans-serif";

/// An algorithm's colour; all are distinct with any colour vision (Okabe and Ito, 2008).
pub fn colour(algorithm: Algorithm) -> RGBColor {
    match algorithm {
        Algorithm::Tar => RGBColor(0, 0, 0),
        Algorithm::Tar2d => RGBColor(120, 120, 120),
        Algorithm::TarTcp => RGBColor(0, 114, 178),
        Algorithm::Ring => RGBColor(213, 94, 0),
        Algorithm::Tree => RGBColor(0, 158, 115),
        Algorithm::HalvingDoubling => RGBColor(204, 121, 167),
        Algorithm::Bcube => RGBColor(230, 159, 0),
        Algorithm::ParameterServer => RGBColor(86, 180, 233),
        Algorithm::SwitchAggregation => RGBColor(150, 140, 20),
    }
}

/// One figure over the seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub least: f64,
    pub mean: f64,
    pub most: f64,
}

impl Spread {
    /// The spread of one value or more.
    pub fn of(values: &[f64]) -> Self {
        Self {
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            most: values.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// An axis with given marks.
pub struct Marked {
    /// From its one end to the other.
    pub range: Range<f64>,
    pub marks: Vec<f64>,
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.marks.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Marks of a logarithmic axis that enclose `least` and `most`, both over 0: 1, 2 and 5 times powers of 10, or these
/// alone where that would be too many.
pub fn decades(least: f64, most: f64) -> Vec<f64> {
    let enclosing = |digits: &[f64]| -> Vec<f64> {
        let steps: Vec<f64> = (-9..12)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
            .collect();
        let first = steps.partition_point(|step| *step <= least).max(1) - 1;
        let last = steps.partition_point(|step| *step < most);
        steps[first..=last.max(first + 1).min(steps.len() - 1)].to_vec()
    };
    let fine = enclosing(&[1.0, 2.0, 5.0]);
    match fine.len() {
        0..=12 => fine,
        _ => enclosing(&[1.0]),
    }
}

/// A number of milliseconds as a tick has it.
pub fn milliseconds(ms: f64) -> String {
    let digits = (-ms.log10().floor()).max(0.0) as usize;
    format!("{ms:.digits$}")
}

/// Plotters' errors borrow the picture.
pub fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a plot cannot be drawn: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_enclose_what_was_measured() {
        assert_eq!(decades(0.3, 4.0), [0.2, 0.5, 1.0, 2.0, 5.0]);
        assert_eq!(decades(1.0, 1.0), [1.0, 2.0]);
        let wide = decades(0.003, 4000.0);
        assert_eq!(wide, [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0]);
        let texts = [0.002, 0.5, 20.0].map(milliseconds);
        assert_eq!(texts, ["0.002", "0.5", "20"]);
    }
}
