//! The plot of an operation: time to the right, a band for each rank, slots from top to bottom within a band.

use ultima_host::trace::{Fate, Timer};
use ultima_host::{ClosedBy, Phase, Time};

use super::operation::{Operation, Received};
use super::scale::{TimeScale, text as time};
use super::summary::{bounds, ending, shown};
use super::svg::{Anchor, Colour, Shape, Style, Svg};

const WIDTH: f64 = 1120.0;
/// The ends of the time axis.
const LEFT: f64 = 118.0;
const RIGHT: f64 = 960.0;
/// Where lost packets are marked.
const LOST_AT: f64 = RIGHT + 16.0;
const COUNT_AT: f64 = RIGHT + 34.0;
/// Height of title, summary, bounds and legend.
const HEAD: f64 = 122.0;
/// Height above a panel for its name and the names of lines.
const OVER_PANEL: f64 = 58.0;
/// Height of the axis below the lower panel.
const FOOT: f64 = 52.0;
const BETWEEN: f64 = 18.0;
const BAND_GAP: f64 = 3.0;

/// Colours that are distinct with any colour vision (Okabe and Ito, 2008).
const BLUE: Colour = "#0072b2";
const SKY: Colour = "#56b4e9";
const ORANGE: Colour = "#e69f00";
const RED: Colour = "#d55e00";
const GREEN: Colour = "#009e73";
const PURPLE: Colour = "#cc79a7";
const BLACK: Colour = "#000000";
const GREY: Colour = "#8a8a8a";
const PALE: Colour = "#f3f5f7";
const TEXT: Colour = "#222222";

const SMALL: Style = Style {
    size: 11.0,
    colour: TEXT,
    anchor: Anchor::Start,
    bold: false,
};

/// A kind of mark with its name in the legend.
struct MarkKind {
    name: &'static str,
    shape: Shape,
    size: f64,
    colour: Colour,
}

const fn kind(name: &'static str, shape: Shape, size: f64, colour: Colour) -> MarkKind {
    MarkKind {
        name,
        shape,
        size,
        colour,
    }
}

const IN_TIME: MarkKind = kind("in time", Shape::Dot, 2.6, BLUE);
const TRIMMED: MarkKind = kind("trimmed by a switch", Shape::Cross, 5.0, ORANGE);
const LATE: MarkKind = kind("late", Shape::Dot, 4.0, RED);
const DUPLICATE: MarkKind = kind("duplicate", Shape::Dot, 2.6, PURPLE);
const LOST: MarkKind = kind("lost", Shape::Dash, 10.0, RED);
const SENT: MarkKind = kind("sent", Shape::Dot, 2.0, SKY);
const CLOSED: MarkKind = kind("slot closed, complete", Shape::Dot, 3.2, GREEN);
const CLOSED_INCOMPLETE: MarkKind = kind("slot closed, incomplete", Shape::Cross, 4.0, BLACK);

/// All kinds in the order of the legend.
const KINDS: [MarkKind; 8] = [
    IN_TIME,
    TRIMMED,
    LATE,
    DUPLICATE,
    LOST,
    SENT,
    CLOSED,
    CLOSED_INCOMPLETE,
];

/// The position of one band.
#[derive(Clone, Copy)]
struct Band {
    top: f64,
    height: f64,
    slots: u32,
}

impl Band {
    fn y(self, position: u32) -> f64 {
        let inner = self.height - 2.0 * BAND_GAP;
        let share = (f64::from(position) + 0.5) / f64::from(self.slots.max(1));
        self.top + BAND_GAP + inner * share
    }
}

/// A plot in progress.
struct Picture<'a> {
    svg: Svg,
    operation: &'a Operation,
    scale: TimeScale,
    ranks: Vec<u16>,
    band: f64,
    /// The number of packets that arrived after the end of the axis.
    beyond: usize,
}

/// Plots `operation` as SVG.
pub fn draw(operation: &Operation) -> String {
    let ranks = shown(operation);
    let bands = ranks.len() + 1;
    let band = (340.0 / bands as f64).clamp(15.0, 46.0);
    let panel = OVER_PANEL + band * bands as f64;
    let height = HEAD + 2.0 * panel + BETWEEN + FOOT;
    let mut picture = Picture {
        svg: Svg::new(WIDTH, height),
        operation,
        scale: scale(operation),
        ranks,
        band,
        beyond: 0,
    };
    let upper = HEAD + OVER_PANEL;
    let lower = HEAD + panel + BETWEEN + OVER_PANEL;
    let bottom = lower + band * bands as f64;
    picture.grid(upper, upper + band * bands as f64, false);
    picture.grid(lower, bottom, true);
    picture.panel(Phase::Scatter, upper);
    picture.panel(Phase::Gather, lower);
    picture.lines(upper, upper + band * bands as f64, true);
    picture.lines(lower, bottom, false);
    picture.head(height);
    picture.svg.finish()
}

/// The time axis: from the start, or an earlier packet, to shortly after the end.
fn scale(operation: &Operation) -> TimeScale {
    let times = || {
        let received = operation.received.iter().map(|it| it.at);
        let sent = operation.sent.iter().map(|sent| sent.at);
        received.chain(sent).map(|at| operation.after(at))
    };
    let latest = times().fold(0.0, f64::max);
    let end = operation
        .ended
        .map_or(latest, |end| end.after.as_secs_f64());
    let end = end.max(1e-9);
    let earliest = times().fold(0.0, f64::min);
    TimeScale {
        from: earliest.max(-0.25 * end) - 0.015 * end,
        to: latest.clamp(1.03 * end, 1.2 * end),
    }
}

impl Picture<'_> {
    fn x(&self, at: Time) -> f64 {
        self.x_after(self.operation.after(at))
    }

    fn x_after(&self, seconds: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * self.scale.share(seconds)
    }

    fn band(&self, top: f64, number: usize, slots: u32) -> Band {
        Band {
            top: top + self.band * number as f64,
            height: self.band,
            slots,
        }
    }

    fn marks(&mut self, kind: &MarkKind, points: &[(f64, f64)]) {
        self.svg.marks(points, kind.shape, kind.size, kind.colour);
    }

    /// Draws the bands and the time axis.
    fn grid(&mut self, top: f64, bottom: f64, numbers: bool) {
        for number in (0..=self.ranks.len()).step_by(2) {
            let at = (LEFT, top + self.band * number as f64);
            self.svg.rectangle(at, (RIGHT - LEFT, self.band), PALE);
        }
        for (seconds, text) in self.scale.marks() {
            let x = self.x_after(seconds);
            let line = ("#dcdfe3", 1.0, "");
            self.svg.line((x, top), (x, bottom), line);
            if numbers {
                let style = Style {
                    anchor: Anchor::Middle,
                    ..SMALL
                };
                self.svg.text((x, bottom + 16.0), &text, style);
            }
        }
        if numbers {
            let (_, unit) = self.scale.unit();
            let style = Style {
                anchor: Anchor::Middle,
                size: 12.0,
                ..SMALL
            };
            let at = ((LEFT + RIGHT) / 2.0, bottom + 36.0);
            let text = format!("time since the start of the operation at this rank, {unit}");
            self.svg.text(at, &text, style);
        }
    }

    fn panel(&mut self, phase: Phase, top: f64) {
        let (name, how) = match phase {
            Phase::Scatter => (
                "Contributions (SCATTER) to this rank's shard",
                "top to bottom in a band: slots in the order in which the source sends them",
            ),
            Phase::Gather => (
                "Aggregates (GATHER) of the other shards",
                "top to bottom in a band: slots by number",
            ),
        };
        let title = Style {
            size: 13.0,
            bold: true,
            ..SMALL
        };
        self.svg.text((LEFT, top - 42.0), name, title);
        let aside = Style {
            colour: GREY,
            anchor: Anchor::End,
            ..SMALL
        };
        self.svg.text((RIGHT, top - 42.0), how, aside);
        self.own_band(phase, top);
        let slots = self.operation.slots(phase);
        for number in 0..self.ranks.len() {
            let rank = self.ranks[number];
            let owed = self.operation.owed(phase, rank);
            let band = self.band(top, number + 1, owed);
            self.label(band, &format!("rank {rank}"));
            self.packets(phase, rank, band);
            let of_rank = &slots[usize::from(rank)];
            let lost = (0u32..).zip(of_rank).filter(|(_, fate)| fate.is_none());
            let lost: Vec<_> = lost.map(|(at, _)| (LOST_AT, band.y(at))).collect();
            self.marks(&LOST, &lost);
            let in_time = of_rank.iter().filter(|fate| **fate == Some(Fate::InTime));
            let count = in_time.count() as u32;
            let text = match count == owed {
                true => format!("all {owed}"),
                false => format!("{count} of {owed}"),
            };
            let colour = if count == owed { TEXT } else { RED };
            self.beside(band, &text, colour);
        }
    }

    /// Draws this rank's own band: the contributions that it sends, or its own slots as they close and are sent.
    fn own_band(&mut self, phase: Phase, top: f64) {
        let operation = self.operation;
        let sent = || operation.sent.iter().filter(|sent| sent.phase == phase);
        match phase {
            Phase::Scatter => {
                let total = sent().count() as u32;
                let band = self.band(top, 0, total);
                self.label(band, "this rank sends");
                let points: Vec<_> = (0..)
                    .zip(sent())
                    .map(|(at, sent)| (self.x(sent.at), band.y(at)))
                    .collect();
                self.marks(&SENT, &points);
                self.beside(band, &format!("{total} sent"), TEXT);
            }
            Phase::Gather => {
                let slots = operation.layout.slots(operation.rank);
                let band = self.band(top, 0, slots);
                self.label(band, "this rank's slots");
                let points: Vec<_> = sent()
                    .map(|sent| (self.x(sent.at), band.y(sent.slot)))
                    .collect();
                self.marks(&SENT, &points);
                for (kind, complete) in [(CLOSED, true), (CLOSED_INCOMPLETE, false)] {
                    let closed = operation.closed.iter();
                    let closed = closed.filter(|c| (c.by == ClosedBy::Complete) == complete);
                    let points: Vec<_> = closed
                        .map(|closed| (self.x(closed.at), band.y(closed.slot)))
                        .collect();
                    self.marks(&kind, &points);
                }
                let closed = operation.closed.len();
                self.beside(band, &format!("{closed} of {slots} closed"), TEXT);
            }
        }
    }

    fn packets(&mut self, phase: Phase, rank: u16, band: Band) {
        let operation = self.operation;
        let of_band = |it: &&Received| (it.phase, it.source) == (phase, rank);
        for (kind, fates) in [
            (DUPLICATE, &[Fate::Duplicate][..]),
            (IN_TIME, &[Fate::InTime]),
            (LATE, &[Fate::Late]),
            (TRIMMED, &[Fate::Trimmed, Fate::MarkedLate]),
        ] {
            let those = operation.received.iter().filter(of_band);
            let those = those.filter(|it| fates.contains(&it.fate));
            let (seen, beyond): (Vec<&Received>, Vec<&Received>) =
                those.partition(|it| operation.after(it.at) <= self.scale.to);
            self.beyond += beyond.len();
            let points: Vec<_> = seen
                .iter()
                .map(|it| (self.x(it.at), band.y(it.position)))
                .collect();
            self.marks(&kind, &points);
        }
    }

    fn label(&mut self, band: Band, text: &str) {
        let style = Style {
            anchor: Anchor::End,
            ..SMALL
        };
        let at = (LEFT - 8.0, band.top + band.height / 2.0 + 4.0);
        self.svg.text(at, text, style);
    }

    fn beside(&mut self, band: Band, text: &str, colour: Colour) {
        let at = (COUNT_AT, band.top + band.height / 2.0 + 4.0);
        self.svg.text(at, text, Style { colour, ..SMALL });
    }

    /// Draws lines through a panel: start, bounds, closing of the own shard, end.
    fn lines(&mut self, top: f64, bottom: f64, named: bool) {
        let operation = self.operation;
        let mut lines: Vec<(f64, String, (Colour, f64, &str))> =
            vec![(0.0, "start".into(), (GREY, 1.0, ""))];
        let fired = |timer| operation.timers.iter().find(|(_, t)| *t == timer);
        for (name, after) in [("t_S", operation.t_s), ("t_B", operation.t_b)] {
            lines.push((after.as_secs_f64(), name.into(), (PURPLE, 1.4, "6 3")));
        }
        for (timer, name) in [
            (Timer::EarlyScatter, "t_C of contributions"),
            (Timer::EarlyGather, "t_C of aggregates"),
        ] {
            if let Some((at, _)) = fired(timer) {
                let after = operation.after(*at);
                lines.push((after, name.into(), (PURPLE, 1.4, "2 3")));
            }
        }
        if let Some(at) = operation.shard_closed() {
            let text = "own shard closed".to_owned();
            lines.push((operation.after(at), text, (GREEN, 1.4, "")));
        }
        if let Some(end) = operation.ended {
            let text = format!("ended: {}", end.by.name());
            lines.push((end.after.as_secs_f64(), text, (BLACK, 1.6, "")));
        }
        lines.retain(|line| self.scale.shows(line.0));
        lines.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Names are in two rows to avoid overlaps.
        let mut free = [LEFT - 60.0; 2];
        for (after, name, look) in lines {
            let x = self.x_after(after);
            self.svg.line((x, top), (x, bottom), look);
            if !named {
                continue;
            }
            let width = 6.2 * name.chars().count() as f64;
            let anchor = match x + width > WIDTH - 8.0 {
                true => Anchor::End,
                false => Anchor::Start,
            };
            let left = match anchor {
                Anchor::End => x - width,
                _ => x,
            };
            let row = usize::from(free[0] > left);
            free[row] = left + width + 8.0;
            let y = top - 6.0 - 14.0 * row as f64;
            let style = Style {
                colour: look.0,
                anchor,
                ..SMALL
            };
            self.svg.text((x, y), &name, style);
        }
    }

    fn head(&mut self, height: f64) {
        let operation = self.operation;
        let title = Style {
            size: 17.0,
            bold: true,
            ..SMALL
        };
        let plain = Style {
            size: 12.5,
            ..SMALL
        };
        self.svg.text((20.0, 28.0), &operation.title(), title);
        self.svg.text((20.0, 50.0), &ending(operation), plain);
        self.svg.text((20.0, 68.0), &bounds(operation), plain);
        let mut x = 24.0;
        for kind in &KINDS {
            self.svg
                .marks(&[(x, 90.0)], kind.shape, kind.size * 1.3, kind.colour);
            self.svg.text((x + 10.0, 94.0), kind.name, SMALL);
            x += 34.0 + 5.9 * kind.name.chars().count() as f64;
        }
        let mut notes = Vec::new();
        let others = usize::from(operation.head.ranks) - 1;
        if others > self.ranks.len() {
            notes.push(format!(
                "{} of {others} other ranks: those with most losses, then the slowest",
                self.ranks.len()
            ));
        }
        if self.beyond > 0 {
            let end = time(self.scale.to);
            notes.push(format!("{} packets arrived after {end}", self.beyond));
        }
        if operation.dropped > 0 {
            notes.push(format!(
                "{} records are missing because the trace's writer did not keep up",
                operation.dropped
            ));
        }
        if !notes.is_empty() {
            let style = Style {
                colour: RED,
                ..SMALL
            };
            let at = (20.0, height - 6.0);
            self.svg.text(at, &notes.join("; "), style);
        }
    }
}
