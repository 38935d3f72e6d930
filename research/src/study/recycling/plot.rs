//! The study's results as a plot.

use anyhow::Result;
use plotters::prelude::*;

use super::table::Row;
use crate::chart::{Marked, Spread, failed};
use crate::study::figure::{Curve, HEAD, HEIGHT, Panel, WIDTH, draw, head, linear, side_by_side};
use crate::study::format::short;
use ultima_digits::shards::Dealing;

/// Colour of exact results and of bounds.
const BOUND: RGBColor = RGBColor(160, 160, 160);
/// By dealing: without recycling, and with it (Okabe and Ito, 2008).
const COLOURS: [[RGBColor; 2]; 2] = [
    [RGBColor(213, 94, 0), RGBColor(0, 114, 178)],
    [RGBColor(230, 159, 0), RGBColor(0, 0, 0)],
];

/// The figures of a row in a panel: without and with recycling, the bound, and the spread over the seeds.
struct Figures {
    without: f64,
    with: f64,
    bound: f64,
    spread: Option<Spread>,
}

/// Plots errors of runs, distances of replicas and accuracy against the loss.
///
/// # Errors
/// None that depends on what was measured.
pub fn runs(rows: &[Row]) -> Result<String> {
    let mut losses: Vec<&str> = rows.iter().map(|row| &*row.loss).collect();
    losses.dedup();
    let x_text = |at: f64| losses[(at.round().max(0.0) as usize).min(losses.len() - 1)].to_owned();
    let axis = |caption, y_name, y, y_text| Panel {
        caption,
        x_name: "loss, P:LENGTH of bursts",
        y_name,
        x: side_by_side(losses.len()),
        x_text: &x_text,
        y,
        y_text,
    };
    let curves = |of: &dyn Fn(&Row) -> Figures| {
        let mut curves = Vec::new();
        for (shards, colours) in Dealing::ALL.into_iter().zip(COLOURS) {
            let figures: Vec<(f64, Figures)> = rows
                .iter()
                .filter(|row| row.shards == shards.name())
                .enumerate()
                .map(|(at, row)| (at as f64, of(row)))
                .collect();
            let curve = |colour, dots, figure: &dyn Fn(&Figures) -> f64| Curve {
                colour,
                points: figures.iter().map(|(at, of)| (*at, figure(of))).collect(),
                bars: Vec::new(),
                dots,
            };
            curves.push(curve(BOUND, false, &|of| of.bound));
            curves.push(curve(colours[0], true, &|of| of.without));
            curves.push(Curve {
                bars: figures
                    .iter()
                    .filter_map(|(at, of)| Some((*at, of.spread?)))
                    .collect(),
                ..curve(colours[1], true, &|of| of.with)
            });
        }
        curves
    };
    // The error may be 0, which has no logarithm.
    let log = |value: f64| value.max(1e-9).log10();
    let error = |row: &Row| Figures {
        without: log(row.error_without),
        with: log(row.error_with),
        bound: log(row.error_without / 10.0),
        spread: None,
    };
    let replicas = |row: &Row| Figures {
        without: log(row.spread_without),
        with: log(row.spread_with),
        bound: log(row.spread_bound),
        spread: None,
    };
    let accuracy = |row: &Row| Figures {
        without: row.accuracy_without * 100.0,
        with: row.accuracy_with * 100.0,
        bound: row.exact * 100.0,
        spread: Some(row.accuracy_with()),
    };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (above, below) = root.split_vertically(HEAD);
        let row = &rows[0];
        let settings = format!(
            "{} ranks, {} steps, {} seeds: mean; accuracy with recycling: minimum to maximum",
            row.ranks, row.steps, row.seeds
        );
        let lines = [
            ("random: without", COLOURS[0][0]),
            ("with", COLOURS[0][1]),
            ("by class: without", COLOURS[1][0]),
            ("with", COLOURS[1][1]),
            ("goal (a tenth), bound, exact", BOUND),
        ];
        let title = "Recycling: training with simulated losses";
        head(&above, title, &settings, &lines)?;
        let panels = below.split_evenly((1, 3));
        let text = |power: f64| format!("1e{power:.0}");
        for (area, caption, y_name, of) in [
            (
                &panels[0],
                "error of a run",
                "of the exact sum's energy",
                &error as &dyn Fn(&Row) -> Figures,
            ),
            (
                &panels[1],
                "replicas at the end",
                "of their norm",
                &replicas,
            ),
        ] {
            let curves = curves(of);
            let (least, most) = range(&curves);
            // Whole powers of ten that enclose them.
            let first = least.floor() as i32;
            let last = (most.ceil() as i32).max(first + 1);
            let marks: Vec<f64> = (first..=last).map(f64::from).collect();
            let y = Marked {
                range: f64::from(first)..f64::from(last),
                marks,
            };
            draw(area, axis(caption, y_name, y, &text), curves.into_iter())?;
        }
        let curves = curves(&accuracy);
        let (least, most) = range(&curves);
        let marks = linear(least, most);
        let y = Marked {
            range: marks[0]..marks[marks.len() - 1],
            marks,
        };
        let panel = axis("accuracy", "on held-out examples, %", y, &short);
        draw(&panels[2], panel, curves.into_iter())?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Minimum and maximum of the curves.
fn range(curves: &[Curve]) -> (f64, f64) {
    let bars = |curve: &Curve| {
        let ends = |(_, spread): &(f64, Spread)| [spread.least * 100.0, spread.most * 100.0];
        curve.bars.iter().flat_map(ends).collect::<Vec<_>>()
    };
    let values = curves.iter().flat_map(|curve| {
        let points = curve.points.iter().map(|point| point.1);
        points.chain(bars(curve)).collect::<Vec<_>>()
    });
    values.fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(least, most), value| (least.min(value), most.max(value)),
    )
}
