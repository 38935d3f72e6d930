//! Plot of an experiment: p50 and p99 of the completion times against the setting on its axis.

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::*;
use ultima_sim::{Algorithm, Report};

use super::file::{Axis, Grid, Run};
use crate::chart::{Area, FONT, Marked, Spread, colour, decades, failed, milliseconds};

const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 300;
/// Height of the title and the settings above the panels; the legend adds lines.
const HEAD: u32 = 62;
const LEGEND_LINE: u32 = 20;

/// The figure of a run that a panel shows.
#[derive(Clone, Copy)]
enum Figure {
    P50,
    P99,
}

impl Figure {
    fn of(self, report: &Report) -> f64 {
        match self {
            Figure::P50 => report.completion_ms.p50,
            Figure::P99 => report.completion_ms.p99,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Figure::P50 => "p50",
            Figure::P99 => "p99",
        }
    }
}

/// The values on the horizontal axis, from the left.
struct Ticks {
    /// Each value's position on the axis, and its text.
    marks: Vec<(f64, String)>,
}

impl Ticks {
    fn new(grid: &Grid) -> Self {
        let mut marks: Vec<(f64, String)> = Vec::new();
        for run in &grid.runs {
            if !marks.iter().any(|(_, text)| *text == run.x) {
                let e = &run.experiment;
                let at = match grid.x {
                    Axis::Ranks => f64::from(e.ranks).log2(),
                    Axis::Bytes => (e.bytes as f64).log2(),
                    Axis::Tail => e.tail,
                    Axis::Background => e.network.background.map_or(1.0, |b| b.ratio),
                    // Models of loss have no common scale.
                    Axis::Loss => marks.len() as f64,
                };
                marks.push((at, run.x.clone()));
            }
        }
        marks.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self { marks }
    }

    /// With some room on both sides.
    fn range(&self) -> Range<f64> {
        let positions = || self.marks.iter().map(|(at, _)| *at);
        let [least, most] = [
            positions().fold(f64::INFINITY, f64::min),
            positions().fold(f64::NEG_INFINITY, f64::max),
        ];
        let room = ((most - least) * 0.06).max(0.2);
        least - room..most + room
    }

    fn text(&self, position: f64) -> String {
        let near = |(at, _): &&(f64, String)| (at - position).abs() < 1e-9;
        let mark = self.marks.iter().find(near);
        mark.map_or_else(String::new, |(_, text)| text.clone())
    }
}

/// The label of the horizontal axis.
fn axis_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Ranks => "ranks",
        Axis::Bytes => "bytes of the bucket",
        Axis::Tail => "tail: p99/p50 of a message",
        Axis::Background => "background flows: p99/p50 of a ring",
        Axis::Loss => "loss on links to hosts",
    }
}

/// The picture of `grid`, whose runs gave `reports`, as SVG.
///
/// # Errors
/// None that depends on what was measured.
pub fn draw(title: Option<&str>, grid: &Grid, reports: &[Report]) -> Result<String> {
    let mut algorithms: Vec<Algorithm> = Vec::new();
    let mut panels: Vec<&[(String, String)]> = Vec::new();
    for run in &grid.runs {
        if !algorithms.contains(&run.experiment.algorithm) {
            algorithms.push(run.experiment.algorithm);
        }
        if !panels.contains(&&*run.panel) {
            panels.push(&run.panel);
        }
    }
    let legend = legend(&algorithms);
    let lines = legend.iter().map(|entry| entry.at.1).max().unwrap_or(0) / LEGEND_LINE as i32 + 1;
    let head = HEAD + LEGEND_LINE * lines as u32;
    let height = head + PANEL_HEIGHT * panels.len() as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (above, below) = root.split_vertically(head);
        draw_head(&above, title, grid, reports, &legend)?;
        let ticks = Ticks::new(grid);
        let all = reports
            .iter()
            .flat_map(|r| [r.completion_ms.p50, r.completion_ms.p99, r.bound_ms]);
        let least = all.clone().fold(f64::INFINITY, f64::min).max(1e-6);
        let most = all.fold(0.0, f64::max).max(2e-6);
        let times = decades(least, most);
        let rows = below.split_evenly((panels.len(), 1));
        for (row, panel) in rows.iter().zip(&panels) {
            let chosen = grid.runs.iter().zip(reports);
            let chosen: Vec<_> = chosen.filter(|(run, _)| run.panel == **panel).collect();
            for (area, figure) in row
                .split_evenly((1, 2))
                .iter()
                .zip([Figure::P50, Figure::P99])
            {
                let caption = std::iter::once(figure.name().to_owned())
                    .chain(panel.iter().map(|(name, value)| format!("{name} {value}")))
                    .collect::<Vec<_>>()
                    .join(", ");
                draw_panel(area, &caption, figure, grid.x, &ticks, &times, &chosen)?;
            }
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// An entry of the legend, and its position below the settings.
struct Entry {
    text: &'static str,
    colour: RGBColor,
    at: (i32, i32),
}

const BOUND: RGBColor = RGBColor(160, 160, 160);

fn legend(algorithms: &[Algorithm]) -> Vec<Entry> {
    let named = algorithms.iter().map(|a| (a.name(), colour(*a)));
    let mut at = (20, 0);
    named
        .chain([("2·S·(N−1)/N bytes at the links' rate", BOUND)])
        .map(|(text, colour)| {
            let width = 48 + 7 * text.chars().count() as i32;
            if at.0 + width > WIDTH as i32 {
                at = (20, at.1 + LEGEND_LINE as i32);
            }
            let entry = Entry { text, colour, at };
            at.0 += width;
            entry
        })
        .collect()
}

fn draw_head(
    area: &Area<'_>,
    title: Option<&str>,
    grid: &Grid,
    reports: &[Report],
    legend: &[Entry],
) -> Result<()> {
    let text = |text: String, at: (i32, i32), size: u32| {
        let style = (FONT, size).into_font().color(&BLACK);
        area.draw(&Text::new(text, at, style)).map_err(failed)
    };
    let name = match title {
        Some(title) => format!("SIMULATED: {title} ({})", grid.name),
        None => format!("SIMULATED: {}", grid.name),
    };
    text(name, (20, 10), 19)?;
    let mut settings: Vec<String> = grid
        .fixed
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let mut seeds: Vec<u64> = reports.iter().map(|report| report.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    if seeds.len() > 1 {
        settings.push(format!("{} seeds: mean, minimum to maximum", seeds.len()));
    }
    text(settings.join(", "), (20, 36), 13)?;
    for Entry {
        text: name,
        colour,
        at,
    } in legend
    {
        let (x, y) = (at.0, at.1 + HEAD as i32);
        let line = PathElement::new(vec![(x, y + 6), (x + 26, y + 6)], colour.stroke_width(2));
        area.draw(&line).map_err(failed)?;
        text((*name).to_owned(), (x + 32, y), 13)?;
    }
    Ok(())
}

fn draw_panel(
    area: &Area<'_>,
    caption: &str,
    figure: Figure,
    axis: Axis,
    ticks: &Ticks,
    times: &[f64],
    runs: &[(&Run, &Report)],
) -> Result<()> {
    let x = Marked {
        range: ticks.range(),
        marks: ticks.marks.iter().map(|mark| mark.0).collect(),
    };
    let powers: Vec<f64> = times.iter().map(|ms| ms.log10()).collect();
    let y = Marked {
        range: powers[0]..powers[powers.len() - 1],
        marks: powers,
    };
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(20)
        .caption(caption, (FONT, 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|at| ticks.text(*at))
        .y_label_formatter(&|power| milliseconds(10f64.powf(*power)))
        .x_desc(axis_name(axis))
        .y_desc("completion time, ms")
        .axis_desc_style((FONT, 13))
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    // By tick: the runs there.
    let there: Vec<(f64, Vec<&Report>)> = ticks
        .marks
        .iter()
        .map(|(at, text)| {
            let here = runs.iter().filter(|(run, _)| run.x == *text);
            (*at, here.map(|(_, report)| *report).collect())
        })
        .collect();
    let bound = there
        .iter()
        .filter_map(|(at, reports)| Some((*at, reports.first()?.bound_ms.log10())));
    let bound = PathElement::new(bound.collect::<Vec<_>>(), BOUND.stroke_width(1));
    chart.draw_series([bound]).map_err(failed)?;
    for algorithm in Algorithm::ALL {
        let colour = colour(algorithm);
        let spreads: Vec<(f64, Spread)> = there
            .iter()
            .filter_map(|(at, reports)| {
                let reports = reports.iter().filter(|r| r.algorithm == algorithm);
                let values: Vec<f64> = reports.map(|report| figure.of(report)).collect();
                (!values.is_empty()).then(|| (*at, Spread::of(&values)))
            })
            .collect();
        let line = spreads
            .iter()
            .map(|(at, spread)| (*at, spread.mean.log10()));
        let width = if algorithm == Algorithm::Tar { 3 } else { 2 };
        let line = PathElement::new(line.collect::<Vec<_>>(), colour.stroke_width(width));
        chart.draw_series([line]).map_err(failed)?;
        let bars = spreads
            .iter()
            .filter(|(_, s)| s.most > s.least)
            .map(|(at, s)| {
                let ends = vec![(*at, s.least.log10()), (*at, s.most.log10())];
                PathElement::new(ends, colour.stroke_width(1))
            });
        chart.draw_series(bars).map_err(failed)?;
        let dots = spreads
            .iter()
            .map(|(at, spread)| Circle::new((*at, spread.mean.log10()), 3, colour.filled()));
        chart.draw_series(dots).map_err(failed)?;
    }
    Ok(())
}
