//! Running scenarios.

use std::fmt::Write as _;

use super::{Scenario, Step};
use crate::counters::Counts;
use crate::fabric::Fabric;
use crate::stage::Stage;
use crate::stamps::unstamped;
use crate::testbed::Arrivals;

/// What a target made of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What arrived for each frame.
    pub arrivals: Vec<Arrivals>,
    /// What was counted for all of them.
    pub counts: Counts,
}

/// Sends a scenario's frames, one after the other, and checks what comes of them.
///
/// # Panics
/// Where what arrives or what is counted is not what the scenario says; the message shows both.
pub fn run(stage: &mut Stage, scenario: &Scenario) -> Outcome {
    let before = stage.counts();
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
    let counts = stage.counts().since(&before);
    let expected = &scenario.counts;
    assert!(
        counts.without_sources() == *expected,
        "{}:\nexpected counts: {expected:#?}\ncounted: {counts:#?}",
        scenario.name
    );
    Outcome { arrivals, counts }
}

/// In which order a switch makes the copies of one packet is its own business: arrivals of one
/// frame in an order of bytes. What came for one frame and what for the next stays apart.
pub fn in_any_order(mut arrivals: Arrivals) -> Arrivals {
    arrivals
        .values_mut()
        .for_each(|frames| frames.sort_unstable());
    arrivals
}

/// Frames by host, for those who look for a difference.
pub fn shown(fabric: &Fabric, arrivals: &Arrivals) -> String {
    let mut text = String::new();
    for (host, frames) in arrivals {
        for frame in frames {
            writeln!(text, "  at {} {}", fabric.host(*host).name, hex(frame))
                .expect("a String takes all");
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
