//! Plots of the studies: panels side by side below a title.

use anyhow::Result;
use plotters::prelude::*;

use crate::chart::{Area, FONT, Marked, Spread, failed};

pub const WIDTH: u32 = 960;
pub const HEIGHT: u32 = 420;
/// Height of title, settings and legend above the panels.
pub const HEAD: u32 = 84;

/// An axis with `count` categories, at 0, 1, 2 and so on.
pub fn side_by_side(count: usize) -> Marked {
    Marked {
        range: -0.3..count as f64 - 0.7,
        marks: (0..count).map(|at| at as f64).collect(),
    }
}

/// A panel's axes and labels.
pub struct Panel<'a> {
    pub caption: &'a str,
    pub x_name: &'a str,
    pub y_name: &'a str,
    pub x: Marked,
    pub x_text: &'a dyn Fn(f64) -> String,
    pub y: Marked,
    pub y_text: &'a dyn Fn(f64) -> String,
}

/// One line of a panel.
pub struct Curve {
    pub colour: RGBColor,
    pub points: Vec<(f64, f64)>,
    /// From the least to the most, in shares of 1.
    pub bars: Vec<(f64, Spread)>,
    pub dots: bool,
}

/// Draws a panel and its curves.
///
/// # Errors
/// None that depends on what was measured.
pub fn draw(area: &Area<'_>, panel: Panel<'_>, curves: impl Iterator<Item = Curve>) -> Result<()> {
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

/// Draws title, settings and legend.
///
/// # Errors
/// None that depends on what was measured.
pub fn head(
    area: &Area<'_>,
    title: &str,
    settings: &str,
    lines: &[(&str, RGBColor)],
) -> Result<()> {
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

/// Marks of a linear axis that enclose `least` and `most`: at most about eight steps of 1, 2 or 5 times a power of 10.
pub fn linear(least: f64, most: f64) -> Vec<f64> {
    let room = (most - least).max(1e-3);
    let power = 10f64.powf((room / 8.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = steps.into_iter().find(|step| room / step <= 8.0);
    let step = step.unwrap_or(10.0 * power);
    let first = (least / step).floor() as i64;
    let last = ((most / step).ceil() as i64).max(first + 1);
    (first..=last).map(|at| at as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::format::short;

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
