//! Background flows that share the links to hosts.

use ultima_sim::{Algorithm, Background, Experiment, ExperimentError, NetworkConfig};

const RATIO: f64 = 1.5;

/// A small bucket on links of 10 Gbit/s.
fn experiment(algorithm: Algorithm, background: Option<Background>) -> Experiment {
    let usual = Experiment::new(algorithm, 4);
    Experiment {
        bytes: 40_000,
        slot: 1408,
        operations: 50,
        network: NetworkConfig {
            rate: 10_000_000_000,
            background,
            ..usual.network
        },
        ..usual
    }
}

fn flows(ratio: f64) -> Option<Background> {
    Some(Background {
        ratio,
        flow: 100_000,
        calibration: None,
    })
}

#[test]
fn calibrated_flows_delay_every_algorithm() {
    let ring = experiment(Algorithm::Ring, flows(RATIO));
    let calibration = ring.calibrate().expect("a possible ratio");
    let calibration = calibration.expect("there are flows");
    let reached = calibration.ring_ratio / RATIO;
    assert!((0.8..1.25).contains(&reached), "{calibration:?}");
    assert!((0.001..0.9).contains(&calibration.load), "{calibration:?}");
    for algorithm in Algorithm::ALL {
        let [quiet, shared] = [None, flows(RATIO)].map(|background| {
            let experiment = experiment(algorithm, background);
            // The load depends on the network and the bucket, not on the algorithm.
            let experiment = experiment.calibrated(calibration);
            experiment.run(&mut |_| ()).expect("a possible experiment")
        });
        let [quiet, shared] = [quiet, shared].map(|report| report.completion_ms);
        assert!(
            shared.p99 > 1.1 * quiet.p99 && shared.p50 >= quiet.p50,
            "{algorithm:?}: {shared:?}, without flows {quiet:?}"
        );
    }
}

#[test]
fn a_ratio_that_no_load_reaches_is_an_error() {
    let experiment = experiment(Algorithm::Tar, flows(900.0));
    match experiment.calibrate() {
        Err(ExperimentError::Background { ratio, most }) => {
            assert!(ratio == 900.0 && (1.0..900.0).contains(&most), "{most}");
        }
        other => panic!("{other:?}"),
    }
}
