//! A picture's elements. A trace has thousands of marks: those of one kind are one path of dots, a tenth of what an
//! element for each would take.

use std::collections::BTreeSet;
use std::fmt::Write;

/// A colour as SVG has it.
pub type Colour = &'static str;

/// A picture that is being drawn.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where text stands from its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub struct Style {
    pub size: f64,
    pub colour: Colour,
    pub anchor: Anchor,
    pub bold: bool,
}

/// What a mark looks like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Dot,
    Cross,
    Dash,
}

impl Svg {
    /// An empty picture, in pixels.
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: Colour) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    /// A line; `dashes` is empty for a solid one.
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

    /// Text, whose baseline is at `y`.
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

    /// Marks of one kind at points, those at the same half pixel once.
    pub fn marks(&mut self, points: &[(f64, f64)], shape: Shape, size: f64, colour: Colour) {
        // Half pixels are the picture's resolution, so that its length has a bound whatever the trace has.
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

    /// The whole picture.
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

/// Text as XML has it; what XML cannot have is left out.
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
    fn texts_cannot_become_elements() {
        assert_eq!(
            escaped("<b a=\"1\">&\u{7}"),
            "&lt;b a=&quot;1&quot;&gt;&amp;"
        );
    }

    #[test]
    fn marks_at_one_place_are_drawn_once() {
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
