//! The study's results as plots.

use anyhow::Result;
use plotters::prelude::*;
use ultima_sim::Algorithm;

use super::completion::Completion;
use super::table::Row;
use crate::chart::{Marked, colour, decades, failed, milliseconds};
use crate::study::figure::{Curve, HEAD, HEIGHT, Panel, WIDTH, draw, head, linear, side_by_side};
use crate::study::format::{percent, short};
use crate::study::training::Variant;
use ultima_digits::shards::Dealing;

/// Colour of exact results.
const EXACT: RGBColor = RGBColor(160, 160, 160);

/// Colours of [`Variant::ALL`], distinct with any colour vision (Okabe and Ito, 2008).
const VARIANTS: [RGBColor; 4] = [
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 0, 0),
];

/// Plots the distribution of each algorithm's completion times.
///
/// # Errors
/// None that depends on what was measured.
pub fn distributions(completion: &[Completion]) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (above, below) = root.split_vertically(HEAD);
        let of = &completion[0];
        let settings = format!(
            "{} ranks, {} bytes, {} Gb/s, tail {}, {} operations each",
            of.ranks,
            of.bytes,
            of.rate_bps as f64 / 1e9,
            of.tail,
            of.operations
        );
        let lines: Vec<(&str, RGBColor)> = Algorithm::ALL
            .into_iter()
            .filter(|algorithm| completion.iter().any(|of| of.algorithm == algorithm.name()))
            .map(|algorithm| (algorithm.name(), colour(algorithm)))
            .collect();
        head(&above, "SIMULATED: completion times", &settings, &lines)?;
        let points = || completion.iter().flat_map(Completion::distribution);
        let least = points().map(|point| point.ms).fold(f64::INFINITY, f64::min);
        let most = points().map(|point| point.ms).fold(0.0, f64::max);
        let powers: Vec<f64> = decades(least.max(1e-6), most.max(2e-6))
            .iter()
            .map(|ms| ms.log10())
            .collect();
        let panel = Panel {
            caption: "",
            x_name: "completion time, ms",
            y_name: "share of the operations",
            x: Marked {
                range: powers[0]..powers[powers.len() - 1],
                marks: powers,
            },
            x_text: &|power| milliseconds(10f64.powf(power)),
            y: Marked {
                range: 0.0..1.0,
                marks: linear(0.0, 1.0),
            },
            y_text: &|share| format!("{share:.1}"),
        };
        let curves = completion.iter().flat_map(|of| {
            let named = |algorithm: &Algorithm| algorithm.name() == of.algorithm;
            let algorithm = Algorithm::ALL.into_iter().find(named)?;
            let points = of
                .distribution()
                .map(|point| (point.ms.log10(), point.share));
            Some(Curve {
                colour: colour(algorithm),
                points: points.collect(),
                bars: Vec::new(),
                dots: false,
            })
        });
        draw(&below, panel, curves)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Plots accuracy, for each distribution of the data, and speed-up against the dropped share.
///
/// # Errors
/// None that depends on what was measured.
pub fn accuracies(rows: &[Row]) -> Result<String> {
    let mut shares: Vec<f64> = rows.iter().map(|row| row.share).collect();
    shares.dedup();
    // Shares span decades and begin with none: they stand side by side.
    let at = |share: f64| shares.iter().position(|other| *other == share).unwrap_or(0) as f64;
    let x_text = |at: f64| percent(shares[(at.round().max(0.0) as usize).min(shares.len() - 1)]);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (above, below) = root.split_vertically(HEAD);
        let row = &rows[0];
        let settings = format!(
            "{} ranks; training of {} steps, {} seeds: mean, minimum to maximum; steps of {} bytes at {} Gb/s, tail {}, {} ms of computing",
            row.ranks,
            row.steps,
            row.seeds,
            row.bytes,
            row.rate_bps as f64 / 1e9,
            row.tail,
            row.compute_ms
        );
        let mut lines = vec![("exact", EXACT)];
        lines.extend(Variant::ALL.map(Variant::name).into_iter().zip(VARIANTS));
        head(
            &above,
            "Tail drop: accuracy of training with simulated losses, SIMULATED speed-up",
            &settings,
            &lines,
        )?;
        let panels = below.split_evenly((1, 3));
        let values = rows
            .iter()
            .flat_map(|row| [row.accuracy_least, row.accuracy_most, row.exact]);
        let least = values.clone().fold(f64::INFINITY, f64::min) * 100.0;
        let most = values.fold(0.0, f64::max) * 100.0;
        for (area, shards) in panels.iter().zip(Dealing::ALL) {
            let marks = linear(least, most);
            let caption = format!("shards: {}", shards.name());
            let panel = Panel {
                caption: &caption,
                x_name: "dropped share",
                y_name: "accuracy, %",
                x: side_by_side(shares.len()),
                x_text: &x_text,
                y: Marked {
                    range: marks[0]..marks[marks.len() - 1],
                    marks,
                },
                y_text: &short,
            };
            let of = |variant: Variant| {
                rows.iter().filter(move |row| {
                    row.shards == shards.name()
                        && (row.hadamard, row.recycling) == (variant.hadamard, variant.recycling)
                })
            };
            let exact = Curve {
                colour: EXACT,
                points: of(Variant::ALL[0])
                    .map(|row| (at(row.share), row.exact * 100.0))
                    .collect(),
                bars: Vec::new(),
                dots: false,
            };
            let variants = Variant::ALL.into_iter().zip(VARIANTS);
            let curves = variants.map(|(variant, colour)| Curve {
                colour,
                points: of(variant)
                    .map(|row| (at(row.share), row.accuracy * 100.0))
                    .collect(),
                bars: of(variant)
                    .map(|row| (at(row.share), row.accuracy()))
                    .collect(),
                dots: true,
            });
            draw(area, panel, std::iter::once(exact).chain(curves))?;
        }
        let fastest = rows.iter().map(|row| row.speed_up).fold(1.0, f64::max);
        let slowest = rows.iter().map(|row| row.speed_up).fold(1.0, f64::min);
        let marks = linear(slowest, fastest);
        let panel = Panel {
            caption: "speed-up of a step",
            x_name: "dropped share",
            y_name: "times as fast",
            x: side_by_side(shares.len()),
            x_text: &x_text,
            y: Marked {
                range: marks[0]..marks[marks.len() - 1],
                marks,
            },
            y_text: &short,
        };
        let points = rows.iter().map(|row| (at(row.share), row.speed_up));
        let curve = Curve {
            colour: BLACK,
            points: points.collect(),
            bars: Vec::new(),
            dots: true,
        };
        draw(&panels[2], panel, std::iter::once(curve))?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}
