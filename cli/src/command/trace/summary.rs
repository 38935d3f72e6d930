//! An operation, and the list of a trace's operations, as text.

use std::fmt::Write;

use ultima_host::trace::Fate;
use ultima_host::{ClosedBy, Phase, Time};

use super::operation::{Entry, Operation, Which};
use super::scale::text as time;
use ultima_console::output::table;

/// The most ranks that are shown one by one: those with most losses, then the slowest.
pub const RANKS_SHOWN: usize = 24;

/// A row for each operation.
pub fn list(operations: impl Iterator<Item = (Which, Entry)>) -> String {
    let header = [
        "STEP",
        "BUCKET",
        "RANK",
        "DURATION",
        "ENDED-BY",
        "SHARD-CLOSED-BY",
        "LOST-CONTRIBUTIONS",
        "LOST-AGGREGATES",
    ];
    let rows = operations.map(|((id, rank), entry)| {
        let end = |of: &dyn Fn(super::operation::End) -> String| match entry.ended {
            Some(end) => of(end),
            None => "-".to_owned(),
        };
        [
            id.step.to_string(),
            id.bucket.to_string(),
            rank.to_string(),
            end(&|end| time(end.after.as_secs_f64())),
            end(&|end| end.by.name().to_owned()),
            end(&|end| end.shard.name().to_owned()),
            end(&|end| end.lost_contributions.to_string()),
            end(&|end| end.lost_aggregates.to_string()),
        ]
    });
    table(header, rows)
}

/// A sentence about the end of an operation.
pub fn ending(operation: &Operation) -> String {
    let shard = match operation.shard_closed() {
        Some(at) => format!("own shard closed after {}", time(operation.after(at))),
        None => "own shard not closed".to_owned(),
    };
    match operation.ended {
        Some(end) => format!(
            "took {}, ended by {}; {shard} by {}",
            time(end.after.as_secs_f64()),
            end.by.name(),
            end.shard.name(),
        ),
        None => format!("end not in the trace; {shard}"),
    }
}

/// The time bounds of an operation.
pub fn bounds(operation: &Operation) -> String {
    let Operation { t_s, t_b, t_c, .. } = operation;
    let mut text = format!(
        "t_S {}, t_B {}",
        time(t_s.as_secs_f64()),
        time(t_b.as_secs_f64())
    );
    for (name, t_c) in ["contributions", "aggregates"].iter().zip(t_c) {
        if let Some(t_c) = t_c {
            // Writing to a string does not fail.
            let _ = write!(text, ", x % of t_C {} for {name}", time(t_c.as_secs_f64()));
        }
    }
    text
}

/// The full summary of an operation.
pub fn text(operation: &Operation) -> String {
    let mut text = format!("{}\n{}\n", operation.title(), ending(operation));
    let slots = operation.layout.slots(operation.rank);
    let _ = writeln!(
        text,
        "{} values, {slots} slots in the own shard; {}",
        operation.layout.len(),
        bounds(operation)
    );
    if operation.dropped > 0 {
        let _ = writeln!(
            text,
            "{} records are missing because the trace's writer did not keep up: the counts below are too low",
            operation.dropped
        );
    }
    text.push('\n');
    text += &phases(operation);
    text.push('\n');
    text += &closed(operation);
    text.push('\n');
    text += &sources(operation);
    text
}

fn phases(operation: &Operation) -> String {
    let header = [
        "PHASE",
        "SENT",
        "EXPECTED",
        "IN-TIME",
        "TRIMMED",
        "LATE",
        "DUPLICATE",
        "LOST",
    ];
    let row = |(phase, name): (Phase, &str)| {
        let sent = operation.sent.iter().filter(|sent| sent.phase == phase);
        let came = |fates: &[Fate]| {
            let of_phase = operation.received.iter().filter(|it| it.phase == phase);
            let those = of_phase.filter(|it| fates.contains(&it.fate));
            those.count().to_string()
        };
        let slots = operation.slots(phase);
        let never = slots.iter().flatten().filter(|slot| slot.is_none()).count();
        [
            name.to_owned(),
            sent.count().to_string(),
            slots.iter().map(Vec::len).sum::<usize>().to_string(),
            came(&[Fate::InTime]),
            came(&[Fate::Trimmed, Fate::MarkedLate]),
            came(&[Fate::Late]),
            came(&[Fate::Duplicate]),
            never.to_string(),
        ]
    };
    let phases = [(Phase::Scatter, "scatter"), (Phase::Gather, "gather")];
    table(header, phases.into_iter().map(row))
}

/// The slots of the own shard by reason of closing, with the first and the last time.
fn closed(operation: &Operation) -> String {
    let rows = ClosedBy::ALL.into_iter().filter_map(|by| {
        let at: Vec<Time> = (operation.closed.iter())
            .filter(|closed| closed.by == by)
            .map(|closed| closed.at)
            .collect();
        let (first, last) = (at.first()?, at.last()?);
        Some([
            by.name().to_owned(),
            at.len().to_string(),
            time(operation.after(*first)),
            time(operation.after(*last)),
        ])
    });
    table(["OWN-SLOTS-CLOSED-BY", "SLOTS", "FIRST", "LAST"], rows)
}

/// A row for each rank, or for the most interesting ones.
fn sources(operation: &Operation) -> String {
    let phases = [Phase::Scatter, Phase::Gather];
    let slots = phases.map(|phase| operation.slots(phase));
    let last = phases.map(|phase| operation.last(phase));
    let shown = shown(operation);
    let rows = shown.iter().map(|&rank| {
        let at = usize::from(rank);
        let came = |phase: usize| {
            let slots: &[Option<Fate>] = &slots[phase][at];
            let in_time = slots.iter().filter(|slot| **slot == Some(Fate::InTime));
            format!("{}/{}", in_time.count(), slots.len())
        };
        let last = |phase: usize| match last[phase][at] {
            Some(at) => time(operation.after(at)),
            None => "-".to_owned(),
        };
        [rank.to_string(), came(0), last(0), came(1), last(1)]
    });
    let header = ["FROM", "CONTRIBUTIONS", "LAST", "AGGREGATES", "LAST"];
    let mut text = table(header, rows);
    let others = usize::from(operation.head.ranks) - 1;
    if others > shown.len() {
        let _ = writeln!(
            text,
            "{} of {others} ranks: those with most losses, then the slowest",
            shown.len()
        );
    }
    text
}

/// The ranks that are shown one by one, in rank order.
pub fn shown(operation: &Operation) -> Vec<u16> {
    let phases = [Phase::Scatter, Phase::Gather];
    let slots = phases.map(|phase| operation.slots(phase));
    let last = phases.map(|phase| operation.last(phase));
    let mut ranks: Vec<u16> = operation.others().collect();
    ranks.sort_by_key(|&rank| {
        let at = usize::from(rank);
        let lacks = |slots: &Vec<Vec<Option<Fate>>>| {
            let slots = slots[at].iter();
            slots.filter(|slot| **slot != Some(Fate::InTime)).count()
        };
        let lacking: usize = slots.iter().map(lacks).sum();
        let last = last.iter().filter_map(|last| last[at]).max();
        std::cmp::Reverse((lacking, last))
    });
    ranks.truncate(RANKS_SHOWN);
    ranks.sort_unstable();
    ranks
}
