//! What the study found, as pictures.

use anyhow::Result;
use plotters::prelude::*;
use ultima_sim::Algorithm;

use super::completion::Completion;
use super::table::{Row, percent};
use super::training::Variant;
use crate::command::chart::{Area, FONT, Marked, Spread, colour, decades, failed, milliseconds};
use crate::demo::shards::Dealing;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;
/// What stands over the panels: title, settings and legend.
const HEAD: u32 = 84;
/// What was not cut.
const EXACT: RGBColor = RGBColor(160, 160, 160);

/// Of [`Variant::ALL`], told apart with any colour vision (Okabe and Ito, 2008).
const VARIANTS: [RGBColor; 4] = [
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 0, 0),
];

/// The share of each algorithm's operations that took a time or less.
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

/// Accuracy, for each way to deal the data, and speed-up against the share that is cut.
///
/// # Errors
/// None that depends on what was measured.
pub fn cuts(rows: &[Row]) -> Result<String> {
    let mut shares: Vec<f64> = rows.iter().map(|row| row.share).collect();
    shares.dedup();
    // Shares span decades and begin with none: they stand side by side.
    let at = |share: f64| shares.iter().position(|other| *other == share).unwrap_or(0) as f64;
    let axis = || Marked {
        range: -0.3..shares.len() as f64 - 0.7,
        marks: (0..shares.len()).map(|at| at as f64).collect(),
    };
    let x_text = |at: f64| percent(shares[(at.round().max(0.0) as usize).min(shares.len() - 1)]);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (above, below) = root.split_vertically(HEAD);
        let row = &rows[0];
        let settings = format!(
            "{} ranks; training of {} steps, {} seeds: mean, least to most; steps of {} bytes at {} Gb/s, tail {}, {} ms of computing",
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
            "Tail drop: accuracy of real training with losses made up, SIMULATED speed-up",
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
            let caption = format!("shards dealt: {}", shards.name());
            let panel = Panel {
                caption: &caption,
                x_name: "cut",
                y_name: "accuracy, %",
                x: axis(),
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
            x_name: "cut",
            y_name: "times as fast",
            x: axis(),
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

/// Axes and what they are called.
struct Panel<'a> {
    caption: &'a str,
    x_name: &'a str,
    y_name: &'a str,
    x: Marked,
    x_text: &'a dyn Fn(f64) -> String,
    y: Marked,
    y_text: &'a dyn Fn(f64) -> String,
}

/// One line of a panel.
struct Curve {
    colour: RGBColor,
    points: Vec<(f64, f64)>,
    /// From the least to the most, in shares of 1.
    bars: Vec<(f64, Spread)>,
    dots: bool,
}

fn draw(area: &Area<'_>, panel: Panel<'_>, curves: impl Iterator<Item = Curve>) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(20)
        .caption(panel.caption, (FONT, 15))
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(panel.x, panel.y)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|at| (panel.x_text)(*at))
        .y_label_formatter(&|at| (panel.y_text)(*at))
        .x_desc(panel.x_name)
        .y_desc(panel.y_name)
        .axis_desc_style((FONT, 13))
        .label_style((FONT, 11))
        .draw()
        .map_err(failed)?;
    for curve in curves {
        let dots: Vec<_> = match curve.dots {
            true => curve.points.clone(),
            false => Vec::new(),
        };
        let dots = dots
            .into_iter()
            .map(|at| Circle::new(at, 3, curve.colour.filled()));
        chart.draw_series(dots).map_err(failed)?;
        let bars = curve.bars.iter().map(|(at, spread)| {
            let ends = vec![(*at, spread.least * 100.0), (*at, spread.most * 100.0)];
            PathElement::new(ends, curve.colour.stroke_width(1))
        });
        chart.draw_series(bars).map_err(failed)?;
        let line = PathElement::new(curve.points, curve.colour.stroke_width(2));
        chart.draw_series([line]).map_err(failed)?;
    }
    Ok(())
}

fn head(area: &Area<'_>, title: &str, settings: &str, lines: &[(&str, RGBColor)]) -> Result<()> {
    let text = |text: &str, at: (i32, i32), size: u32| {
        let style = (FONT, size).into_font().color(&BLACK);
        let text = Text::new(text.to_owned(), at, style);
        area.draw(&text).map_err(failed)
    };
    text(title, (20, 10), 19)?;
    text(settings, (20, 36), 13)?;
    let mut x = 20;
    for (name, colour) in lines {
        let line = PathElement::new(vec![(x, 68), (x + 26, 68)], colour.stroke_width(2));
        area.draw(&line).map_err(failed)?;
        text(name, (x + 32, 62), 13)?;
        x += 48 + 7 * name.chars().count() as i32;
    }
    Ok(())
}

/// Marks of an even axis that enclose `least` and `most`: at most about eight steps of 1, 2 or 5 times a power of 10.
fn linear(least: f64, most: f64) -> Vec<f64> {
    let room = (most - least).max(1e-3);
    let power = 10f64.powf((room / 8.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = steps.into_iter().find(|step| room / step <= 8.0);
    let step = step.unwrap_or(10.0 * power);
    let first = (least / step).floor() as i64;
    let last = ((most / step).ceil() as i64).max(first + 1);
    (first..=last).map(|at| at as f64 * step).collect()
}

/// A number as a tick has it.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_enclose_what_was_measured() {
        let texts = |marks: Vec<f64>| marks.into_iter().map(short).collect::<Vec<_>>().join(" ");
        assert_eq!(
            texts(linear(93.2, 97.1)),
            "93 93.5 94 94.5 95 95.5 96 96.5 97 97.5"
        );
        assert_eq!(texts(linear(1.0, 1.23)), "1 1.05 1.1 1.15 1.2 1.25");
        assert_eq!(texts(linear(5.0, 5.0)), "5 5");
    }
}
