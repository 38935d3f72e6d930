//! BMv2 with the same controller and program: every packet and every counter equals that of the embedded switch.

use std::path::PathBuf;
use std::thread;

use ultima_tests::counters::Counts;
use ultima_tests::fabric::Fabric;
use ultima_tests::fuzz::{self, Sent};
use ultima_tests::job::Job;
use ultima_tests::needs;
use ultima_tests::scenario::{self, Outcome, in_any_order, shown};
use ultima_tests::stage::{Stage, Target};
use ultima_tests::testbed::Arrivals;

/// The number of mutated frames.
const MUTATIONS: usize = 4000;

/// BMv2, and the embedded switch with interfaces like BMv2's.
fn targets(bmv2: Option<PathBuf>) -> Option<[Target; 2]> {
    Some([Target::Bmv2(bmv2?), Target::Interfaces])
}

/// Runs `test` on both targets at the same time.
fn on_both<T: Send>(targets: &[Target; 2], test: impl Fn(&Target) -> T + Sync) -> [T; 2] {
    thread::scope(|scope| {
        let [bmv2, embedded] = targets
            .each_ref()
            .map(|target| scope.spawn(|| test(target)));
        [bmv2.join(), embedded.join()]
            .map(|result| result.unwrap_or_else(|cause| std::panic::resume_unwind(cause)))
    })
}

#[test]
fn one_switch_forwards_and_counts_like_the_embedded_one() {
    // The one test on BMv2 for every change.
    let bmv2 = needs::bmv2_installed();
    let Some(targets) = targets(bmv2) else {
        return;
    };
    let [bmv2, embedded] = on_both(&targets, |target| {
        target.star(|stage| {
            let scenarios = scenario::star(stage.scene());
            outcomes(stage, scenarios)
        })
    });
    same(bmv2, embedded);
}

#[test]
fn two_switches_forward_and_count_like_embedded_ones() {
    let Some(targets) = targets(needs::bmv2()) else {
        return;
    };
    let [bmv2, embedded] = on_both(&targets, |target| {
        target.pair(|stage| {
            let scenarios = scenario::pair(&stage.testbed.fabric, &stage.jobs[0]);
            outcomes(stage, scenarios)
        })
    });
    same(bmv2, embedded);
}

/// The jobs that the controller created, and the outcome of each scenario.
fn outcomes(
    mut stage: Stage,
    scenarios: Vec<scenario::Scenario>,
) -> (Vec<Job>, Vec<(String, Outcome)>) {
    let outcomes = scenarios.into_iter().map(|scenario| {
        let outcome = scenario::outcome(&mut stage, &scenario);
        (scenario.name, outcome)
    });
    let outcomes = outcomes.collect();
    (stage.jobs, outcomes)
}

fn same(bmv2: (Vec<Job>, Vec<(String, Outcome)>), embedded: (Vec<Job>, Vec<(String, Outcome)>)) {
    assert_eq!(bmv2.0, embedded.0, "the controller assigns equal numbers");
    assert_eq!(bmv2.1.len(), embedded.1.len());
    for ((name, bmv2), (_, embedded)) in bmv2.1.into_iter().zip(embedded.1) {
        assert!(bmv2.arrivals == embedded.arrivals, "{name}");
        assert_eq!(bmv2.counts, embedded.counts, "{name}");
    }
}

#[test]
fn mutated_frames_have_the_same_fate_on_both() {
    let Some(targets) = targets(needs::bmv2()) else {
        return;
    };
    let [bmv2, embedded] = on_both(&targets, |target| target.star(mutated));
    let fabric = Fabric::star();
    for (at, (((from, frame), bmv2), (_, embedded))) in bmv2.0.iter().zip(&embedded.0).enumerate() {
        assert!(
            bmv2 == embedded,
            "frame {at} from {}: {frame:02x?}\nBMv2:\n{}embedded:\n{}",
            fabric.host(*from).name,
            shown(&fabric, bmv2),
            shown(&fabric, embedded),
        );
    }
    assert_eq!(bmv2.1, embedded.1);
}

fn mutated(mut stage: Stage) -> (Vec<(Sent, Arrivals)>, Counts) {
    let frames = fuzz::mutations(&scenario::star(stage.scene()), 1, MUTATIONS);
    let before = stage.counts();
    let arrivals = frames
        .into_iter()
        .map(|(from, frame)| {
            let arrived = stage.testbed.exchange(from, std::slice::from_ref(&frame));
            ((from, frame), in_any_order(arrived))
        })
        .collect();
    (arrivals, stage.counts().since(&before))
}
