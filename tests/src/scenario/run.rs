//! Runs scenarios.

use std::fmt::Write as _;

use super::{Scenario, Step};
use crate::counters::Counts;
use crate::fabric::Fabric;
use crate::stage::Stage;
use crate::stamps::unstamped;
use crate::testbed::Arrivals;

/// The effects of a scenario on a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The arrivals for each frame.
    pub arrivals: Vec<Arrivals>,
    /// The counts of all frames.
    pub counts: Counts,
}

/// Sends a scenario's frames one by one, and checks arrivals and counts.
///
/// # Panics
/// If arrivals or counts differ from the scenario's. The message has both.
pub fn run(stage: &mut Stage, scenario: &Scenario) {
    checked(stage, scenario, Stage::counts_without_sources);
}

/// As [`run`]. Returns the arrivals and all counts, those by source included.
///
/// # Panics
/// As [`run`].
pub fn outcome(stage: &mut Stage, scenario: &Scenario) -> Outcome {
    checked(stage, scenario, Stage::counts)
}

fn checked(stage: &mut Stage, scenario: &Scenario, read: fn(&mut Stage) -> Counts) -> Outcome {
    let before = read(stage);
    let mut arrivals = Vec::new();
    for (
        number,
        Step {
            from,
            frame,
            arrivals: expected,
        },
    ) in scenario.steps.iter().enumerate()
    {
        let arrived = in_any_order(stage.testbed.exchange(*from, std::slice::from_ref(frame)));
        let mut expected = expected.clone();
        for frame in expected.values_mut().flatten() {
            *frame = unstamped(std::mem::take(frame));
        }
        let expected = &in_any_order(expected);
        let fabric = &stage.testbed.fabric;
        assert!(
            arrived == *expected,
            "{}, frame {number}:\nsent from {} {}\nexpected:\n{}arrived:\n{}",
            scenario.name,
            fabric.host(*from).name,
            hex(frame),
            shown(fabric, expected),
            shown(fabric, &arrived),
        );
        arrivals.push(arrived);
    }
    let counts = read(stage).since(&before);
    let expected = &scenario.counts;
    assert!(
        counts.without_sources() == *expected,
        "{}:\nexpected counts: {expected:#?}\ncounted: {counts:#?}",
        scenario.name
    );
    Outcome { arrivals, counts }
}

/// Sorts the arrivals for one frame: a switch may make copies in any order.
pub fn in_any_order(mut arrivals: Arrivals) -> Arrivals {
    arrivals
        .values_mut()
        .for_each(|frames| frames.sort_unstable());
    arrivals
}

/// Frames by host, as text.
pub fn shown(fabric: &Fabric, arrivals: &Arrivals) -> String {
    let mut text = String::new();
    for (host, frames) in arrivals {
        for frame in frames {
            writeln!(text, "  at {} {}", fabric.host(*host).name, hex(frame))
                .expect("a String cannot fail");
        }
    }
    if text.is_empty() {
        "  nothing\n".to_owned()
    } else {
        text
    }
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}
