//! Ranks that start late.

use std::time::Duration;

use ultima_sim::{Algorithm, Experiment, Report, Stragglers};

const LATE: Duration = Duration::from_millis(5);

fn run(experiment: &Experiment) -> Report {
    experiment.run(&mut |_| ()).expect("a possible experiment")
}

fn late(algorithm: Algorithm, share: f64) -> Experiment {
    Experiment {
        bytes: 400_000,
        slot: 4096,
        stragglers: Some(Stragglers { share, delay: LATE }),
        ..Experiment::new(algorithm, 6)
    }
}

#[test]
fn the_same_operations_are_late_for_every_algorithm() {
    let operations = |algorithm| -> Vec<bool> {
        let late = |seed| {
            let quiet = late(algorithm, 0.1);
            run(&Experiment { seed, ..quiet }).completion_ms.max >= 5.0
        };
        (1..=30).map(late).collect()
    };
    let expected = operations(Algorithm::Tar);
    let some = expected.iter().filter(|late| **late).count();
    assert!((5..25).contains(&some), "{expected:?}");
    for algorithm in Algorithm::ALL {
        assert_eq!(operations(algorithm), expected, "{algorithm:?}");
    }
}

#[test]
fn reliable_algorithms_wait_for_a_late_rank_and_bounded_ones_do_not() {
    for algorithm in Algorithm::ALL {
        let experiment = Experiment {
            operations: 20,
            ..late(algorithm, 0.1)
        };
        let report = run(&experiment);
        let on_time = report.on_time_ms.expect("there are stragglers");
        let all = report.completion_ms.max;
        assert!(all >= 5.0, "{algorithm:?}: {report:?}");
        match report.t_b_ms {
            Some(t_b) => {
                assert!(on_time.max <= t_b && t_b < 1.0, "{report:?}");
                assert!(report.arrived_share < 1.0);
            }
            None => assert!(on_time.max > 5.0, "{algorithm:?}: {report:?}"),
        }
        assert_eq!(report.network.in_flight(), 0);
        assert_eq!(report, run(&experiment));
    }
}

#[test]
fn a_tail_of_computing_delays_beginnings() {
    let quiet = Experiment {
        stragglers: None,
        operations: 30,
        compute: Duration::from_millis(10),
        ..late(Algorithm::Ring, 0.1)
    };
    let tailed = Experiment {
        compute_tail: 1.5,
        ..quiet.clone()
    };
    let [quiet, tailed] = [quiet, tailed].map(|experiment| run(&experiment).completion_ms);
    // One of six ranks computes 0.5 ms longer nearly always, and 5 ms longer in one of 100 operations and rank.
    assert!(quiet.max < 1.0 && tailed.p50 > 1.0, "{quiet:?} {tailed:?}");
    assert!((2.0..15.0).contains(&tailed.max), "{tailed:?}");
}
