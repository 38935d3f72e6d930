//! SVG elements. All marks of one kind are one path: a trace has thousands, and an element for each would take ten times the space.

use std::collections::BTreeSet;
use std::fmt::Write;

/// An SVG colour.
pub type Colour = &'static str;

/// An SVG file in progress.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The position of a text relative to its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// The style of a text.
#[derive(Clone, Copy)]
pub struct Style {
    pub size: f64,
    pub colour: Colour,
    pub anchor: Anchor,
    pub bold: bool,
}

/// The shape of a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Dot,
    Cross,
    Dash,
}

impl Svg {
    /// An empty picture with its size in pixels.
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    /// Adds a filled rectangle.
    pub fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: Colour) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    /// Adds a line; `dashes` is empty for a solid one.
    pub fn line(
        &mut self,
        (x1, y1): (f64, f64),
        (x2, y2): (f64, f64),
        (colour, width, dashes): (Colour, f64, &str),
    ) {
        let dashes = match dashes {
            "" => String::new(),
            dashes => format!(" stroke-dasharray=\"{dashes}\""),
        };
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"{dashes}/>"
        ));
    }

    /// Adds a text with its baseline at `y`.
    pub fn text(&mut self, (x, y): (f64, f64), text: &str, style: Style) {
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if style.bold {
            " font-weight=\"bold\""
        } else {
            ""
        };
        let Style { size, colour, .. } = style;
        let text = escaped(text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\" text-anchor=\"{anchor}\"{weight}>{text}</text>"
        ));
    }

    /// Adds marks of one kind. Points within the same half pixel are drawn once.
    pub fn marks(&mut self, points: &[(f64, f64)], shape: Shape, size: f64, colour: Colour) {
        // A resolution of half a pixel bounds the file's size for any trace.
        let half = |v: f64| (v * 2.0).round() as i64;
        let points: BTreeSet<(i64, i64)> = points.iter().map(|p| (half(p.0), half(p.1))).collect();
        if points.is_empty() {
            return;
        }
        let mut path = String::new();
        let arm = size / 2.0;
        for (x, y) in points {
            let (x, y) = (x as f64 / 2.0, y as f64 / 2.0);
            // Writing to a string does not fail.
            let _ = match shape {
                Shape::Dot => write!(path, "M{x} {y}h0"),
                Shape::Dash => write!(path, "M{} {y}h{size}", x - arm),
                Shape::Cross => write!(
                    path,
                    "M{} {}l{size} {size}m0 -{size}l-{size} {size}",
                    x - arm,
                    y - arm
                ),
            };
        }
        let (width, cap) = match shape {
            Shape::Dot => (size, "round"),
            Shape::Cross | Shape::Dash => (1.6, "butt"),
        };
        self.add(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linecap=\"{cap}\"/>"
        ));
    }

    /// The complete SVG file.
    pub fn finish(self) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }
}

/// Escapes text for XML, and drops characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escaped("<b a=\"1\">&\u{7}"),
            "&lt;b a=&quot;1&quot;&gt;&amp;"
        );
    }

    #[test]
    fn marks_at_the_same_point_are_drawn_once() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.marks(
            &[(1.0, 2.0), (1.1, 2.1), (3.0, 2.0)],
            Shape::Dot,
            2.0,
            "#000000",
        );
        svg.marks(&[], Shape::Cross, 2.0, "#000000");
        let svg = svg.finish();
        assert_eq!(svg.matches("<path").count(), 1);
        assert_eq!(svg.matches("h0").count(), 2);
    }
}
